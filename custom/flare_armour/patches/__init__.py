"""Replacements for parts of NVFlare 2.9 that are not public, by what they are about.

Every module opens with what NVFlare does, what that costs, what is done instead, and how to see that NVFlare has fixed
it. Of a fault that others could use it says that they could, and not how.

A patch is applied only if the parts of NVFlare that it replaces or calls look as they did when it was written
(`flare_armour.patch`). Otherwise the run goes on without it, and the log says so in one sentence; but a provisioned
party refuses to run a job without a patch that protects it (`require_protection`).
"""

from __future__ import annotations

from flare_armour.patch import SKIP, NotAsExpectedError, Patch
from flare_armour.patches import (
    clock,
    connections,
    incoming_streams,
    logs,
    messages,
    server_memory,
    stream_shares,
    submissions,
    task_requests,
)

MESSAGES: tuple[Patch, ...] = (
    messages.PATCH,
    messages.MESSAGE_PIECES,
    messages.TEXT,
    incoming_streams.PATCH,
    stream_shares.OUTGOING,
    connections.PATCH,
    logs.LOG_RATE,
    logs.TLS_FAULTS,
    clock.PATCH,
)
"""Of how messages are packed, sent and received, and of the clock: for every process that sends or receives one."""

PATCHES: tuple[Patch, ...] = (*MESSAGES, submissions.PATCH, task_requests.PATCH, server_memory.MEMORY_RELEASE)
"""All that a party may need, each with its kind. Those of FLARE's simulator are in `simulator`."""

PROTECTION = tuple(patch for patch in PATCHES if patch.kind == "protects")
"""Those without which another party can do harm."""


def install(patches: tuple[Patch, ...] = MESSAGES) -> None:
    """Apply these patches in this process, each at most once, where NVFlare looks as expected."""
    for patch in patches:
        patch.install()


def protect() -> None:
    """For every process of a provisioned party, before it has a connection.

    Raises:
        NotAsExpectedError: as `require_protection`.
    """
    install((*MESSAGES, submissions.PATCH))
    require_protection()
    incoming_streams.allow(lambda channel, topic: incoming_streams.LARGEST)


def require_protection() -> None:
    """For a provisioned party, before it takes part in a job.

    Raises:
        NotAsExpectedError: NVFlare does not look as one of the protective patches expects it, or the patch is left out.
    """
    for patch in PROTECTION:
        if not patch.fits():
            raise NotAsExpectedError(
                f"without the patch {patch.name} of NVFlare, {patch.without}: install the version that it is written "
                f"for, and leave {SKIP} empty"
            )
