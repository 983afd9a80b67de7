"""Replacements for parts of NVFlare 2.9 that are not public, one file each.

Every file opens with what NVFlare does, what that costs, what is done instead, and how to see that NVFlare has fixed
it. The costs are in docs/performance.md, reproductions of what is slow or wrong in docs/upstream.md. Of a fault that
others could use a file says that they could, and not how.

A patch is applied only if the parts of NVFlare that it replaces or calls look as they did when it was written
(`flare_armour.patches.patch`). Otherwise the run goes on without it, and the log says so in one sentence; but a
provisioned party refuses to run a job without a patch that protects it (`require_protection`).
"""

from __future__ import annotations

from types import ModuleType

from flare_armour.patches import (
    frame_size,
    handshakes,
    incoming_streams,
    job_archives,
    log_rate,
    message_contents,
    message_exits,
    message_pieces,
    message_text,
    numpy_arrays,
    outgoing_streams,
    party_shares,
    return_codes,
    send_window,
    spooled_answers,
    statistics_pools,
    steady_clock,
    tls_faults,
    unpack_in_turn,
    uploads,
)
from flare_armour.patches.patch import SKIP, NotAsExpectedError

MESSAGES: tuple[ModuleType, ...] = (
    message_exits,
    message_contents,
    incoming_streams,
    outgoing_streams,
    frame_size,
    handshakes,
    party_shares,
    statistics_pools,
    log_rate,
    uploads,
    message_text,
    numpy_arrays,
    message_pieces,
    unpack_in_turn,
    spooled_answers,
    send_window,
    steady_clock,
    tls_faults,
)
"""Patches of how messages are packed, sent and received, and of the clock. Each has a `PATCH` and an `apply()`."""

ARCHIVES: tuple[ModuleType, ...] = (job_archives,)
"""Patches of what a provisioned party alone does, and a simulator's worker need not import."""

PROTECTION: tuple[ModuleType, ...] = (
    message_exits,
    return_codes,
    message_contents,
    incoming_streams,
    outgoing_streams,
    frame_size,
    handshakes,
    party_shares,
    statistics_pools,
    log_rate,
    uploads,
    job_archives,
)
"""Patches without which another party can do harm."""

_installed: set[str] = set()


def install(modules: tuple[ModuleType, ...] = MESSAGES) -> None:
    """Apply these patches in this process, each at most once, where NVFlare looks as expected."""
    for module in modules:
        if module.PATCH.name not in _installed and module.PATCH.fits():
            module.apply()
            _installed.add(module.PATCH.name)


def protect() -> None:
    """For every process of a provisioned party, before it has a connection.

    Raises:
        NotAsExpectedError: as `require_protection`.
    """
    install((*MESSAGES, *ARCHIVES))
    require_protection()
    incoming_streams.allow_without_job()


def require_protection() -> None:
    """For a provisioned party, before it takes part in a job.

    Raises:
        NotAsExpectedError: NVFlare does not look as one of the protective patches expects it, or the patch is left out.
    """
    for module in PROTECTION:
        if not module.PATCH.fits():
            raise NotAsExpectedError(
                f"without fedshift's patch {module.PATCH.name} of NVFlare, {module.PATCH.without}: install the "
                f"versions of fedshift's constraints.txt, and leave {SKIP} empty"
            )
