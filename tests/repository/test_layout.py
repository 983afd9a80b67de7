"""What holds for every module of the packages."""

from __future__ import annotations

import re
from pathlib import Path

CUSTOM = Path(__file__).resolve().parents[2] / "custom"


def test_nothing_is_reckoned_with_the_time_of_day() -> None:
    """Clocks are set: durations and deadlines need ``time.monotonic``. Certificates, records and files have a date.

    Those who watch a run are told how old its ``progress.json`` is; nothing else depends on that.
    """
    of_day = re.compile(r"\btime\.time\b|\bdatetime\.now\b|\bst_[mca]time\b")
    readers = {
        str(path.relative_to(CUSTOM))
        for path in CUSTOM.rglob("*.py")
        if of_day.search(path.read_text(encoding="utf-8"))
    }
    patches = {f"flare_armour/patches/{name}.py" for name in ("connections", "simulator", "clock", "logs")}
    dates_of_files = {
        "fedshift/cli/watch.py",
        "fedshift_survey/drift/months.py",
        "fedshift/reporting/watch/snapshot.py",
        "fedshift/pacs/received.py",  # images are kept for days, over restarts
    }
    records = {"fedshift/inference/dicom_rtstruct.py", "fedshift_bench/cell_run.py"}
    records |= {"fedshift/cli/checks/kit.py", "fedshift/cli/checks/server.py"}
    records |= {"fedshift/federation/certificate_dates.py"}
    records |= {"fedshift/reporting/trackers.py", "fedshift/federation/site/privacy/ledger.py"}
    records |= {"fedshift/federation/encryption/kit_keys.py", "flare_armour/disabled_sites.py"}
    records |= {"fedshift/mailbox/party.py"}  # a round lasts over many processes
    assert readers == {*records, *dates_of_files, *patches}
