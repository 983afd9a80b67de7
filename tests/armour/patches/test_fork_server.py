"""Forked workers behave as started ones would, and their exit codes are reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from armour.conftest import Lower
from flare_armour.patches.fork_server import cuda_is_unusable, run_in_child

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only"),
]

WORKER = """
import os, signal, sys, time
said = [sys.argv[1], "fractions" in sys.modules, os.environ["WHO"], os.getsid(0) == os.getpid()]
os.write(1, (" ".join(map(str, said)) + "\\n").encode())  # all at once: others write there too
if sys.argv[1] == "waits":
    time.sleep(600)
if sys.argv[1] == "fails":
    raise ValueError("a worker's own error")
sys.exit(int(sys.argv[2]))
"""
MAIN = """
import multiprocessing, subprocess, sys
from flare_armour.patches.fork_server import Forks, serve_child

def inside(socket, queue):
    forks = Forks(socket)
    env = {{"WHO": "me", "PYTHONPATH": {folder!r}}}
    start = lambda *words: forks.Popen([sys.executable, "-m", "the_worker", *words], env=env)
    waits, ends, fails = start("waits", "0"), start("ends", "3"), start("fails", "0")
    codes = [ends.wait(120), fails.wait(120), waits.poll()]
    try:
        waits.wait(0.1)
    except forks.TimeoutExpired:
        codes.append("waits")
    waits.terminate()
    queue.put(codes + [waits.wait(120), waits.poll()])

def simulator(socket):
    queue = multiprocessing.Queue()
    process = multiprocessing.get_context("fork").Process(target=inside, args=(socket, queue))
    process.start()
    print(queue.get(timeout=240), flush=True)
    process.join()
    return 7

{before}
sys.exit(serve_child(simulator))
"""
PREPARED = "import fractions"
UNUSABLE = """
import fractions
from flare_armour.patches import fork_server
fork_server.cuda_is_unusable = lambda: True
"""


@pytest.mark.parametrize(("before", "forked"), [(PREPARED, True), (UNUSABLE, False)], ids=["forks", "cuda unusable"])
def test_workers_are_forked_end_and_are_ended(before: str, forked: bool, tmp_path: Path) -> None:
    """Where CUDA could not be used in a fork, a worker has nothing that was imported before; all else is the same."""
    (tmp_path / "the_worker.py").write_text(WORKER, encoding="utf-8")
    (tmp_path / "main.py").write_text(MAIN.format(folder=str(tmp_path), before=before), encoding="utf-8")
    result = subprocess.run(
        [sys.executable, str(tmp_path / "main.py")], capture_output=True, encoding="utf-8", check=False, env=os.environ
    )
    assert result.returncode == 7, result.stderr
    lines = result.stdout.splitlines()
    for word in ("waits", "ends", "fails"):
        assert f"{word} {forked} me True" in lines
    assert "[3, 1, None, 'waits', -15, -15]" in lines
    assert "ValueError: a worker's own" in result.stderr


def test_torch_knows_a_fork_of_a_process_that_has_used_cuda(lower: Lower, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cuda_is_unusable()
    lower(torch.cuda, _is_in_bad_fork=lambda: True)
    assert cuda_is_unusable()
    monkeypatch.delitem(sys.modules, "torch")
    assert not cuda_is_unusable(), "without torch there is nothing to spoil, and it is not imported to see"


def test_work_in_a_child_changes_nothing_here(capfd: pytest.CaptureFixture[str]) -> None:
    kept: list[int] = []

    def work() -> dict[str, int]:
        kept.append(1)
        return {"pid": os.getpid(), "kept": len(kept)}

    child = run_in_child(work)
    assert child["kept"] == 1 and child["pid"] != os.getpid() and not kept
    assert run_in_child(lambda: 1 // 0) is None
    assert "ZeroDivisionError" in capfd.readouterr().err
    with pytest.raises(ChildProcessError):  # it has been waited for
        os.waitpid(child["pid"], os.WNOHANG)
