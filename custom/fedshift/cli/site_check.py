"""What can be said of a kit before it is started: ``fedshift site check``, and the end of ``fedshift site init``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedshift.cli.checks.remark import Remark, any_error, show
from fedshift.cli.display import console

if TYPE_CHECKING:
    from fedshift.flare.kit import Kit


def report(kit: Kit) -> int:
    """What is known of a kit, a line each; 1 if it is not ready."""
    what = "the server" if kit.role == "server" else f"site {kit.name}"
    console.print(f"{what} of project {kit.project} (organisation {kit.organisation})", markup=False)
    ready = not any_error(show(_remarks(kit)))
    console.print("ready" if ready else "not ready", style="green" if ready else "red")
    return 0 if ready else 1


def _remarks(kit: Kit) -> Iterator[Remark]:
    """All that can be said of a kit before it is started; the data are read in full."""
    from fedshift.cli.checks.data import about_data, in_full
    from fedshift.cli.checks.kit import about_certificate, about_settings
    from fedshift.cli.checks.launcher import about_launcher
    from fedshift.cli.checks.machine import about_device, about_disk, about_software, about_start
    from fedshift.cli.checks.server import about_port, ask_server
    from fedshift.flare.kit import key_fault

    yield from about_settings(kit)
    if kit.role == "site":
        yield from about_launcher(kit)
        yield from about_device(kit.local)
        yield from about_data(kit, in_full)
    yield from about_software()
    yield from about_start()
    yield from about_certificate(kit)
    if kit.role == "server":
        yield from about_port(kit)
    elif key_fault(kit) is None:  # without its key a site is not answered
        yield from ask_server(kit).remarks
    yield from about_disk(kit.folder)
