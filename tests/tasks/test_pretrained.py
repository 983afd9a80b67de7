"""Starting weights from a file: what is taken, what is refused, where it is kept, and what a run says of it."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import SHAPES, make_image_site, small_image_job
from errors import raises
from rich.console import Console
from torch import Tensor

from fedshift import cli
from fedshift.federation.in_process import run_in_process
from fedshift.federation.server.coordinator import Coordinator
from fedshift.reporting.table import scores_table
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec, read_job
from fedshift.schema.results import BEST, read_results
from fedshift.schema.task import WeightsSpec
from fedshift.tasks import networks, pretrained
from fedshift.tasks.kinds import build_task
from fedshift.tasks.starting import starting_network

State = dict[str, Tensor]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty $XDG_DATA_HOME/fedshift/weights."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("FEDSHIFT_WEIGHTS", raising=False)
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    return tmp_path / "xdg" / "fedshift" / "weights"


def make(name: str = "resnet18", *, seed: int = 1, in_channels: int = 3, n_classes: int = 7, **options: Any) -> Any:
    return networks.build(name, options, in_channels=in_channels, n_classes=n_classes, seed=seed)


@cache
def drawn() -> State:
    """The arrays of `imagenet`, for all tests: nothing writes into an array."""
    generator = torch.Generator().manual_seed(5)
    return {
        key: torch.rand(value.shape, generator=generator) if value.is_floating_point() else torch.tensor(3)
        for key, value in make(n_classes=1000).state_dict().items()
    }


def imagenet() -> State:
    """In the layout of torchvision's ``resnet18-f37072fd.pth``: 122 arrays, 1000 classes, running statistics."""
    return dict(drawn())


def other(state: State, **changes: Tensor | None) -> State:
    """With some arrays changed, added or taken out; ``__`` stands for a dot."""
    changed = {**state, **{key.replace("__", "."): value for key, value in changes.items()}}
    return {key: value for key, value in changed.items() if value is not None}


def small_net(seed: int) -> Any:
    return make("digits_cnn", seed=seed, n_classes=3, size=16, width=4)


def job_from(path: Path, *options: str, methods: str = "fedavg") -> JobSpec:
    spec = pretrained.identify(path)
    named = (f"network.weights.file={spec.file}", f"network.weights.sha256={spec.sha256}")
    return small_image_job(methods, *options, *named)


