"""Broken files of every kind that is read, thousands of ways: a sentence or a good reading, nothing else; and no code.

Jobs, results, progress, manifests, settings, models, states and answers: bytes cut off, turned around, inserted, and
values of another kind. A pickle that would run something is refused by every reader of torch's files.
"""

from __future__ import annotations

import ast
import json
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import make_image_site, small_image_job

from fedshift.data.locate import SITE_FILE, read_settings
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.server.run_files import STATE_FILE, load_state
from fedshift.federation.site.state import AnswerStore, StateStore, fingerprint
from fedshift.flare.export import SPEC, read_job_folder, write_job
from fedshift.schema.errors import FedshiftError
from fedshift.schema.manifest import read_manifest
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.results import LAST, read_results
from fedshift.tasks import pretrained

ROOT = Path(__file__).resolve().parents[2]
TASK = fingerprint(Broadcast(round=1, best_round=0, weights={}))
STRANGE = (None, True, -1, 2**70, float("nan"), "", "ø\n", [], {}, [[]], {"a": None}, "../..", "!!python/object:x")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one round, and one file of each kind that goes with it."""
    folder = tmp_path_factory.mktemp("files")
    job = small_image_job("fedavg", "schedule.rounds=1", sites=("A",))
    data = {"A": make_image_site(folder / "data", "A", images=18)}
    run_in_process(job, data, folder / "run")
    write_job(job, folder / "job")
    (folder / "kit").mkdir()
    settings = {"data": {"shapes": str(data["A"])}, "device": "cpu", "privacy": {"min_cases": 3, "allow": ["loss"]}}
    (folder / "kit" / SITE_FILE).write_text(yaml.safe_dump(settings), encoding="utf-8")
    AnswerStore(folder / "answers").keep(TASK, Update("A", 1, 1, 1))
    torch.save({"a.weight": torch.ones(2)}, folder / "weights.pth")
    return folder


READERS: dict[str, Callable[[Path], object]] = {
    f"job/{SPEC}": lambda folder: read_job_folder(folder / "job"),
    "run/results.json": lambda folder: read_results(folder / "run"),
    "data/shapes/A/manifest.json": lambda folder: read_manifest(folder / "data" / "shapes" / "A"),
    f"kit/{SITE_FILE}": lambda folder: read_settings(folder / "kit"),
    f"run/{LAST}": lambda folder: read_model_file(folder / "run" / LAST),
    f"run/{STATE_FILE}": lambda folder: load_state(folder / "run"),
    "run/site_state/A/round_000001.pt": lambda folder: StateStore(folder / "run" / "site_state" / "A").before(2),
    "answers/answer.pt": lambda folder: AnswerStore(folder / "answers").find(TASK),
    "weights.pth": lambda folder: pretrained.read(folder / "weights.pth"),
}


def mutants(content: bytes, rng: random.Random) -> Iterator[bytes]:
    for _ in range(40):
        place = rng.randrange(len(content))
        yield content[:place]
        yield content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]
        yield content[:place] + rng.randbytes(rng.randrange(1, 9)) + content[place:]
        yield content[place:] + content[:place]
    yield b""
    yield b"\xff\xfe\x00"


def strange_values(content: Any, rng: random.Random) -> Iterator[Any]:
    """The same structure with one value, anywhere in it, that does not belong there."""
    for _ in range(120):
        changed = json.loads(json.dumps(content))
        place = changed
        while True:
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.8:
                place = place[key]
                continue
            place[key] = rng.choice(STRANGE)
            break
        yield changed


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", list(READERS))
def test_broken_bytes_are_a_sentence_or_a_good_reading(name: str, files: Path) -> None:
    path, rng = files / name, random.Random(name)
    whole = path.read_bytes()
    for broken in mutants(whole, rng):
        path.write_bytes(broken)
        try:
            READERS[name](files)
        except FedshiftError as error:
            assert "\n" not in str(error)
    path.write_bytes(whole)


@pytest.mark.parametrize("name", [name for name in READERS if name.endswith(("json", "yaml"))])
def test_strange_values_are_a_sentence_or_a_good_reading(name: str, files: Path) -> None:
    path, rng = files / name, random.Random(name)
    whole = path.read_text(encoding="utf-8")
    for strange in strange_values(yaml.safe_load(whole), rng):
        path.write_text(json.dumps(strange), encoding="utf-8")
        try:
            READERS[name](files)
        except FedshiftError as error:
            assert "\n" not in str(error)
    path.write_text(whole, encoding="utf-8")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", [name for name in READERS if name.endswith((".pt", ".pth"))])
def test_a_pickle_that_would_run_something_runs_nothing(name: str, tmp_path: Path) -> None:
    path, sign = tmp_path / name, tmp_path / "it ran"
    path.parent.mkdir(parents=True, exist_ok=True)

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (sign,))

    for write in (lambda: torch.save(Evil(), path), lambda: path.write_bytes(pickle.dumps(Evil()))):
        write()
        try:
            assert not READERS[name](tmp_path)
        except FedshiftError as error:
            assert path.name in str(error)
    assert not sign.exists()


@pytest.mark.slow
def test_no_line_of_the_package_loads_or_runs_code() -> None:
    """``torch.load`` and ``np.load`` say so each time; only data_prep/pickles.py, which is strict, unpickles."""
    sources = [*(ROOT / "custom").rglob("*.py"), *(ROOT / "data_prep").rglob("*.py")]
    assert len(sources) > 100
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            said = ast.unparse(node.func)
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            where = f"{source.relative_to(ROOT)}:{node.lineno}"
            assert said not in {"eval", "exec", "compile", "__import__"}, where
            assert said not in {"yaml.load", "yaml.unsafe_load", "yaml.full_load", "marshal.loads"}, where
            if said == "torch.load":
                assert options.get("weights_only") == "True", where
            if said in {"np.load", "numpy.load"}:
                assert options.get("allow_pickle") == "False", where
            if said.startswith("pickle.") and source.name != "pickles.py":
                assert said not in {"pickle.load", "pickle.loads", "pickle.Unpickler"}, where
