"""Networks: the authors' numbers, stages that methods can use, names and options that do not exist."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from conftest import GOLDEN, golden, rule_weights
from errors import raises

from fedshift.tasks import networks
from fedshift.tasks.networks.unet import UNet


def test_unet_is_the_papers() -> None:
    net = UNet()
    facts = json.loads((GOLDEN / "fedfa_networks.json").read_text(encoding="utf-8"))["UNet"]
    assert sum(p.numel() for p in net.parameters()) == 7_763_074
    assert [[k, list(v.shape), str(v.dtype)] for k, v in net.state_dict().items()] == facts["state_dict"]


def test_unet_gives_the_authors_outputs() -> None:
    g = golden("unet_forward")
    net = UNet().double()
    rule_weights(net)
    x = torch.from_numpy(g["x"])
    for mode, name in ((False, "y_eval_fresh_bn"), (True, "y_train"), (False, "y_eval_after_one_train_pass")):
        np.testing.assert_allclose(net.train(mode)(x).detach().numpy(), g[name], rtol=1e-8, atol=1e-10, err_msg=name)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = networks.build("unet", {"features": 4}, in_channels=3, n_classes=2, seed=1)
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator must be left as it was"
    torch.manual_seed(6)
    again = networks.build("unet", {"features": 4}, in_channels=3, n_classes=2, seed=1)
    other = networks.build("unet", {"features": 4}, in_channels=3, n_classes=2, seed=2)
    assert torch.equal(first.conv.weight, again.conv.weight) and not torch.equal(first.conv.weight, other.conv.weight)


def test_unet_batch_norms_move_by_the_given_momentum() -> None:
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    moved = {}
    for momentum in (0.1, 0.5):
        net = networks.build("unet", {"features": 4, "bn_momentum": momentum}, in_channels=3, n_classes=2, seed=1)
        net.train()(x)
        norms = [m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d)]
        assert len(norms) == 18 and {norm.momentum for norm in norms} == {momentum}
        moved[momentum] = torch.cat([norm.running_mean for norm in norms])
    torch.testing.assert_close(moved[0.5], 5 * moved[0.1])


def test_the_unet_can_have_harmofls_batch_norm() -> None:
    """The batch's statistics in evaluation, too, and nothing of them in the weights."""
    options = {"features": 4, "norm": "batch_statistics"}
    net = networks.build("unet", options, in_channels=3, n_classes=2, seed=1)
    assert not any("_bn" in key for key in net.state_dict())
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        trained, tested = net.train()(x), net.eval()(x)
        torch.testing.assert_close(tested, trained)
        assert not torch.allclose(net(x[:2]), tested[:2], atol=1e-3), "it depends on the images beside"


@pytest.mark.parametrize(
    ("name", "options", "code", "names"),
    [
        ("unnet", {}, "unknown-network", "'unet'"),
        ("unet", {"feature": 4}, "unknown-option", "'features'"),
        ("unet", {"bn_momentum": 0}, "invalid-value", "bn_momentum"),
        ("unet", {"bn_momentum": 1.5}, "invalid-value", "bn_momentum"),
        ("unet", {"norm": "batch_statistics", "bn_momentum": 0.5}, "no-effect", "norm=batch_statistics"),
        ("unet", {"norm": "instance"}, "invalid-value", "'instance'"),
        ("mnist_cnn", {"size": 15}, "invalid-value", "size"),
        ("digits_cnn", {"size": 15}, "invalid-value", "size"),
    ],
    ids=str,
)
def test_what_is_refused(name: str, options: dict[str, object], code: str, names: str) -> None:
    with raises(code, naming=names):
        networks.build(name, options, in_channels=3, n_classes=2, seed=1)


def test_the_rotated_mnist_network_gives_the_authors_outputs() -> None:
    g = golden("afl_cnn_forward")
    net = networks.build("mnist_cnn", {}, in_channels=1, n_classes=10, seed=0).double()
    assert sum(p.numel() for p in net.parameters()) == 28_938
    rule_weights(net)
    np.testing.assert_allclose(net(torch.from_numpy(g["x"])).detach().numpy(), g["logits"], rtol=1e-10)


def test_the_digits_network_has_the_authors_shapes() -> None:
    facts = json.loads((GOLDEN / "fraug_networks.json").read_text(encoding="utf-8"))["CNN_Digits"]
    with torch.device("meta"):
        net = networks.build("digits_cnn", {}, in_channels=3, n_classes=10, seed=0)
    assert sum(p.numel() for p in net.parameters()) == facts["n_parameters"] == 18_151_370
    assert sorted(map(list, (v.shape for v in net.state_dict().values()))) == sorted(
        shape for _, shape in facts["state_dict"]
    )