def saved(content: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


# --- what is taken --------------------------------------------------------------------------------


def test_all_of_torchvisions_file_is_taken_but_the_head(tmp_path: Path) -> None:
    file = imagenet()
    assert len(file) == 122
    net = make()
    loaded = pretrained.take(net, pretrained.read(saved(file, tmp_path / "resnet18.pth")), where="resnet18.pth")
    assert str(loaded) == "120 of 122 arrays; new: fc.weight, fc.bias"
    assert set(loaded.arrays) == set(file) - {"fc.weight", "fc.bias"}
    assert all(torch.equal(value, file[key]) for key, value in loaded.arrays.items())
    assert not torch.equal(net.state_dict()["conv1.weight"], file["conv1.weight"]), "the network is left as it is"


def without(*parts: str) -> State:
    return {key: value for key, value in imagenet().items() if not any(part in key for part in parts)}


HEAD, ALL = ("fc.weight", "fc.bias"), 122


@pytest.mark.parametrize(
    ("net", "left_out", "total", "taken", "new"),
    [
        ({"n_classes": 1000}, (), ALL, ALL, ()),
        ({"n_classes": 1000}, HEAD, ALL, 120, HEAD),
        ({"n_classes": 1000}, ("fc.bias",), ALL, 120, HEAD),  # a head that is not whole
        ({"norm": "group"}, (), 62, 20, (*HEAD, "group norms (40 arrays)")),
        ({}, ("num_batches_tracked",), ALL, 100, (*HEAD, "counters of norms (20 arrays)")),  # of an old torch
    ],
)
def test_what_starts_anew(
    net: dict[str, Any], left_out: tuple[str, ...], total: int, taken: int, new: tuple[str, ...]
) -> None:
    loaded = pretrained.take(make(**net), without(*left_out), where="file")
    assert (loaded.total, len(loaded.arrays), loaded.new) == (total, taken, new)


def test_norms_of_a_file_of_group_norms_are_taken() -> None:
    net = make(norm="group")
    arrays = pretrained.take(net, imagenet(), where="file").arrays
    assert all(value.dim() == 4 for value in arrays.values()), "of a file with batch norms the convolutions only"
    own = {key: value + 1 for key, value in net.state_dict().items()}
    assert len(pretrained.take(net, own, where="file").arrays) == 62


def test_half_precision_becomes_what_the_network_has() -> None:
    file = {key: value.half() if value.is_floating_point() else value for key, value in imagenet().items()}
    arrays = pretrained.take(make(), file, where="file").arrays
    assert arrays["conv1.weight"].dtype == torch.float32 and arrays["bn1.num_batches_tracked"].dtype == torch.int64


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "names"),
    [
        ({"stem": "small"}, ("conv1.weight", "64 x 3 x 7 x 7", "64 x 3 x 3 x 3", "network.options")),
        ({"in_channels": 1}, ("conv1.weight", "64 x 1 x 7 x 7", "data.channels")),
        ({"name": "lenet5"}, ("conv1.bias", "resnet18")),
        ({"name": "alexnet", "hidden": 8}, ("layer1.conv1.weight", "resnet18")),
    ],
    ids=str,
)
def test_a_network_that_the_file_does_not_fit_is_refused(net: dict[str, Any], names: tuple[str, ...]) -> None:
    with raises("weights-unfit", naming=("a.pth", *names)):
        pretrained.take(make(**net), imagenet(), where="a.pth")


NO_FLOATS = "weights-format", "bn1.bias"


@pytest.mark.parametrize(
    ("changes", "code", "name"),
    [
        ({"layer1__0__conv1__weight": None}, "weights-unfit", "layer1.0.conv1.weight"),
        # a ResNet-34 has all that a ResNet-18 has, and more
        ({"layer1__2__conv1__weight": torch.ones(64, 64, 3, 3)}, "weights-unfit", "layer1.2.conv1.weight"),
        ({"bn1__bias": torch.ones(3)}, "weights-unfit", "bn1.bias"),
        ({"bn1__running_mean": None}, "weights-unfit", "bn1.running_mean"),
        ({"bn1__bias": torch.full((64,), torch.nan)}, "not-finite", "bn1.bias"),
        ({"bn1__bias": torch.ones(64, dtype=torch.int64)}, *NO_FLOATS),
        ({"bn1__bias": torch.ones(64, dtype=torch.complex64)}, *NO_FLOATS),
        ({"bn1__bias": torch.ones(64).to_sparse()}, *NO_FLOATS),
        ({"bn1__bias": torch.ones(64, device="meta")}, *NO_FLOATS),
        ({"bn1__num_batches_tracked": torch.tensor(0.5)}, "weights-format", "bn1.num_batches_tracked"),
    ],
)
def test_arrays_that_do_not_fit_are_named(changes: dict[str, Tensor | None], code: str, name: str) -> None:
    with raises(code, naming=name):
        pretrained.take(make(), other(imagenet(), **changes), where="a.pth")


