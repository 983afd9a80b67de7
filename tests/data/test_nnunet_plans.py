"""Plans of nnU-Net: axes, what is inherited, how volumes are prepared, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from errors import raises
from nnunetfiles import write_plans

from fedshift.data.nnunet_plans import read_plans


def test_a_configuration_prepares_volumes_as_a_task_does(tmp_path: Path) -> None:
    plans = read_plans(write_plans(tmp_path / "nnUNetPlans.json"))
    assert plans.configuration().data() == {
        "dims": 3,
        "patch": [16, 24, 24],
        "spacing": [3.0, 1.0, 1.0],
        "convention": "nnunet",
        "normalise": "volume",
    }
    assert plans.configuration("3d_small").batch == 4
    assert not plans.axes_known
    assert read_plans(write_plans(tmp_path / "a.json", reader="SimpleITKIOWithReorient")).axes_known


def test_ct_has_the_percentiles_of_the_plans(tmp_path: Path) -> None:
    data = read_plans(write_plans(tmp_path / "p.json", scheme="CTNormalization")).configuration().data()
    assert data["fixed"] == {"low": -100.0, "high": 200.0, "mean": 50.0, "std": 20.0}


def test_axes_are_turned_to_slices_rows_and_columns(tmp_path: Path) -> None:
    """Files whose first axis goes from side to side, which nnU-Net has put last."""
    path = write_plans(tmp_path / "p.json", patch=(16, 24, 40), spacing=(3.0, 1.0, 0.5), forward=(2, 1, 0))
    configuration = read_plans(path).turned((2, 1, 0)).configuration()
    assert configuration.patch == (16, 24, 40) and configuration.spacing == (3.0, 1.0, 0.5)
    other = read_plans(path).turned((0, 1, 2)).configuration()
    assert other.patch == (40, 24, 16) and other.spacing == (0.5, 1.0, 3.0)
    assert other.architecture["arch_kwargs"]["kernel_sizes"][0] == [3, 3, 1]


@pytest.mark.parametrize(
    ("code", "configuration", "changes"),
    [
        ("nnunet-cascade", "3d_cascade_fullres", {}),
        ("nnunet-plans", "2d", {}),
        ("nnunet-plans", "3d_fullres", {"resampling_fn_data": "resample_torch_fornnunet"}),
        ("nnunet-plans", "3d_fullres", {"batch_size": None}),
    ],
)
def test_what_fedshift_does_not_prepare_is_refused(
    tmp_path: Path, code: str, configuration: str, changes: dict[str, Any]
) -> None:
    plans = read_plans(write_plans(tmp_path / "p.json", **changes))
    with raises(code, naming="p.json"):
        plans.configuration(configuration)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("[]")
    for name in ("p.json", "missing.json", "nnUNetPlansv2.1.pkl"):
        with raises("nnunet-plans", naming=name):
            read_plans(tmp_path / name)
    with raises("nnunet-plans", naming="Tiff3DIO"):
        read_plans(write_plans(tmp_path / "t.json", reader="Tiff3DIO"))
    with raises("nnunet-plans", naming="RescaleTo01"):
        read_plans(write_plans(tmp_path / "r.json", scheme="RescaleTo01Normalization")).configuration().data()


def test_a_folder_in_place_of_the_plans_names_those_in_it(tmp_path: Path) -> None:
    with raises("nnunet-plans", naming=(str(tmp_path), "such as nnUNetPlans.json")):
        read_plans(tmp_path)
    for name in ("nnUNetResEncUNetMPlans.json", "nnUNetPlans.json"):
        write_plans(tmp_path / name)
    with raises("nnunet-plans", naming="nnUNetPlans.json, nnUNetResEncUNetMPlans.json"):
        read_plans(tmp_path)
