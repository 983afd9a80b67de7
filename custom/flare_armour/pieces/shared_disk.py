"""Either end in FLARE's simulator, where both use one disk: the other end maps the file itself."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection
from pathlib import Path

from nvflare.apis.shareable import Shareable

from flare_armour.pieces.array_files import FOLDER, KEY, TASK, file_of, put_back, take_out

log = logging.getLogger("flare_armour")


class SharedDisk:
    """Stands where a provisioned party has a `ServerEnd` or a `SiteEnd`."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the server's, or the site's, of the job."""
        self._folder = folder / FOLDER

    def open(self, task: Shareable, clients: Collection[str], *, place: str) -> None:
        self._leave(task, TASK, f"the model of {place}")

    def send(self, answer: Shareable, what: str) -> None:
        self._leave(answer, "answer", what)

    def fetch(self, task: Shareable, what: str) -> None:
        """Put the arrays of a task back; its file stays for the other sites.

        Raises:
            NotInFileError: they are not what the task says.
        """
        if file_of(task) is not None:
            put_back(task, Path(task[KEY]["path"]), writable=True)

    def restore(self, client: str, answer: Shareable) -> None:
        """Put the arrays of an answer back, and delete its file.

        Raises:
            NotInFileError, OSError: they are not what the answer says.
        """
        if file_of(answer) is not None:
            path = Path(answer[KEY]["path"])
            put_back(answer, path, writable=False)
            path.unlink()

    def moved(self, *, since: float = 0.0) -> dict[str, float]:
        """Nothing moves."""
        return {}

    def end(self) -> None:
        """The round, or the job, is over."""
        shutil.rmtree(self._folder, ignore_errors=True)

    close = end

    def _leave(self, message: Shareable, name: str, what: str) -> None:
        path = self._folder / name
        try:
            if take_out(message, path) is not None:
                message[KEY]["path"] = str(path)
        except OSError as error:
            log.warning("%s is sent in one: %s", what, error)
