"""A message with arrays, as codec.py makes them, and both ends of its way without a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.shareable import Shareable

from fedshift.flare import codec
from fedshift.schema.messages import Answer, Broadcast, Update
from flare_armour.pieces import wire
from flare_armour.pieces.array_files import LARGE
from flare_armour.pieces.server_end import ServerEnd
from flare_armour.pieces.site_end import SiteEnd

ENOUGH = 1 << 30


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """A little more than is left in the message, in arrays of several types; small ones stay."""
    rng = np.random.default_rng(seed)
    return {
        "z.weight": rng.standard_normal((LARGE // 2048, 512), np.float32),
        "a.weight": rng.standard_normal((3, 100_003), np.float32),
        "a.codes": rng.integers(-128, 127, 70_001, np.int8),
        "small.bias": rng.standard_normal(7, np.float32),
        "number": np.array(5, np.int64),
    }


def update(seed: int = 0) -> Update:
    return Update("HK", 1, 8, 2, weights=weights(seed), arrays={"scaffold": {"c": weights(9)["a.weight"]}})


def answer(seed: int = 0) -> Shareable:
    return codec.encode_answers([Answer(update(seed))])


def read_answer(message: Shareable) -> Update:
    (answer,) = codec.decode_answers(message)
    assert isinstance(answer.content, Update)
    return answer.content


def task(seed: int = 0) -> Shareable:
    return codec.encode_task(Broadcast(round=1, best_round=0, weights=weights(seed), sites=("HK",)))


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return list(one) == list(other) and all(
        one[key].dtype == other[key].dtype and one[key].shape == other[key].shape and (one[key] == other[key]).all()
        for key in one
    )


class Line:
    """From one site to the server. ``lose(number, topic)`` says of each request whether it, or its answer, is lost."""

    def __init__(self, server: ServerEnd, client: str = "HK") -> None:
        self.server, self.client = server, client
        self.lose: Callable[[int, str], str] = lambda number, topic: ""
        self.asked: list[wire.Ask] = []

    def __call__(self, topic: str, told: dict[str, Any]) -> object:
        ask = wire.Ask.decode(told)
        assert ask is not None
        self.asked.append(ask)
        lost = self.lose(len(self.asked), topic)
        if lost == "request":
            return None
        reply = self.server.answer(self.client, topic, told).encode()
        return None if lost == "reply" else reply

    @property
    def sent(self) -> int:
        """Bytes of all pieces."""
        return sum(len(ask.piece) for ask in self.asked)


def ends(folder: Path, *, clients: tuple[str, ...] = ("HK",), task: Shareable | None = None) -> tuple[ServerEnd, Line]:
    """A server with an open round, and the line of a site to it."""
    server = ServerEnd(folder / "server", largest=ENOUGH)
    server.open(Shareable() if task is None else task, clients, place="round 1")
    return server, Line(server)


def site(folder: Path, line: Line, **options: Any) -> SiteEnd:
    settings = {"clients": 64, "largest": ENOUGH, "stopped": lambda: False, "pause": 0.0} | options
    return SiteEnd(folder / "HK", line, **settings)
