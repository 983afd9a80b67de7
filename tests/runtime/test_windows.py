"""The sliding window: MONAI's numbers, of one volume after the other, and slice by slice."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import pytest
import torch
from monai.inferers.utils import sliding_window_inference

from fedshift.runtime import windows
from fedshift.runtime.windows import AT_ONCE, mirrored, mirrors, sliding, sliding_by_slices, sliding_in_turn

PATCH = (8, 8, 12)


def test_the_sliding_window_puts_volumes_of_any_size_together() -> None:
    x = torch.randn(1, 2, 13, 22, 9, generator=torch.Generator().manual_seed(0))
    seen = []

    def forward(window: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(window.shape[2:]))
        return window * torch.tensor([1.0, -2.0]).reshape(1, 2, 1, 1, 1)

    for mirror in ((), (0, 1, 2)):
        logits = sliding(forward, x, patch=PATCH, overlap=0.5, mirror=mirror)
        torch.testing.assert_close(logits, forward(x), rtol=1e-4, atol=1e-4)
    assert set(seen) == {PATCH, (13, 22, 9)}
    assert mirrors((0, 1)) == [(), (2,), (3,), (2, 3)] and len(mirrors((0, 1, 2))) == 8


def test_mirror_images_are_averaged() -> None:
    x = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    ramp = torch.linspace(0, 1, 8)

    def forward(window: torch.Tensor) -> torch.Tensor:
        return window + ramp

    logits = sliding(forward, x, patch=(8, 8), overlap=0.5, mirror=(0, 1))
    torch.testing.assert_close(logits, x + 0.5)
    torch.testing.assert_close(sliding(forward, x, patch=(8, 8), overlap=0.5, mirror=(0,)), x + ramp)


@pytest.mark.parametrize("patch", [(8, 8), (16, 5)], ids=str)
@pytest.mark.parametrize("size", [(20, 13), (8, 8), (3, 30)], ids=str)
def test_a_stack_of_slices_is_monai_s_bit_for_bit(size: tuple[int, ...], patch: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, kernel = torch.randn(7, 3, *size, generator=generator), torch.randn(2, 3, 3, 3, generator=generator)

    def forward(window: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(window, kernel, padding=1)

    monai = sliding_window_inference(x, patch, AT_ONCE[2], forward, overlap=0.5, mode="gaussian")
    assert torch.equal(sliding(forward, x, patch=patch, overlap=0.5), monai)  # type: ignore[arg-type]


def test_windows_of_several_volumes_share_passes_only_if_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(8, 8, 12), (5, 6, 7), (8, 8, 12), (13, 22, 9), (8, 8, 12), (3, 3, 3)]
    volumes = [torch.randn(1, 2, *shape, generator=generator) for shape in shapes]
    kernel = torch.randn(3, 2, 3, 3, 3, generator=generator)
    passes: list[int] = []
    read: list[int] = []

    def forward(window: torch.Tensor) -> torch.Tensor:
        passes.append(len(window))
        return torch.nn.functional.conv3d(window, kernel, padding=1)

    def reading() -> Iterator[torch.Tensor]:
        for number, volume in enumerate(volumes):
            read.append(number)
            yield volume

    monkeypatch.setattr(windows, "TOGETHER", 5 * prod(PATCH) + 1)
    alone = [sliding(forward, volume, patch=PATCH, overlap=0.5) for volume in volumes]
    passes_alone = passes.copy()
    passes.clear()
    for number, found in enumerate(sliding_in_turn(forward, reading(), patch=PATCH, overlap=0.5)):
        assert read[-1] == number, "on a processor no volume waits for another"
        assert torch.equal(found, alone[number])
    assert passes == passes_alone
    passes.clear()
    together = list(sliding_in_turn(forward, reading(), patch=PATCH, overlap=0.5, together=True))
    assert set(passes[:-1]) == {5} and sum(passes) == sum(passes_alone)
    for found, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mirror", [(), (0, 2)])
@pytest.mark.parametrize("overlap", [0, 0.25, 0.5, 0.7])
@pytest.mark.parametrize(
    "shape", [(40, 20, 30), PATCH, (16, 8, 12), (5, 9, 10), (9, 8, 11), (37, 5, 5), (3, 3, 3)], ids=str
)
def test_the_window_and_its_slices_are_monai_s_bit_for_bit(
    shape: tuple[int, ...], overlap: float, mirror: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, *shape, generator=generator).half()
    kernel, place = torch.randn(3, 2, 3, 3, 3, generator=generator), torch.randn(PATCH, generator=generator)
    seen: list[int] = []

    def forward(window: torch.Tensor) -> torch.Tensor:
        seen.append(len(window))
        return torch.nn.functional.conv3d(window, kernel, padding=1) + place * window[:, :1].mean(
            (2, 3, 4), keepdim=True
        )

    monai = sliding_window_inference(
        x.float(),
        PATCH,
        AT_ONCE[3],
        lambda window: mirrored(forward, window, mirror),
        overlap=overlap,
        mode="gaussian",
        padding_mode="constant",
    )
    passes = seen.copy()
    seen.clear()
    whole = sliding(forward, x.float(), patch=PATCH, overlap=overlap, mirror=mirror)
    assert torch.equal(whole, monai) and seen == passes  # type: ignore[arg-type]
    seen.clear()
    slabs = list(sliding_by_slices(forward, x, patch=PATCH, overlap=overlap, mirror=mirror))
    assert torch.equal(torch.cat(slabs, 1), whole[0])
    assert seen == passes  # no window is predicted twice
    assert max(slab.shape[1] for slab in slabs) <= PATCH[0] * AT_ONCE[3]


@pytest.mark.parametrize("mirror", [(), (0, 1)])
@pytest.mark.parametrize("shape", [(8, 8), (5, 6), (20, 13), (8, 8, 12), (4, 9, 30), (16, 9, 13)], ids=str)
def test_a_predictor_that_returns_a_view_of_its_window_does_not_change_the_scan(
    shape: tuple[int, ...], mirror: tuple[int, ...]
) -> None:
    x = torch.randn(1, 2, *shape, generator=torch.Generator().manual_seed(0))
    before, patch = x.clone(), PATCH[-len(shape) :] if len(shape) == 3 else (8, 8)
    given: list[torch.Tensor] = []

    def forward(window: torch.Tensor) -> torch.Tensor:
        given.append(window)
        return window[:, :1]

    for _ in range(2):
        logits = sliding(forward, x, patch=patch, overlap=0.5, mirror=mirror)
        torch.testing.assert_close(logits, before[:, :1], rtol=1e-4, atol=1e-4)
        assert torch.equal(x, before)
        if len(shape) == 3:
            slabs = torch.cat(list(sliding_by_slices(forward, x, patch=patch, overlap=0.5, mirror=mirror)), 1)
            assert torch.equal(slabs, logits[0]) and torch.equal(x, before)


def test_a_predictor_may_return_the_same_memory_each_time() -> None:
    x, held = torch.randn(1, 1, 20, 13, generator=torch.Generator().manual_seed(0)), torch.ones(16, 1, 8, 8)
    torch.testing.assert_close(
        sliding(lambda window: held[: len(window)], x, patch=(8, 8), overlap=0.5), torch.ones_like(x)
    )
    assert (held == 1).all()
