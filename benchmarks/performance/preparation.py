"""Preparation of volumes beside a plain loop over SimpleITK that reads, orients and writes the same files.

    python -m benchmarks.performance.preparation --source Task04_Hippocampus

Processor seconds, since other work on the machine does not count in them. The loop checks nothing; preparation reads
each file's checksum, looks for NaN, compares the grids of image and mask, hashes the voxels and writes a manifest. In
its other form it simulates four scanners as well.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import SimpleITK as sitk  # noqa: N813 - its customary name

from benchmarks import frame
from data_prep.hippocampus import plan_volumes
from data_prep.volumes import write_volumes
from fedshift.data.scans import ORIENTATION

PLAIN = "plain loop"


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("--source", type=Path, required=True, help="the Decathlon's hippocampus task, unpacked")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    measures = {
        PLAIN: lambda: timed(lambda out: plain(args.source, out)),
        "prepare": lambda: timed(lambda out: prepare(args.source, out, simulate=False)),
        "prepare --simulate": lambda: timed(lambda out: prepare(args.source, out, simulate=True)),
    }
    seconds = frame.in_turn(measures, args.repeats)
    ratios = {name: frame.ratios(told, seconds[PLAIN]) for name, told in seconds.items() if name != PLAIN}
    content = {"volumes": plan_volumes(args.source).total, "cpu_seconds": seconds, "ratios": ratios}
    frame.write_measured("preparation", content)
    print({name: median(told["repeats"]) for name, told in ratios.items()})


def timed(work: Callable[[Path], None]) -> float:
    """Processor seconds of work that writes to a folder."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        work(Path(folder))
        return time.process_time() - started


def plain(source: Path, out: Path) -> None:
    """Read, orient and write every image and mask."""
    for folder in ("imagesTr", "labelsTr"):
        (out / folder).mkdir()
        for file in sorted((source / folder).glob("*.nii.gz")):
            image = sitk.DICOMOrient(sitk.ReadImage(str(file)), ORIENTATION)
            sitk.WriteImage(image, str(out / folder / file.name), useCompression=True)


def prepare(source: Path, out: Path, *, simulate: bool) -> None:
    """What ``fedshift data prepare hippocampus`` does."""
    write_volumes(plan_volumes(source, simulate=simulate), out)


if __name__ == "__main__":
    main()
