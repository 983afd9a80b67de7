"""FedFA against the authors' numbers, the paper's formulas, and its identities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import Samples, golden, make_context, rule_weights

from fedshift.methods import fedfa
from fedshift.tasks.networks.unet import UNet


class Recorded:
    """Replaces a layer's generator: returns recorded noise instead of random draws."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, noise: list[np.ndarray]) -> None:
        draws = iter(noise)
        monkeypatch.setattr(fedfa.torch, "randn", lambda *_a, **_k: torch.from_numpy(next(draws)))


def layer_for(config: fedfa.Config, channels: int) -> fedfa.FeatureAugmentation:
    net = torch.nn.Identity().train()
    return fedfa.FeatureAugmentation(1, channels, net, config, make_context("fedfa", net))


@pytest.mark.parametrize("case", ["init", "custom"])
def test_layer_gives_the_released_output_gradient_and_running_statistics(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = golden("ffa_forward")
    Recorded(monkeypatch, [g[f"{case}_noise_mu"], g[f"{case}_noise_sigma"]])
    layer = layer_for(fedfa.Config(variant="released", p=1.0), 5)
    layer.gamma_mean, layer.gamma_std = (torch.from_numpy(g[f"{case}_gamma_{s}"]) for s in ("mu", "sigma"))
    layer.running_mean, layer.running_std = layer.running_mean.double(), layer.running_std.double()
    x = torch.from_numpy(g["x"]).requires_grad_()
    y = layer(x)
    (y * torch.from_numpy(g["loss_weight"])).sum().backward()
    np.testing.assert_allclose(y.detach().numpy(), g[f"{case}_y"], rtol=1e-10)
    np.testing.assert_allclose(x.grad.numpy(), g[f"{case}_grad_x"], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(layer.running_mean.numpy(), g[f"{case}_running_mean_after"], rtol=1e-10)
    np.testing.assert_allclose(layer.running_std.numpy(), g[f"{case}_running_std_after"], rtol=1e-10)


def test_layer_gives_the_papers_output() -> None:
    g = golden("ffa_forward")
    x = torch.from_numpy(g["x"])
    gamma = [fedfa.channel_weights(g[f"custom_running_var_{s}"], eps=0.0) for s in ("mean", "std")]
    np.testing.assert_allclose(gamma[0], g["paper_custom_gamma_mu"], rtol=1e-12)
    np.testing.assert_allclose(gamma[1], g["paper_custom_gamma_sigma"], rtol=1e-12)
    statistics = fedfa.feature_statistics(x, eps=0.0, unbiased=False)
    spread = [
        ((torch.from_numpy(c) + 1) * fedfa.batch_variance(s, eps=0.0, unbiased=False)).sqrt()
        for c, s in zip(gamma, statistics, strict=True)
    ]
    noise = [torch.from_numpy(g[f"custom_noise_{s}"]) for s in ("mu", "sigma")]
    y = fedfa.augment(x, *statistics, (spread[0], spread[1]), (noise[0], noise[1]))
    np.testing.assert_allclose(y.numpy(), g["paper_custom_y"], rtol=1e-10)


@pytest.mark.parametrize(
    ("fusion", "expected"), [("local", "fedfa_c_y"), ("random", "fedfa_r_lambda0p5_y"), ("direct", "direct_fusion_y")]
)
def test_ablations(fusion: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    g, variants = golden("ffa_forward"), golden("ffa_variants")
    Recorded(monkeypatch, [g["custom_noise_mu"], g["custom_noise_sigma"]])
    layer = layer_for(fedfa.Config(variant="released", fusion=fusion, p=1.0), 5)
    layer.gamma_mean = torch.from_numpy(g["custom_running_var_mean"])
    layer.gamma_std = torch.from_numpy(g["custom_running_var_std"])
    y = layer(torch.from_numpy(g["x"]))
    np.testing.assert_allclose(y.numpy(), variants[expected], rtol=1e-10)


def test_released_server_makes_every_channel_weight_one_and_the_papers_does_not() -> None:
    g = golden("fedfa_server_gamma")
    for layer in ("l1", "l2"):
        for name in ("mean", "std"):
            stack = g[f"client_running_{name}_{layer}"]
            scalar = fedfa.site_variance(stack, scalar=True)
            np.testing.assert_allclose(scalar, g[f"code_server_running_var_{name}_{layer}"], rtol=1e-6)
            released = fedfa.channel_weights(scalar, eps=1e-6)
            np.testing.assert_allclose(released, g[f"code_gamma_{name}_{layer}"], rtol=1e-6)
            variance = fedfa.site_variance(stack, scalar=False)
            np.testing.assert_allclose(variance, g[f"perchannel_var_biased_{name}_{layer}"], rtol=1e-12)
            paper = fedfa.channel_weights(variance, eps=0.0)
            np.testing.assert_allclose(paper, g[f"paper_gamma_{name}_{layer}"], rtol=1e-12)
            assert paper.sum() == pytest.approx(len(paper))
            assert paper.std() > 0.1


def test_one_site_gives_weight_one_and_no_division_by_zero() -> None:
    np.testing.assert_allclose(fedfa.channel_weights(np.zeros(4), eps=1e-6), 1.0)


@pytest.mark.slow
def test_unet_with_all_layers_gives_the_released_networks_output(monkeypatch: pytest.MonkeyPatch) -> None:
    g = golden("unet_fedfa_forward")
    Recorded(monkeypatch, [g[f"noise_{j}_{s}"] for j in range(1, 6) for s in ("mu", "sigma")])
    net = UNet().double()
    rule_weights(net)
    client = fedfa.Client(fedfa.Config(variant="released", p=1.0))
    handles = client.attach(net, make_context("fedfa", net))
    layers = client._layers
    for layer in layers.values():
        layer.running_mean, layer.running_std = layer.running_mean.double(), layer.running_std.double()
    x = torch.from_numpy(g["x"])
    np.testing.assert_allclose(net.eval()(x).detach().numpy(), g["y_eval_fresh_bn"], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(net.train()(x).detach().numpy(), g["y_train"], rtol=1e-8, atol=1e-10)
    for j, layer in layers.items():
        np.testing.assert_allclose(layer.running_mean.numpy(), g[f"running_mean_{j}"], rtol=1e-8)
        np.testing.assert_allclose(layer.running_std.numpy(), g[f"running_std_{j}"], rtol=1e-8)
    after = net.eval()(x).detach().numpy()
    np.testing.assert_allclose(after, g["y_eval_after_one_train_pass"], rtol=1e-8, atol=1e-10)
    assert len(net.state_dict()) == 118, "the layers must not enter the network's state"
    for handle in handles:
        handle.remove()


def test_skip_connections_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    net = UNet(features=4)
    client = fedfa.Client(fedfa.Config(p=1.0, layers=(1,)))
    client.attach(net, make_context("fedfa", net))
    seen: dict[str, torch.Tensor] = {}
    net.encoder1.register_forward_hook(lambda _m, _i, out: seen.__setitem__("before", out.clone()))
    net.decoder1.register_forward_pre_hook(lambda _m, inputs: seen.__setitem__("skip", inputs[0][:, 4:].clone()))
    net.encoder2.register_forward_pre_hook(lambda _m, inputs: seen.__setitem__("deeper", inputs[0].clone()))
    net.train()(torch.randn(4, 3, 32, 32))
    torch.testing.assert_close(seen["skip"], seen["before"])
    pooled = torch.nn.functional.max_pool2d(seen["before"], 2)
    assert (seen["deeper"] - pooled).abs().max() > 1e-3


def test_layers_fire_with_probability_p_and_differ_between_seeds_only() -> None:
    def outputs(seed: int) -> list[bool]:
        net = torch.nn.Identity().train()
        context = make_context("fedfa", net, seed=seed)
        layer = fedfa.FeatureAugmentation(1, 3, net, fedfa.Config(p=0.3), context)
        x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(1))
        return [not torch.equal(layer(x), x) for _ in range(400)]

    fired = outputs(0)
    assert 0.2 < np.mean(fired) < 0.4
    assert fired == outputs(0) and fired != outputs(1)


def test_a_draw_equal_to_p_fires_as_released_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(variant: str, p: float, u: float) -> bool:
        layer = layer_for(fedfa.Config.parse({"variant": variant, "p": p}, where="fedfa"), 3)
        monkeypatch.setattr(fedfa.torch, "rand", lambda *_a, **_k: torch.tensor(u))
        x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(1))
        return not torch.equal(layer(x), x)

    assert changed("released", 0.5, 0.5) and not changed("paper", 0.5, 0.5)
    assert changed("paper", 0.5, 0.25) and not changed("released", 0.5, 0.75)
    assert not changed("released", 0, 0.0), "with p = 0 it is FedAvg"


def test_a_batch_of_one_and_a_dead_channel_stay_finite() -> None:
    layer = layer_for(fedfa.Config(p=1.0), 2)
    x = torch.zeros(1, 2, 4, 4)
    x[:, 0] = torch.randn(4, 4)
    x.requires_grad_()
    y = layer(x)
    y.sum().backward()
    assert torch.isfinite(y).all() and torch.isfinite(x.grad).all()


def test_a_site_goes_on_from_its_own_statistics_if_it_is_told_to() -> None:
    net = UNet(features=4).train()
    config = fedfa.Config(p=1.0, running="local", layers=(1,))
    ctx = make_context("fedfa", net)
    received = {f"{name}.1": np.full(4, 7, np.float32) for name in ("gamma_mean", "gamma_std", "mean", "std")}
    told = []
    for _ in range(2):
        client = fedfa.Client(config)
        handles = client.attach(net, ctx)
        client.receive(received, ctx)
        net(torch.rand(2, 3, 32, 32))
        told.append(client.end(Samples(np.zeros((1, 3, 32, 32))), ctx)["mean.1"])
        for handle in handles:
            handle.remove()
    assert np.abs(told[0]).max() < 1 > np.abs(told[1]).max(), "not from the received 7"
    # The second round continues from the first: 0.99 of its value plus 0.01 of about the same mean.
    assert (np.abs(told[1]) > 1.5 * np.abs(told[0])).any()
