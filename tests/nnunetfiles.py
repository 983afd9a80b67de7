"""Plans as nnU-Net writes them."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESAMPLING = {"order": 3, "order_z": 0, "force_separate_z": None}


def plans(
    *,
    patch: Sequence[int] = (16, 24, 24),
    spacing: Sequence[float] = (3.0, 1.0, 1.0),
    forward: Sequence[int] = (0, 1, 2),
    reader: str = "SimpleITKIO",
    scheme: str = "ZScoreNormalization",
    **changes: Any,
) -> dict[str, Any]:
    """A plans file's content, of one channel; ``changes`` are of its configuration."""
    resample = "resample_data_or_seg_to_shape"
    fullres = {
        "data_identifier": "nnUNetPlans_3d_fullres",
        "preprocessor_name": "DefaultPreprocessor",
        "batch_size": 2,
        "patch_size": [*patch],
        "spacing": [*spacing],
        "normalization_schemes": [scheme],
        "use_mask_for_norm": [False],
        "resampling_fn_data": resample,
        "resampling_fn_data_kwargs": {"is_seg": False, **RESAMPLING},
        "resampling_fn_seg": resample,
        "resampling_fn_seg_kwargs": {"is_seg": True, **RESAMPLING, "order": 1},
        "resampling_fn_probabilities": resample,
        "resampling_fn_probabilities_kwargs": {"is_seg": False, **RESAMPLING, "order": 1},
        "architecture": {
            "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
            "arch_kwargs": {
                "n_stages": 3,
                "features_per_stage": [32, 64, 128],
                "kernel_sizes": [[1, 3, 3], [3, 3, 3], [3, 3, 3]],
                "strides": [[1, 1, 1], [1, 2, 2], [2, 2, 2]],
                "n_conv_per_stage": [2, 2, 2],
                "n_conv_per_stage_decoder": [2, 2],
            },
        },
        "batch_dice": False,
    }
    numbers = {"mean": 50.0, "std": 20.0, "percentile_00_5": -100.0, "percentile_99_5": 200.0}
    return copy.deepcopy(
        {
            "dataset_name": "Dataset004_Hippocampus",
            "plans_name": "nnUNetPlans",
            "image_reader_writer": reader,
            "transpose_forward": [*forward],
            "configurations": {
                "3d_fullres": fullres | changes,
                "3d_small": {"inherits_from": "3d_fullres", "batch_size": 4},
                "3d_cascade_fullres": {"inherits_from": "3d_fullres", "previous_stage": "3d_lowres"},
            },
            "foreground_intensity_properties_per_channel": {"0": numbers},
        }
    )


def write_plans(path: Path, **options: Any) -> Path:
    """Write `plans`; returns ``path``."""
    path.write_text(json.dumps(plans(**options)), encoding="utf-8")
    return path
