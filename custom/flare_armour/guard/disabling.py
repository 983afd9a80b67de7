"""The console's ``disable_client`` keeps a site out of running jobs too, at once; ``enable_client`` lets it in again.

NVFlare 2.9: ``disable_client`` takes a site's registration away, and not its part in a running job.
Cost: a site that was disabled because it is hostile trains on until the job ends.
Instead: the command also writes the site down in the server's kit (`flare_armour.disabled_sites`) before NVFlare does
anything, and has the site end its jobs. From that moment the gate lets nothing of a disabled site's job pass, whichever
way it goes, in the server's process between jobs and in those of jobs: requests, pieces and answers under way included.
A job's workflow can ask `Protection.disabled`, to leave the site out of the open round and of later ones.
``enable_client`` takes the site off the file, and readmission starts the running job there again.
Fixed in NVFlare when: a job's process at the server refuses a site that is disabled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from nvflare.apis.fl_constant import RunProcessKey
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.hci.server.constants import ConnProps

from flare_armour.disabled_sites import DISABLED
from flare_armour.guard.rules import Message, party
from flare_armour.log_limits import OnceAMinute
from flare_armour.patch import Patch

log = logging.getLogger("flare_armour")

LONGEST, MOST = 120, 20
"""Characters of a refusal in the log, and different ones that are logged."""
REFUSED = OnceAMinute(most=MOST)

COMMANDS = "nvflare.private.fed.server.training_cmds:TrainingCommandModule"


PATCH = Patch(
    name="disabling",
    kind="protects",
    without="a disabled site takes part in a running job until it ends",
    calls={"nvflare.private.fed.server.job_runner:JobRunner.abort_client_run": "self, job_id, client_sites, fl_ctx"},
)


@PATCH.replaces(f"{COMMANDS}.disable_client", "991550f718cc")
def _disable_client(disable: Callable[..., None], self: Any, conn: Any, args: list[str]) -> None:
    names, person = args[1:], conn.get_prop(ConnProps.USER_NAME, "")
    DISABLED.add(names, by=person)
    log.warning("disabled by %s: %s; no part of a running job is theirs from now on", person, ", ".join(names))
    _end_jobs(conn.app_ctx, names)
    disable(self, conn, args)


@PATCH.replaces(f"{COMMANDS}.enable_client", "69b08406617a")
def _enable_client(enable: Callable[..., None], self: Any, conn: Any, args: list[str]) -> None:
    names, person = args[1:], conn.get_prop(ConnProps.USER_NAME, "")
    enable(self, conn, args)
    DISABLED.remove(names)
    text = "enabled by %s: %s; a site that is connected joins a running job with the round that opens next"
    log.warning(text, person, ", ".join(names))


def refusal(message: Message) -> str | None:
    """Why a message is dropped: it comes from a disabled site's process of a job, or goes there.

    What a site's process between jobs says to that of the server, such as heartbeats, NVFlare refuses by itself; the
    site hears why (`note_refusal`).
    """
    disabled = DISABLED.all()
    ends = [party(message.origin), party(message.destination)] if disabled else []
    if not any(end is not None and end.job is not None for end in ends):
        return None
    root = next((end.root for end in ends if end is not None and end.root in disabled), None)
    return None if root is None else f"site {root} is disabled {disabled[root]}"


def note_refusal(message: Any) -> None:
    """At a site: say in its log why the server refuses it. NVFlare says no more than that a heartbeat has failed."""
    if message.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.UNAUTHENTICATED:
        why = str(message.get_header(MessageHeaderKey.ERROR))[:LONGEST]
        if REFUSED.due(why) is not None:
            log.warning("the server refuses this site: %a", why)


def _end_jobs(engine: Any, names: list[str]) -> None:
    """Ask the sites to end their running jobs. They may do as they like: nothing that they send is taken."""
    connected = {client.name for client in engine.get_clients()}
    with engine.new_context() as fl_ctx:
        for job_id, running in list(engine.run_processes.items()):
            running_at = {client.name for client in running[RunProcessKey.PARTICIPANTS].values()}
            sites = [name for name in names if name in running_at & connected]
            if sites:
                engine.job_runner.abort_client_run(job_id, sites, fl_ctx)
