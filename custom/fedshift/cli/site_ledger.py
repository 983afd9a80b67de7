"""``fedshift site ledger``: what has left a site with noise, over all jobs, and what it adds up to."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from fedshift.federation.site.privacy.ledger import Account
    from fedshift.flare.kit import Kit
    from fedshift.schema.policy import PrivacyBudget

console = Console(soft_wrap=True, highlight=False)
USUAL_DELTA = 1e-5
"""At which totals are given if the site has no budget."""


def run(args: argparse.Namespace) -> int:
    """Show the ledger of a site's kit, 1 if its chain is broken; of the server's, what it has seen of the sites'."""
    from fedshift.data.locate import read_settings
    from fedshift.federation.site.privacy.ledger import Ledger
    from fedshift.flare.kit import open_kit
    from fedshift.schema.errors import ConfigError

    kit = open_kit(args.kit)
    if kit.role == "server":
        return _seen(kit, as_json=args.json, forget=args.forget)
    if args.forget is not None:
        raise ConfigError(
            "wrong-kit", f"--forget is for the server's kit, which keeps what it has seen of ledgers, not {args.kit}"
        )
    ledger, policy = Ledger(kit.local), read_settings(kit.local).privacy
    account, budget = ledger.read(), None if policy is None else policy.budget
    content = summary(account, budget)
    if args.json:
        print(json.dumps({"site": kit.name, "file": str(ledger.path), **content}, indent=1))
    else:
        if account.releases:
            console.print(_table(account, title=f"what has left site {kit.name} with noise"))
        _tell(content, ledger.path.name)
    return 0 if account.broken is None else 1


def _seen(kit: Kit, *, as_json: bool, forget: str | None) -> int:
    """What the server has seen of the sites' ledgers."""
    from fedshift.flare.ledger_heads import LedgerHeads

    heads = LedgerHeads(kit.local)
    if forget is not None:
        forgotten = heads.forget(forget)
        print(
            f"forgotten: {forgotten.number} releases of site {forget}, up to {forgotten.hash}: whatever its ledger "
            "then holds is taken for all that it has spent"
        )
        return 0
    known = heads.all()
    if as_json:
        print(json.dumps({site: head.model_dump() for site, head in known.items()}, indent=1))
        return 0
    for site, head in known.items():
        print(f"{site}: {head.number} releases, up to {head.hash}")
    if not known:
        print("no site has told of a release with noise")
    return 0


def summary(account: Account, budget: PrivacyBudget | None) -> dict[str, Any]:
    """The ledger as plain data: releases, sums, and whether the chain holds."""
    delta = USUAL_DELTA if budget is None else budget.delta
    jobs = sorted({one.job for one in account.releases})
    left = {} if budget is None else {"budget": budget.model_dump()}
    return {
        "releases": [one.model_dump() for one in account.releases],
        "spent": {"epsilon": account.epsilon(delta), "delta": delta},
        "jobs": {
            job: {
                "releases": sum(one.job == job for one in account.releases),
                "runs": len({one.run for one in account.releases if one.job == job}),
            }
            for job in jobs
        },
        **left,
        "last": account.last,
        "broken": None if account.broken is None else vars(account.broken),
    }


def _table(account: Account, *, title: str) -> Table:
    rows = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("", "date", "job", "round", "what", "mechanism", "sensitivity", "noise", "ε alone", "δ"):
        text = name in ("date", "job", "what", "mechanism")
        rows.add_column(name, justify="left" if text else "right", overflow="fold", no_wrap=name == "date")
    for number, one in enumerate(account.releases, start=1):
        how: str = one.mechanism
        if one.steps > 1:
            how += f", {one.steps} steps"
        if one.sampling_rate < 1:
            how += f" of {100 * one.sampling_rate:.3g} %"
        rows.add_row(
            *(str(number), one.date[:10], escape(one.job), str(one.round), one.what, how),
            *(f"{one.sensitivity:.4g}", f"{one.deviation:.4g}", f"{one.epsilon:.4g}", f"{one.delta:g}"),
        )
    return rows


def _tell(content: dict[str, Any], name: str) -> None:
    """The sums, and whether the chain holds."""
    spent, budget, broken = content["spent"], content.get("budget"), content["broken"]
    number = len(content["releases"])
    if not number and broken is None:
        print("nothing has left with noise")
    for job, of in content["jobs"].items():
        print(f"job {job}: {of['releases']} releases in {of['runs']} runs")
    if number:
        print(f"all {number} together: epsilon {spent['epsilon']:.4g} at delta {spent['delta']:g}")
    if budget is not None:
        print(f"budget: epsilon {budget['epsilon']:g} at delta {budget['delta']:g}")
    elif number:
        print("budget: none (privacy.budget)")
    if broken is not None:
        print(f"THE CHAIN IS BROKEN at release {broken['number']}: {broken['reason']}; what follows is not shown")
    elif number:
        print(f"the chain of {name} holds up to {content['last']}")
