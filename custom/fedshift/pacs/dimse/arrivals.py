"""Images on their way from the thread of an association to whoever reads them, a few at a time."""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Callable, Generator
from typing import Any

MOST_WAITING = 4
"""Images that have come and are not read yet: the PACS waits with the next one."""
SUCCESS, OUT_OF_RESOURCES = 0x0000, 0xA700


class Arrivals:
    """What a PACS sends while it is asked for it; the asking is in a thread of its own."""

    def __init__(self, ask: Callable[[Arrivals], None]) -> None:
        """``ask`` returns when all has come, and has `take` called with each image; what it raises is passed on."""
        self._waiting: queue.Queue[bytes | BaseException | None] = queue.Queue(MOST_WAITING)
        self.given_up = threading.Event()
        """Set when nobody reads on."""
        self._thread = threading.Thread(target=self._run, args=(ask,), daemon=True)

    def take(self, event: Any) -> int:
        """A handler of pynetdicom for an image that has come; the status of the answer to it."""
        if self._put(event.encoded_dataset()):
            return SUCCESS
        event.assoc.abort()
        return OUT_OF_RESOURCES

    def images(self) -> Generator[Any, None, None]:
        """The images, as pydicom's data sets."""
        import pydicom

        self._thread.start()
        try:
            while (content := self._waiting.get()) is not None:
                if isinstance(content, BaseException):
                    raise content
                yield pydicom.dcmread(io.BytesIO(content))
        finally:
            self.given_up.set()
            self._thread.join()

    def _run(self, ask: Callable[[Arrivals], None]) -> None:
        end: BaseException | None = None
        try:
            ask(self)
        except BaseException as error:  # whoever reads gets it
            end = error
        self._put(end)

    def _put(self, content: bytes | BaseException | None) -> bool:
        """Have something wait to be read; whether anybody will."""
        while not self.given_up.is_set():
            try:
                self._waiting.put(content, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False
