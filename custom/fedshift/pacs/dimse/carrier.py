"""Ask a PACS by DIMSE, with pynetdicom: an association for each request (study root model, PS3.4, C.6.2)."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.data.dicom_objects import CT_IMAGES, MASKS, MULTIFRAME, PET_IMAGES, PICTURES, STORAGE
from fedshift.pacs.addresses import THIS_MACHINE
from fedshift.pacs.archive import ANSWER, UNREACHABLE, NoAnswer, StoreOutcome
from fedshift.pacs.dimse.arrivals import Arrivals
from fedshift.pacs.dimse.association import PLAIN, READ, Line, NoContext, named, set_times, silence
from fedshift.pacs.dimse.node import Node, client_context, peer_at, server_context
from fedshift.schema.errors import ConfigError

if TYPE_CHECKING:
    from pynetdicom.association import Association

FIND, MOVE, GET = (f"1.2.840.10008.5.1.4.1.2.2.{number}" for number in (1, 2, 3))
"""Query and retrieve, study root."""
OF_STUDY = ("StudyInstanceUID", "NumberOfStudyRelatedInstances")
OF_SERIES = ("SeriesInstanceUID", "Modality", "SeriesDescription", "NumberOfSeriesRelatedInstances")
OF_IMAGE = ("SOPInstanceUID", "SOPClassUID")
USUAL = sorted({f"{STORAGE}4", *CT_IMAGES, *PET_IMAGES, *MULTIFRAME, *PICTURES, *MASKS})
"""SOP classes that may come where a PACS does not say which a series has."""
MOST_CONTEXTS = 128
"""Of an association (PS3.8, 9.3.2.2)."""
SUCCESS, CANCELLED = 0x0000, 0xFE00
PENDING = (0xFF00, 0xFF01)
_FAILURES = {
    0x0122: "it does not do this",
    0x0124: "it does not allow this to our AE title: see its settings",
    0xA700: "it is out of resources: repeat this later",
    0xA701: "it is out of resources: repeat this later",
    0xA702: "it could not send: see its log",
    0xA801: "it does not know where our AE title {ours} is: have it entered there, with this machine and "
    "--receive-port",
    CANCELLED: "it has ended the request: repeat this",
}
"""Status of an answer (PS3.4, C.4; PS3.7, annex C)."""


def connect(address: str, ours: Node, *, ca_file: Path | None = None, allow_unencrypted: bool = False) -> Dimse:
    """The way to a PACS at an address such as ``dimse+tls://PACS@pacs.example:2762``.

    Nothing is sent before something is asked of it.

    Raises:
        ConfigError: pynetdicom is not installed, or the address or a file of certificates cannot be used.
    """
    peer = peer_at(address, allow_unencrypted=allow_unencrypted)
    need_pynetdicom("a PACS asked by DIMSE")
    receives = peer.encrypted and ours.receive_port is not None
    return Dimse(
        Line(peer, ours, client_context(ours, ca_file) if peer.encrypted else None),
        receiving_tls=server_context(ours, ca_file) if receives else None,
    )


def need_pynetdicom(what: str) -> None:
    """Make sure that pynetdicom is there, and silent.

    Raises:
        ConfigError: it is not; the sentence begins with ``what`` needs it.
    """
    try:
        import pynetdicom  # noqa: F401
    except ImportError:
        raise ConfigError(
            "not-installed", f"{what} needs pynetdicom, which is not installed: pip install 'fedshift[pacs]'"
        ) from None
    silence()


class Dimse:
    """A `fedshift.pacs.archive.Carrier`."""

    def __init__(self, line: Line, *, receiving_tls: Any = None) -> None:
        self._line, self._receiving_tls = line, receiving_tls
        self.address = line.peer.address

    def studies(self, keys: Mapping[str, str]) -> list[Any]:
        return self._find("STUDY", keys, OF_STUDY)

    def series(self, study: str, keys: Mapping[str, str]) -> list[Any]:
        return self._find("SERIES", {"StudyInstanceUID": study, **keys}, OF_SERIES)

    def instances(self, study: str, series: str) -> list[Any]:
        return self._find("IMAGE", {"StudyInstanceUID": study, "SeriesInstanceUID": series}, OF_IMAGE)

    def has(self, result: Any) -> bool:
        names = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID")
        try:
            answers = self._find("IMAGE", {name: str(result[name].value) for name in names}, ())
        except NoContext:
            return False  # a node that only stores: its answer to what is stored is all that there is
        return any(str(each.get("SOPInstanceUID", "")) == str(result.SOPInstanceUID) for each in answers)

    def images(self, study: str, series: str, classes: Collection[str]) -> Generator[Any, None, None]:
        classes = sorted(classes) or USUAL
        asked = _identifier("SERIES", {"StudyInstanceUID": study, "SeriesInstanceUID": series})

        def get(arrivals: Arrivals) -> None:
            contexts = [(GET, PLAIN[:2]), *_contexts(classes)]
            with self._line.associated(
                contexts, without=_NO_GET, received=classes, on_store=arrivals.take
            ) as association:
                _require_senders(association, classes)
                self._follow(association, association.send_c_get(asked, GET), arrivals)

        def move(arrivals: Arrivals) -> None:
            contexts, without = [(MOVE, PLAIN[:2])], "it has no C-MOVE for us: see its settings"
            with (
                self._receiving(classes, arrivals),
                self._line.associated(contexts, without=without) as association,
            ):
                self._follow(association, association.send_c_move(asked, self._line.ours.title, MOVE), arrivals)

        return Arrivals(get if self._line.ours.receive_port is None else move).images()

    def store(self, study: str, objects: Sequence[Any]) -> StoreOutcome:
        outcome = StoreOutcome()
        for sop_class in dict.fromkeys(str(result.SOPClassUID) for result in objects):
            of_class = [result for result in objects if result.SOPClassUID == sop_class]
            syntaxes = {str(result.file_meta.TransferSyntaxUID): None for result in of_class}
            forms = list(syntaxes | dict.fromkeys(PLAIN[:2] if syntaxes.keys() <= set(PLAIN) else ()))
            without = f"it takes no {named(sop_class)}"
            try:
                with self._line.associated([(sop_class, [form]) for form in forms], without=without) as association:
                    for result in of_class:
                        _send(association, result, outcome)
            except NoContext as error:
                outcome.failed.update({str(result.SOPInstanceUID): str(error) for result in of_class})
        return outcome

    def _find(self, level: str, keys: Mapping[str, str], wanted: Iterable[str]) -> list[Any]:
        """The answers, without what is empty in them: a PACS that does not know a key leaves it so."""
        answers = []
        without = "it has no C-FIND for us: see its settings"
        with self._line.associated([(FIND, PLAIN[:2])], without=without) as association:
            for status, answer in association.send_c_find(_identifier(level, keys, wanted), FIND):
                code = _status(status)
                if code not in PENDING:
                    if code != SUCCESS:
                        raise self._failed(code)
                    break
                if answer is None:
                    raise NoAnswer(ANSWER, "an answer cannot be read: ask whoever runs the PACS")
                for element in [each for each in answer if each.is_empty]:
                    del answer[element.tag]
                answers.append(answer)
        return answers

    def _follow(self, association: Association, answers: Iterator[Any], arrivals: Arrivals) -> None:
        """Wait until everything has been sent."""
        for status, _ in answers:
            code = _status(status)
            if arrivals.given_up.is_set():
                association.abort()
                return
            if code in PENDING:
                continue
            lacking = int(status.get("NumberOfFailedSuboperations", 0) or 0)
            if lacking:
                sent = int(status.get("NumberOfCompletedSuboperations", 0) or 0)
                raise NoAnswer(
                    ANSWER,
                    f"it sent {sent} images of a series and failed with {lacking}: it may have them only in a "
                    f"compression that fedshift does not read, or not at all (see its log){self._reach}",
                )
            if code != SUCCESS:
                raise self._failed(code, self._reach)

    @property
    def _reach(self) -> str:
        """What a PACS that sends to this machine needs, if it is to."""
        ours = self._line.ours
        port = ours.receive_port
        return "" if port is None else f"; it must know {ours.title} with this machine's address and port {port}"

    def _failed(self, code: int, more: str = "") -> NoAnswer:
        known = _FAILURES.get(code, "it failed: see its log").format(ours=self._line.ours.title)
        return NoAnswer(ANSWER, f"{known} (status {code:04X}){more}")

    @contextmanager
    def _receiving(self, classes: Sequence[str], arrivals: Arrivals) -> Iterator[None]:
        """Listen for what the PACS sends at our request."""
        from pynetdicom import AE, evt

        ours, port = AE(self._line.ours.title), self._line.ours.receive_port
        assert port is not None
        set_times(ours)
        ours.require_called_aet, ours.require_calling_aet = True, [self._line.peer.title]
        for sop_class in classes:
            ours.add_supported_context(sop_class, list(READ))
        try:
            ours.start_server(
                ("127.0.0.1" if self._line.peer.host in THIS_MACHINE else "", port),
                block=False,
                evt_handlers=[(evt.EVT_C_STORE, arrivals.take)],
                ssl_context=self._receiving_tls,
            )
        except OSError as error:
            message = f"this machine cannot listen at port {port} ({error.strerror}): name another --receive-port"
            raise NoAnswer(UNREACHABLE, message) from None
        try:
            yield
        finally:
            ours.shutdown()  # also associations that the PACS leaves open: their threads would outlive the program


_NO_GET = (
    "it has no C-GET for us: let it send to this machine (C-MOVE) with --receive-port, for which it must know our AE "
    "title and address"
)


def _send(association: Association, result: Any, outcome: StoreOutcome) -> None:
    uid = str(result.SOPInstanceUID)
    try:
        code = _status(association.send_c_store(result))
    except ValueError:  # of the forms that were proposed, its own was not accepted
        outcome.failed[uid] = f"it takes no {named(str(result.file_meta.TransferSyntaxUID))}"
        return
    if code == SUCCESS:
        outcome.stored.add(uid)
    elif code & 0xF000 != 0xB000:  # a warning: stored, but changed; the PACS is asked whether it has it
        outcome.failed[uid] = f"{code:04X}"


def _contexts(classes: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """For each SOP class and form of its pixels a context, so that the PACS can send each as it has it."""
    if 1 + len(classes) * len(READ) <= MOST_CONTEXTS:
        return [(sop_class, [form]) for sop_class in classes for form in READ]
    return [(sop_class, READ) for sop_class in classes[: MOST_CONTEXTS - 1]]


def _require_senders(association: Association, classes: Sequence[str]) -> None:
    """See that all classes that a PACS has named can come from it, if it has named any."""
    senders = {str(each.abstract_syntax) for each in association.accepted_contexts if each.as_scp}
    lacking = [sop_class for sop_class in classes if sop_class not in senders]
    if lacking and (classes is not USUAL or not senders):
        raise NoAnswer(
            ANSWER,
            f"it sends no {named(lacking[0])} by C-GET: let it send to this machine (C-MOVE) with --receive-port",
        )


def _identifier(level: str, keys: Mapping[str, str], wanted: Iterable[str] = ()) -> Any:
    from pydicom.dataset import Dataset

    identifier = Dataset()
    identifier.QueryRetrieveLevel = level
    for name, value in {**dict.fromkeys(wanted, ""), **keys}.items():
        setattr(identifier, name, value)
    if not all(value.isascii() for value in keys.values()):
        identifier.SpecificCharacterSet = "ISO_IR 192"
    return identifier


def _status(answer: Any) -> int:
    """The status of an answer.

    Raises:
        NoAnswer: none has come.
    """
    if "Status" not in answer:
        raise NoAnswer(UNREACHABLE, "it did not answer in time, or ended the line: repeat this")
    return int(answer.Status)
