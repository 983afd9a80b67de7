"""What workers that are forked find imported already."""

from __future__ import annotations

import pytest
from conftest import small_image_job

from fedshift.federation.resolve import resolve
from fedshift.tasks.libraries import libraries

COMPILER = "torch._dynamo"
SURFACES = (COMPILER, "scipy.ndimage", "scipy.spatial")


PLAIN = ("network.name=unet", "loss=ce_dice")
TRANSFORMS = "data.augmentation=[{name: monai.RandGaussianNoise}]"


@pytest.mark.parametrize("protocol", ["quick", None], ids=["slices", "patches"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (PLAIN, SURFACES),
        (("network.name=monai.DynUNet", PLAIN[1]), (*SURFACES, "monai")),
        ((PLAIN[0], "loss=monai.DiceLoss"), (*SURFACES, "monai")),
    ],
)
def test_scans_need_monai_for_its_networks_and_losses_only(
    options: tuple[str, ...], expected: tuple[str, ...], protocol: str | None
) -> None:
    assert libraries(resolve("prostate", "fedavg", protocol=protocol, options=options).task) == expected


def test_patches_need_monai_for_its_transforms_and_pictures_need_nothing_of_scans() -> None:
    patches = resolve("prostate", "fedavg", options=(*PLAIN, TRANSFORMS)).task
    assert "patch" in patches.data and libraries(patches) == (*SURFACES, "monai")
    assert libraries(small_image_job("fedavg").task) == (COMPILER,)
