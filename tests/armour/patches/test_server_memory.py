"""What a process gives back of the messages that it has sent."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CODE = """
import numpy as np, psutil
from flare_armour.patches import server_memory

def megabytes():
    return psutil.Process().memory_info().rss / 1e6

def hold():
    return [np.ones(8192) for _ in range(3200)]  # 64 KB each, which come from glibc's heap

made = hold()
full = megabytes()
kept = made[::40]
del made
before = megabytes()
every, server_memory.EVERY = server_memory.EVERY, 0.0
server_memory.release()
server_memory.EVERY = every
after = megabytes()
made = hold()
del made
server_memory.release()  # too soon
print(full, before, after, megabytes())
server_memory.EVERY = 0.0
server_memory.release()
print(megabytes())
"""
"""In a process of its own: what other tests have freed would be given back too."""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="another C library than glibc: run it on Linux with glibc"
)
def test_what_was_freed_between_what_was_not_is_given_back_now_and_then() -> None:
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr
    full, before, after, soon, late = map(float, result.stdout.split())
    assert full - before < 60, "glibc keeps it"
    assert before - after > 120
    assert soon - after > 100, "not again at once"
    assert late - after < 40


CYCLES = """
import gc, weakref
from flare_armour.patches import server_memory

class Message:
    def __init__(self):
        self.stream = self

gc.disable()  # as if Python had not looked for them yet
server_memory.release()
sent = weakref.ref(Message())
assert sent() is not None
server_memory.release()
assert sent() is not None, "too soon"
server_memory.EVERY = 0.0
server_memory.release()
assert sent() is None
"""


def test_messages_that_hold_each_other_are_let_go() -> None:
    result = subprocess.run([sys.executable, "-c", CYCLES], capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr
