"""FedWon against plain calculations of its formulas, in predictions and exports as in training, and what it is for."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_context, make_image_site, small_image_job, small_job
from torch import Tensor, nn
from torch.nn import functional

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.inference import export
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice, make_ready
from fedshift.methods import fedwon
from fedshift.methods.chain import ClientChain
from fedshift.methods.method_set import MethodSet
from fedshift.schema.results import LAST
from fedshift.tasks import networks
from fedshift.tasks.kinds import build_task
from fedshift.tasks.last_layers import last_layers

LAYERS: list[tuple[nn.Module, float]] = [  # and the weights that a pixel of the output sees
    (nn.Conv2d(3, 4, 3), 27),
    (nn.Conv2d(4, 6, 3, groups=2), 18),
    (nn.Conv3d(2, 4, (1, 3, 3), bias=False), 18),
    (nn.ConvTranspose2d(5, 3, 2, stride=2), 5),
    (nn.ConvTranspose2d(4, 6, 3, groups=2), 18),
    (nn.ConvTranspose3d(4, 2, 2, stride=2), 4),
]


def rows_of(layer: Any) -> list[tuple[Any, ...]]:
    """Where the weights of each output channel are."""
    out, groups = layer.out_channels, layer.groups
    if not layer.transposed:
        return [(number,) for number in range(out)]
    inputs, each = layer.in_channels // groups, out // groups
    return [(slice(g * inputs, (g + 1) * inputs), number) for g in range(groups) for number in range(each)]


def plainly(layer: Any, fan_in: float, gamma: float) -> np.ndarray:
    """Ŵ, output by output."""
    w = layer.weight.detach().double().numpy().copy()
    for place in rows_of(layer):
        row = w[place]
        w[place] = gamma * (row - row.mean()) / (row.std() * np.sqrt(fan_in))
    return w


@pytest.mark.parametrize(("layer", "fan_in"), LAYERS, ids=lambda value: type(value).__name__)
def test_weights_are_standardised_by_output_channel(layer: Any, fan_in: float) -> None:
    found = fedwon.standardised(layer, layer.weight.double(), gamma=1.3).detach().numpy()
    np.testing.assert_allclose(found, plainly(layer, fan_in, 1.3), rtol=1e-10)


def test_features_keep_their_variance_through_relu_and_convolution_whatever_the_weights_mean() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 32, 24, 24)
    for layer, seen in (
        (nn.Conv2d(32, 64, 3, bias=False), x.relu()),
        (nn.ConvTranspose2d(32, 64, 2, stride=2, bias=False), x / fedwon.RELU_GAIN),
    ):
        with torch.no_grad():
            layer.weight.copy_(fedwon.standardised(layer, 7 + layer.weight, gamma=fedwon.RELU_GAIN))
            y = layer(seen)
        assert float(y.var()) == pytest.approx(1, rel=0.1) and float(y.mean()) == pytest.approx(0, abs=0.1)


# --- the network ----------------------------------------------------------------------------------------


class Shift(nn.Module):
    """What is left of a norm."""

    def __init__(self, scale: Tensor | None, bias: Tensor) -> None:
        super().__init__()
        self.scale, self.bias = scale, bias

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *[1] * (x.dim() - 2))
        return (x if self.scale is None else x * self.scale.reshape(shape)) + self.bias.reshape(shape)


def without_norms(net: nn.Module, *, learned: bool) -> nn.Module:
    """A copy whose convolutions have standardised weights, and whose norms are shifts."""
    net = copy.deepcopy(net)
    last = {id(layer) for layer in last_layers(net)}
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                setattr(module, name, Shift(child.weight if learned else None, child.bias))
            elif isinstance(child, nn.Conv2d | nn.ConvTranspose2d) and id(child) not in last:
                seen = child.weight[0].numel()
                if child.transposed:
                    seen = child.in_channels * int(np.prod(child.kernel_size)) // int(np.prod(child.stride))
                child.weight.data = torch.from_numpy(plainly(child, seen, fedwon.RELU_GAIN)).float()
    return net


def varied(name: str, **options: Any) -> nn.Module:
    """A network whose norms have scales and shifts of their own."""
    net = networks.build(name, options, in_channels=3, n_classes=3, seed=0)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -1, 1)
    return net


@pytest.mark.parametrize("gain", ["constant", "learned"])
@pytest.mark.parametrize(("name", "options"), [("unet", {"features": 4}), ("digits_cnn", {"size": 16, "width": 4})])
def test_a_network_is_the_one_without_norms(name: str, options: dict[str, Any], gain: str) -> None:
    net = varied(name, **options)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    x = torch.rand(4, 3, 16, 16)
    normal = net.eval()(x)
    handles = fedwon.Client(fedwon.Config(gain=gain)).attach(net, make_context("fedwon", net))
    expected = without_norms(net, learned=gain == "learned")(x)
    assert not torch.allclose(expected, normal, rtol=0.1)
    for training in (True, False):
        torch.testing.assert_close(net.train(training)(x), expected, rtol=1e-3, atol=1e-4)
    alone = torch.cat([net.train()(one) for one in x.split(1)])
    torch.testing.assert_close(alone, expected, rtol=1e-3, atol=1e-4, msg="no image depends on others of its batch")
    functional.cross_entropy(net(x), torch.zeros(len(x), *expected.shape[2:], dtype=torch.int64)).backward()
    unused = {key for key, p in net.named_parameters() if p.grad is None}
    scales = {key for key, p in net.named_parameters() if p.dim() == 1 and key.endswith("weight")}
    assert unused == (scales if gain == "constant" else set())
    assert net.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items()), (
        "counters and statistics too"
    )
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(net.eval()(x), normal, rtol=0, atol=0)


def test_an_activation_in_place_does_not_change_what_goes_around_a_norm() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.relu = nn.BatchNorm2d(2, affine=False), nn.ReLU(inplace=True)
            self.head = nn.Conv2d(2, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(x + self.relu(self.norm(x)))
            return result

    net, x = Residual(), torch.randn(2, 2, 4, 4)
    kept = x.clone()
    fedwon.Client(fedwon.Config()).attach(net, make_context("fedwon", net))
    torch.testing.assert_close(net(x), net.head(kept + kept.relu()))


def test_all_convolutions_but_the_last_layers_are_standardised() -> None:
    net = networks.build("monai.BasicUNet", {"features": [4, 4, 4, 4, 4, 4]}, in_channels=1, n_classes=3, seed=0)
    every = {key for key, module in net.named_modules() if isinstance(module, nn.Conv2d | nn.ConvTranspose2d)}
    names = {id(module): key for key, module in net.named_modules()}
    assert {names[id(layer)] for layer in fedwon.convolutions(net)} == every - {"final_conv"}


# --- gradients ------------------------------------------------------------------------------------------


def agc(weight: np.ndarray, gradient: np.ndarray, clip: float) -> np.ndarray:
    """Of one unit."""
    most = clip * max(np.sqrt((weight**2).sum()), 1e-3)
    norm = np.sqrt((gradient**2).sum())
    return gradient * most / norm if norm > most else gradient


@pytest.mark.parametrize("layer", [layer for layer, _ in LAYERS] + [nn.Linear(5, 3)], ids=lambda v: type(v).__name__)
def test_gradients_are_clipped_by_the_size_of_the_weights(layer: Any) -> None:
    rng = np.random.default_rng(0)
    w = layer.weight.detach().double()
    scale = rng.choice([0.01, 1.0], (w.shape[0], w.shape[1], *[1] * (w.dim() - 2)))
    g = rng.normal(size=w.shape) * (scale if getattr(layer, "transposed", False) else scale[:, :1])
    expected = g.copy()
    for place in rows_of(layer) if hasattr(layer, "groups") else range(len(w)):
        expected[place] = agc(w.numpy()[place], g[place], 0.5)
    found = fedwon.clipped(layer, w, torch.from_numpy(g), clip=0.5).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert not np.allclose(found, g)
    bias, slope = torch.zeros(3).double(), torch.tensor([3.0, 0.0, 4.0]).double()
    np.testing.assert_allclose(fedwon.clipped(layer, bias, slope, clip=0.5).numpy(), [0.0003, 0, 0.0004])
    assert not fedwon.clipped(layer, w, torch.zeros_like(w), clip=0.5).any()


@pytest.mark.parametrize("clip", [0.01, None])
def test_all_but_the_last_layers_gradients_are_clipped(clip: float | None) -> None:
    net = varied("unet", features=4)
    ctx = make_context("fedwon", net)
    client = fedwon.Client(fedwon.Config(clip=clip))
    client.attach(net, ctx)
    client.begin(None, ctx)  # type: ignore[arg-type]
    (net(torch.rand(2, 3, 16, 16)).square().sum() * 1e3).backward()
    before = {key: p.grad.clone() for key, p in net.named_parameters() if p.grad is not None}
    client.gradients(ctx)
    after = {key: p.grad for key, p in net.named_parameters() if p.grad is not None}
    changed = {key for key, gradient in after.items() if not torch.equal(gradient, before[key])}
    assert changed == (set() if clip is None else before.keys() - {"conv.weight", "conv.bias"})


# --- jobs -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A model of three sites of pictures in different scalings, and the sites' results."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("fedwon")
    data = {s: make_image_site(root, s, gain=g, offset=o) for s, g, o in (("A", 1, 0), ("B", 0.4, 0), ("C", 1.4, -30))}
    job = small_image_job("fedwon", "fedwon.clip=1.28", "schedule.rounds=6", "schedule.batch_size=4")
    server = run_in_process(job, data, root / "run")
    return root / "run" / LAST, server.results


@pytest.mark.slow
def test_it_learns_in_small_batches_from_sites_that_differ(trained: tuple[Path, Any]) -> None:
    final = trained[1].final.last
    assert min(splits["val"]["accuracy"] for splits in final.sites.values()) > 0.8
    content = read_model_file(trained[0])
    statistics = {key: value for key, value in content["weights"].items() if "running_" in key}
    assert statistics and all(float(value.std()) == 0 for value in statistics.values()), "as they were initialised"


@pytest.mark.slow
def test_a_prediction_and_every_export_are_the_trained_network(trained: tuple[Path, Any], tmp_path: Path) -> None:
    model = open_model(trained[0])
    ready = make_ready(model, Choice(), device="cpu")
    net = model.task.network().eval()
    net.load_state_dict(model.weights)
    x = torch.rand(4, 3, 16, 16)
    with torch.no_grad():
        normal = net(x)
        fedwon.Client(fedwon.Config()).attach(net, make_context("fedwon", net))
        expected = net(x)
        torch.testing.assert_close(ready.predictor(x), expected, rtol=0, atol=0)
    assert not torch.allclose(expected, normal, atol=0.1)
    assert export.write_torchscript(ready, tmp_path / "model.ts") < 1e-4
    assert export.write_torch_export(ready, tmp_path / "model.pt2") < 1e-4
    loaded = torch.jit.load(tmp_path / "model.ts")  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loaded(x), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.export.load(tmp_path / "model.pt2").module()(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_onnx_too(trained: tuple[Path, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = open_model(trained[0])
    assert export.write_onnx(make_ready(model, Choice(), device="cpu"), tmp_path / "model.onnx") < 1e-4


def test_a_networks_last_layers_are_found_without_fedfas_draws() -> None:
    job = small_job(
        *("fedfa+fedwon", "network.name=monai.BasicUNet", "network.options={features:[4,4,4,4,4,4]}", "fedfa.p=1")
    )
    net = build_task(job).network()
    run = make_context("fedwon", net).run
    for handle in ClientChain(MethodSet(job, net), run, {}).attach(net):
        handle.remove()
    assert run.generators == {}