class _Code:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "save", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content, protocol=2))]
)
def test_code_in_a_file_is_not_run(save: Callable[[Any, Path], object], tmp_path: Path) -> None:
    save({"conv1.weight": _Code(tmp_path / "ran")}, tmp_path / "bad.pth")
    with raises("weights-format", naming="bad.pth"):
        pretrained.read(tmp_path / "bad.pth")
    assert not (tmp_path / "ran").exists()
    run, arguments = _Code(tmp_path / "ran").__reduce__()
    run(*arguments)
    assert (tmp_path / "ran").exists(), "what was not run leaves this behind"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        *(
            (content, "weights-format")
            for content in (
                torch.ones(2),
                {},
                [torch.ones(2)],
                {"a": 1},
                {"state": {"a": torch.ones(2)}},
                {"schema": 1},
            )
        ),
        *(
            (broken, "")
            for broken in (b"", slice(5000), slice(1 << 20), slice(-100), b"some words\n", b"\x80\x02}", b"PK\x03\x04")
        ),
    ],
)
def test_files_that_hold_no_state_are_refused(content: Any, code: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    if isinstance(content, slice):  # of a whole file
        path.write_bytes(saved(imagenet(), path).read_bytes()[content])
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        saved(content, path)
    with pytest.raises(ConfigError, match=r"a\.pth ") as error:
        pretrained.read(path)
    assert error.value.code in ((code,) if code else ("weights-format", "file-unreadable"))


# --- where it is ----------------------------------------------------------------------------------


def test_a_file_is_known_by_its_name_and_hash(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(b"abc")
    assert pretrained.identify(path) == WeightsSpec(file="a.pth", sha256=hashlib.sha256(b"abc").hexdigest())


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("none.pth", "file-unreadable"),
        *((name, "file-name") for name in ("my weights (1).pth", ".hidden.pth", "poids-été.pth", "a" * 130)),
    ],
)
def test_a_file_that_no_job_can_name(name: str, code: str, tmp_path: Path) -> None:
    if "none" not in name:
        (tmp_path / name).write_bytes(b"abc")
    with raises(code, naming=name):
        pretrained.identify(tmp_path / name)


@pytest.mark.parametrize("file", ["../a.pth", "/a.pth", "a/b.pth", "..", ""])
def test_a_job_names_no_path(file: str) -> None:
    with raises("invalid-value", naming="'file'"):
        WeightsSpec.parse({"file": file, "sha256": 64 * "0"}, where="job")


def test_it_is_kept_once_and_found_again(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path / "xdg")}
    home = tmp_path / "xdg" / "fedshift" / "weights"
    path = saved({"a": torch.ones(2)}, tmp_path / "a.pth")
    spec = pretrained.identify(path)
    with raises("weights-missing", naming=("a.pth", spec.sha256[:12], str(home))):
        pretrained.find(spec, environ)
    kept = pretrained.keep(path, spec, environ)
    assert kept == home / f"{spec.sha256[:12]}-a.pth" == pretrained.find(spec, environ)
    assert kept.read_bytes() == path.read_bytes()
    written = kept.stat().st_mtime_ns
    assert pretrained.keep(path, spec, environ) == kept and kept.stat().st_mtime_ns == written
    assert [p.name for p in home.iterdir()] == [kept.name], "no half-written file is left"
    environ["FEDSHIFT_WEIGHTS"] = str(tmp_path)
    assert pretrained.find(spec, environ) == path, "under its own name, as copied by hand"
    path.write_bytes(b"another")
    assert pretrained.find(spec, environ) == kept, "another file of that name does not hide it"


def test_another_file_of_that_name_is_no_starting_point(home: Path, tmp_path: Path) -> None:
    path = saved({"a": torch.ones(2)}, tmp_path / "a.pth")
    spec = pretrained.identify(path)
    home.mkdir(parents=True)
    (home / "a.pth").write_bytes(b"another")
    with raises("weights-missing", naming=(f"{home}/a.pth", hashlib.sha256(b"another").hexdigest()[:12])):
        pretrained.find(spec)
    kept = pretrained.keep(path, spec)
    kept.write_bytes(b"damaged")
    with raises("weights-missing", naming="a.pth"):
        pretrained.find(spec)
    pretrained.keep(path, spec)
    assert pretrained.find(spec) == kept, "mended by naming the file again"
    assert (home / "a.pth").read_bytes() == b"another"


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    path = saved({"a": torch.ones(2)}, tmp_path / "a.pth")
    with raises("file-unwritable", naming="FEDSHIFT_WEIGHTS"):
        pretrained.keep(path, pretrained.identify(path), {"FEDSHIFT_WEIGHTS": str(path / "below")})


