"""What workers that are forked find imported already."""

from __future__ import annotations

import pytest
from conftest import small_image_job

from fedshift.federation.resolve import resolve
from fedshift.tasks.libraries import libraries

COMPILER = "torch._dynamo"
SURFACES = (COMPILER, "scipy.ndimage", "scipy.spatial")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), SURFACES),
        (("network.name=monai.DynUNet",), (*SURFACES, "monai")),
        (("loss=monai.DiceLoss",), (*SURFACES, "monai")),
    ],
)
def test_slices_need_monai_for_its_networks_and_losses_only(
    options: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert libraries(resolve("prostate", "fedavg", protocol="quick", options=options).task) == expected


def test_patches_are_put_together_by_monai_and_pictures_need_neither() -> None:
    patches = resolve("prostate", "fedavg", options=("network.name=unet", "loss=ce_dice")).task
    assert "patch" in patches.data and libraries(patches) == (*SURFACES, "monai")
    assert libraries(small_image_job("fedavg").task) == (COMPILER,)
