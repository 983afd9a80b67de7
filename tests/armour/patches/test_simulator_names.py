"""The simulator sends every worker the name of its own client."""

from __future__ import annotations

import pickle
import threading

from flare_armour.patches.simulator_names import NAME, ThreadNames


def test_threads_that_start_at_the_same_moment_send_their_own_names() -> None:
    context, sent = ThreadNames({"server_config": 1}), {}
    both_set = threading.Barrier(2)

    def start(name: str) -> None:
        context[NAME] = name
        both_set.wait(timeout=10)
        sent[name] = pickle.loads(pickle.dumps({"build_ctx": context}))["build_ctx"]

    threads = [threading.Thread(target=start, args=(name,)) for name in ("BIDMC", "HK")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert sent == {name: {"server_config": 1, NAME: name} for name in ("BIDMC", "HK")}


def test_what_was_there_before_any_thread_stays() -> None:
    context = ThreadNames({NAME: "first", "retry": 2})
    context["retry"] = 3
    assert pickle.loads(pickle.dumps(context)) == {NAME: "first", "retry": 3}