# --- a run ----------------------------------------------------------------------------------------


def shown(folder: Path) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(scores_table(read_results(folder)))
    return capture.get()


def same(a: Path, b: Path) -> bool:
    one, two = (torch.load(path / BEST, weights_only=True)["weights"] for path in (a, b))
    return all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.slow
def test_a_run_starts_from_the_file_bit_for_bit_and_says_so(
    home: Path, three_image_sites: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="fedshift")
    scratch = small_image_job("fedavg+fedbn", "schedule.rounds=1")
    run_in_process(scratch, three_image_sites, tmp_path / "scratch")
    assert "from scratch" in caplog.text
    assert read_results(tmp_path / "scratch").job.initial_weights == "from scratch"
    assert "from scratch" in shown(tmp_path / "scratch")

    net = small_net(3)
    path = saved(net.state_dict(), home / "start.pth")
    job = job_from(path, "schedule.rounds=1", methods="fedavg+fedbn")
    coordinator = Coordinator(job, tmp_path / "server")
    coordinator.open(0)
    sent = coordinator.open(1).weights
    assert all(np.array_equal(sent[key], value.numpy()) for key, value in net.state_dict().items()), "personal ones too"
    run_in_process(job, three_image_sites, tmp_path / "file")
    assert not same(tmp_path / "file", tmp_path / "scratch")
    text = f"start.pth (sha256 {pretrained.identify(path).sha256[:12]}…, {len(sent)} of {len(sent)} arrays)"
    assert read_results(tmp_path / "file").job.initial_weights == text
    assert f"initial weights: {text}" in caplog.text
    assert f"Initial weights: {text}." in shown(tmp_path / "file")

    # The same numbers by way of a file change nothing.
    drawn = Coordinator(scratch, tmp_path / "server2").open(1).weights
    path = saved({key: torch.from_numpy(np.asarray(value)) for key, value in drawn.items()}, home / "drawn.pth")
    run_in_process(job_from(path, "schedule.rounds=1", methods="fedavg+fedbn"), three_image_sites, tmp_path / "drawn")
    assert same(tmp_path / "drawn", tmp_path / "scratch")


