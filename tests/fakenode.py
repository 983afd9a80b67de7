"""A PACS that is asked by DIMSE, in this process: pynetdicom's services over files of a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pydicom
from orthanc import free_ports
from pydicom.dataset import Dataset
from pynetdicom import AE, evt

from fedshift.pacs.dimse.association import PLAIN
from fedshift.pacs.dimse.carrier import FIND, GET, MOVE, USUAL

TITLE, OURS = "PACS", "FEDSHIFT"
PENDING, SUCCESS = 0xFF00, 0x0000


@dataclass
class Node:
    """Answers as a PACS that serves ``models`` does, and has a fault where one is set.

    ``change`` is given every image before it is sent, and may return another, None, or the status of a failure.
    """

    port: int
    receive_port: int
    held: dict[str, Dataset] = field(default_factory=dict)
    change: Callable[[Dataset, int], Dataset | int | None] = lambda image, number: image
    silent: Sequence[str] = ()
    """Keys of which it says nothing: it leaves them empty."""
    find_status: int = SUCCESS
    store_status: int = SUCCESS
    stored: list[Dataset] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"dimse://{TITLE}@127.0.0.1:{self.port}"

    def add(self, folder: Path) -> None:
        for file in sorted(folder.rglob("*.dcm")):
            image = pydicom.dcmread(file)
            self.held[str(image.SOPInstanceUID)] = image

    def find(self, event: Any) -> Iterator[tuple[int, Dataset | None]]:
        if self.find_status != SUCCESS:
            yield self.find_status, None
            return
        asked = event.identifier
        level = {"STUDY": "Study", "SERIES": "Series", "IMAGE": "SOP"}[asked.QueryRetrieveLevel] + "InstanceUID"
        seen = set()
        for image in self.held.values():
            if image[level].value in seen or not all(self._fulfils(image, each) for each in asked):
                continue
            seen.add(image[level].value)
            said = Dataset()
            for each in asked:
                known = image.get(each.keyword, "") if each.keyword not in self.silent else ""
                setattr(said, each.keyword, asked.QueryRetrieveLevel if each.keyword == "QueryRetrieveLevel" else known)
            yield PENDING, said

    def _fulfils(self, image: Dataset, each: Any) -> bool:
        value = str(each.value or "")
        if not value or each.keyword in ("QueryRetrieveLevel", "SpecificCharacterSet", "ModalitiesInStudy"):
            return True
        return each.keyword in self.silent or fnmatch(str(image.get(each.keyword, "")), value)

    def send(self, event: Any) -> Iterator[Any]:
        """C-GET, or C-MOVE after the place has been given."""
        asked = event.identifier
        wanted = [each for each in self.held.values() if each.SeriesInstanceUID == asked.SeriesInstanceUID]
        yield len(wanted)
        for number, image in enumerate(wanted):
            changed = self.change(pydicom.dcmread(image.filename), number)
            if isinstance(changed, int):
                yield changed, None
                return
            if changed is not None:
                yield PENDING, changed

    def move(self, event: Any) -> Iterator[Any]:
        yield "127.0.0.1", self.receive_port
        yield from self.send(event)

    def store(self, event: Any) -> int:
        if self.store_status in (SUCCESS, 0xB000):
            made = event.dataset
            made.file_meta = event.file_meta
            self.stored.append(made)
            self.held[str(made.SOPInstanceUID)] = made
        return self.store_status


@contextmanager
def running_node(
    folder: Path | None = None,
    *,
    models: Sequence[str] = (FIND, GET, MOVE),
    storage: Sequence[str] = (*USUAL, "1.2.840.10008.5.1.4.1.1.88.34"),
    syntaxes: Sequence[str] = PLAIN,
    calling: Sequence[str] = (OURS,),
    tls: Any = None,
) -> Iterator[Node]:
    """A node whose images are those of ``folder``."""
    made = Node(*free_ports(2))
    if folder is not None:
        made.add(folder)
    server = AE(TITLE)
    server.require_called_aet, server.require_calling_aet = True, list(calling)
    for model in models:
        server.add_supported_context(model)
    for sop_class in storage:
        server.add_supported_context(sop_class, list(syntaxes), scu_role=True, scp_role=True)
        server.add_requested_context(sop_class, list(syntaxes)) if len(server.requested_contexts) < 128 else None
    handlers: Any = [
        (evt.EVT_C_FIND, made.find),
        (evt.EVT_C_GET, made.send),
        (evt.EVT_C_MOVE, made.move),
        (evt.EVT_C_STORE, made.store),
    ]
    server.start_server(("127.0.0.1", made.port), block=False, evt_handlers=handlers, ssl_context=tls)
    try:
        yield made
    finally:
        server.shutdown()
