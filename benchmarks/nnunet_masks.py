"""In how many voxels do nnU-Net's masks of an exported model differ from fedshift's?

A model is exported (``fedshift export MODEL --nnunet RESULTS``), the same scans are predicted by nnU-Net
(``nnUNetv2_predict_from_modelfolder``) and by ``fedshift predict``, and voxels are compared:

    python benchmarks/nnunet_masks.py THEIRS OURS --data hippocampus --what "…" --out FILE

``--single THEIRS``: masks of an nnU-Net that assembles logits in single precision (``torch.half = torch.float32``
before it is imported), which tells whether half precision is all that differs.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import frame
import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name


def main() -> int:
    """Compare the masks, write the file."""
    parser = frame.parser(__doc__)
    parser.add_argument("theirs", type=Path)
    parser.add_argument("ours", type=Path)
    parser.add_argument("--single", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--what", required=True, help="the model and the scans, in a sentence")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    record: dict[str, Any] = {
        "what": args.what,
        "command": " ".join(["python benchmarks/nnunet_masks.py", *map(frame._word, sys.argv[1:])]),
        "versions": {"nnunetv2": "2.8.1", "torch": version("torch")},
        **_compared(args.theirs, args.ours),
    }
    if args.single is not None:
        record["in single precision"] = _compared(args.single, args.ours)
    frame.write(args.out or frame.RESULTS / "nnunet" / f"masks_{args.data}.json", record)
    return 0


def _compared(theirs: Path, ours: Path) -> dict[str, Any]:
    total = different = foreground = cases = 0
    for file in sorted(theirs.glob("*.nii.gz")):
        (other,) = ours.glob(f"{file.name.removesuffix('.nii.gz')}_0000_mask.nii.gz")
        first, second = (sitk.GetArrayFromImage(sitk.ReadImage(str(path))) for path in (file, other))
        total, cases = total + first.size, cases + 1
        different += int(np.count_nonzero(first != second))
        foreground += int(np.count_nonzero(first))
    share = float(f"{different / total:.3g}")
    return {"cases": cases, "voxels": total, "foreground": foreground, "different": different, "share": share}


if __name__ == "__main__":
    raise SystemExit(main())
