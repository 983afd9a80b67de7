"""A kit: the owner's settings, key and certificate, and who may read and write its files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fedshift.cli.checks.remark import Remark
from fedshift.data.locate import read_settings
from fedshift.flare.kit import CERTIFICATE, is_root, key_fault
from fedshift.flare.kit_files import faults
from fedshift.schema.packages import installed
from fedshift.schema.policy import Policy

if TYPE_CHECKING:
    from fedshift.flare.kit import Kit

OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO
"""What a file's mode gives to others than its owner."""


def about_listed_packages(kit: Kit) -> Iterator[Remark]:
    """The packages that a site's policy lists, against those that are installed."""
    for name, spec in (read_settings(kit.local).privacy or Policy()).packages.items():
        installed_spec = installed(name).spec
        if installed_spec == spec:
            yield Remark("ok", "packages", f"{name} {spec} is installed as the policy lists it")
        else:
            text = (
                f"the policy lists {name} {spec}, and {installed_spec} is installed: no job can use it until they agree"
            )
            yield Remark("error", "packages", text)


def about_settings(kit: Kit) -> Iterator[Remark]:
    settled = True
    for fault in faults(kit):
        settled = False
        yield Remark("error" if fault.grave else "warning", "settings", fault.sentence)
    if settled:
        stays = ", no log leaves" if kit.role == "site" else ""
        yield Remark("ok", "settings", f"only fedshift's components are built, no job brings code{stays}")


def about_certificate(kit: Kit) -> Iterator[Remark]:
    """Whether the key fits, and until when the certificate and the project's root count."""
    no_key = key_fault(kit)
    if no_key is not None:
        yield Remark("error", "certificate", no_key)
    now = datetime.now(UTC)
    fault, soon = kit.certificate.fault(now), kit.certificate.notice(now)
    if fault is not None:
        yield Remark("error", "certificate", fault)
    elif soon is not None:
        yield Remark("warning", "certificate", soon)
    else:
        yield Remark("ok", "certificate", f"{kit.certificate}, {kit.certificate.days(now)} days left")
    if kit.root.notice(now) is not None:
        text = f"the root, {kit.root}: when it ends no certificate counts, and all need new kits of the project's owner"
        yield Remark("error" if kit.root.fault(now) else "warning", "certificate", text)


def about_permissions(kit: Kit) -> Iterator[Remark]:
    """Whether others can read the key, and this user can write the kit."""
    key = kit.folder / "startup" / f"{CERTIFICATE[kit.role]}.key"
    if os.name == "nt":
        yield Remark("note", "permissions", f"not checked on Windows: see that only the party's user can read {key}")
        return
    wrong = False
    if key.exists() and key.stat().st_mode & OTHER_USERS:
        wrong = True
        yield Remark("error", "permissions", f"{key} can be read by other users of this machine: chmod 600 {key}")
    for folder in (kit.folder, kit.local):
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            wrong = True
            text = f"{folder} cannot be written by this user, as a party must: see to its owner and its permissions"
            yield Remark("error", "permissions", text)
    if is_root():
        text = "checked as root, who may do everything: run this as the user that the party runs as"
        yield Remark("note", "permissions", text)
    elif not wrong:
        yield Remark("ok", "permissions", "the key is for this user alone, and the kit can be written")
