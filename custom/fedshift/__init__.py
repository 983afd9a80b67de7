"""fedshift: federated learning under feature shift, on NVIDIA FLARE and MONAI."""

import os
from pathlib import Path

__version__ = "0.1.0"

# Large tensors in huge pages (docs/performance.md). Torch reads this once, when it first takes memory, so it is here.
if Path("/sys/kernel/mm/transparent_hugepage").is_dir():
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