def test_a_run_goes_on_without_the_file(home: Path, three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    path = saved(small_net(3).state_dict(), home / "start.pth")
    job = job_from(path)
    run_in_process(job, three_image_sites, tmp_path / "whole")

    def stop(coordinator: Coordinator) -> None:
        if coordinator.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_process(job, three_image_sites, tmp_path / "cut", on_progress=stop)
    path.unlink()
    run_in_process(job, three_image_sites, tmp_path / "cut", resume=True)
    assert read_results(tmp_path / "cut").job.initial_weights.startswith("start.pth")
    assert same(tmp_path / "cut", tmp_path / "whole")
    with raises("weights-missing", naming="start.pth"):
        run_in_process(job, three_image_sites, tmp_path / "anew")


def test_a_job_goes_on_from_a_former_model(home: Path, three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    run_in_process(small_image_job("fedfa", "schedule.rounds=1"), three_image_sites, tmp_path / "run")
    former = tmp_path / "run" / BEST
    job = job_from(former, "classes=[disc, square, bar, ring]")
    pretrained.keep(former, pretrained.identify(former))
    coordinator = Coordinator(job, tmp_path / "server")
    coordinator.open(0)
    weights = torch.load(former, weights_only=True)["weights"]
    sent = coordinator.open(1).weights
    assert sent["head.weight"].shape == (4, 32)
    assert all(np.array_equal(sent[key], weights[key]) for key in weights if not key.startswith("head."))
    assert coordinator.results.job.initial_weights.endswith("new: head.weight, head.bias)")


# --- the commands ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_names_the_file_by_hash_and_no_path(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(imagenet(), tmp_path / "downloads" / "resnet18.pth")
    command = ["job", "fedavg", str(SHAPES), "--set", "network.name=resnet18", "--out", str(tmp_path / "jobs")]
    assert cli.main([*command, "--weights", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "120 of 122 arrays; new: fc.weight, fc.bias" in printed and str(home) in printed
    written = tmp_path / "jobs" / "fedavg_shapes" / "app" / "config" / "fedshift.yaml"
    spec = pretrained.identify(path)
    assert read_job(written).task.network.weights == spec
    for file in (tmp_path / "jobs").rglob("*"):
        assert file.is_dir() or str(tmp_path) not in file.read_text(encoding="utf-8")
    assert pretrained.find(spec).parent == home

    assert cli.main([*command, "--name", "plain"]) == 0
    plain = yaml.safe_load((tmp_path / "jobs" / "plain" / "app" / "config" / "fedshift.yaml").read_text("utf-8"))
    assert plain["task"]["network"] == {"name": "resnet18", "options": {}}, "jobs without a file have no such key"


def test_a_file_that_does_not_fit_makes_no_job_and_is_not_kept(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(imagenet(), tmp_path / "resnet18.pth")
    assert cli.main(["job", "fedavg", str(SHAPES), "--weights", str(path), "--out", str(tmp_path / "jobs")]) == 2
    assert "network resnet18" in capsys.readouterr().err
    assert not (tmp_path / "jobs").exists() and not home.exists()


def test_a_centralised_reference_starts_from_it_too(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for site in "ABC":
        make_image_site(home.parent / "phantom", site)
    path = saved(small_net(3).state_dict(), tmp_path / "start.pth")
    command = ["pooled", "all", str(SHAPES), "--set", "schedule.rounds=1", "--weights", str(path)]
    assert cli.main([*command, "-w", str(tmp_path / "run")]) == 0
    assert "Initial weights: start.pth" in capsys.readouterr().out
    assert read_results(tmp_path / "run").job.network["weights"]["file"] == "start.pth"


# --- what fits of another model -------------------------------------------------------------------


def bundle(state: State, folder: Path) -> Path:
    """The folder of a MONAI bundle, with a checkpoint as its training program writes them."""
    saved(
        {"model": {f"module.{key}": value for key, value in state.items()}, "epoch": 3}, folder / pretrained.IN_BUNDLE
    )
    return folder


def test_a_bundle_gives_the_layers_that_fit_and_the_rest_is_named(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = other(
        small_net(9).state_dict(), head__weight=torch.zeros(9, 32), head__bias=None, extra__weight=torch.ones(2)
    )
    folder = bundle(theirs, tmp_path / "spleen")
    options = ["network.name=digits_cnn", "network.options={size: 16, width: 4}"]
    assert (
        cli.main(
            ["job", "fedavg", str(SHAPES), "--init", str(folder), "--set", *options, "--out", str(tmp_path / "jobs")]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "new: head" in printed and "unused: head" in printed and "extra (1" in printed
    job = read_job(tmp_path / "jobs" / "fedavg_shapes" / "app" / "config" / "fedshift.yaml")
    assert job.task.network.weights == pretrained.identify(folder / pretrained.IN_BUNDLE, partial=True)
    (net, _), own = starting_network(job), build_task(job).network().state_dict()
    for key, value in net.state_dict().items():
        assert torch.equal(value, own[key] if key.startswith("head.") else theirs[key]), key


@pytest.mark.slow
def test_a_model_of_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    with raises("weights-unfit"):
        pretrained.take_what_fits(small_net(1), {"other.weight": torch.ones(3)}, where="file.pt")


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with raises("weights-missing", naming="models/model.pt"):
        pretrained.file_of(tmp_path)
