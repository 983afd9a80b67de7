"""A request or an answer as bytes: a head of plain JSON, then the arrays one after another. Nothing of it is run.

The head says of each array its name, type, shape and offset; arrays begin at multiples of `ALIGNED` and are read where
they lie. Floats keep their bits: JSON's shortest decimal is read back as the same number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import prod
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedshift.federation.server.update_check import Rejected
from fedshift.mailbox.pieces import Buffers
from fedshift.schema.compression import Packed
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.fingerprint import Reference
from fedshift.schema.guarantee import RiskCurves
from fedshift.schema.identity import own_identity
from fedshift.schema.messages import Answer, Broadcast, Failure, MethodArrays, Scores, SiteInfo, Update
from fedshift.schema.names import Name
from fedshift.schema.paired import LocalComparison
from fedshift.schema.policy import LedgerHead
from fedshift.schema.strict import first_fault

ALIGNED = 64
KINDS = "iuf"
"""Values of `numpy.dtype.kind` that travel: whole and floating numbers."""
LENGTH_BYTES = 8
MOST_DIMENSIONS = 32
LONGEST_HEAD = 1 << 28
"""Bytes of a head; that of scores has a line for every case."""

Part = Literal["weights", "arrays", "codes", "scales"]


class _Head(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), ser_json_inf_nan="constants")


_Model = TypeVar("_Model", bound=_Head)


class Place(_Head):
    """Where an array is in the message; ``method`` for a method's own."""

    part: Part
    method: str = ""
    name: str
    dtype: str = Field(max_length=8)
    shape: tuple[int, ...] = Field(max_length=MOST_DIMENSIONS)
    offset: int = Field(ge=0)


class RequestHead(_Head):
    """Of a `Broadcast`."""

    round: int = Field(ge=0)
    best_round: int = Field(ge=0)
    sites: tuple[Name, ...]
    ledgers: dict[Name, LedgerHead] = {}
    arrays: list[Place] = []


class AnswerHead(_Head):
    """Of an answer: ``update``, ``scores``, or the ``reason`` of a failure; and what made it."""

    site: Name
    round: int
    kind: Literal["Update", "Scores", "Failure"]
    version: str
    source: str
    info: dict[str, Any] | None = None
    ledger: LedgerHead | None = None
    reason: str = ""
    n_samples: int = 0
    n_steps: int = 0
    metrics: dict[str, float] = {}
    values: dict[str, dict[str, float]] = {}
    personal: dict[str, dict[str, float]] = {}
    evaluations: dict[str, Evaluation] = {}
    personal_evaluation: Evaluation | None = None
    against_local: LocalComparison | None = None
    reference: Reference | None = None
    risks: RiskCurves | None = None
    arrays: list[Place] = []


class ContentError(ValueError):
    """Bytes that are no message; the reason continues "the message …"."""


# --- to bytes -------------------------------------------------------------------------------------------


def encode_request(broadcast: Broadcast) -> Buffers:
    """A request's bytes."""
    places, buffers = _laid_out(broadcast)
    head = RequestHead(
        round=broadcast.round,
        best_round=broadcast.best_round,
        sites=broadcast.sites,
        ledgers=broadcast.ledgers,
        arrays=places,
    )
    return [*_framed(head), *buffers]


def encode_answer(answer: Answer) -> Buffers:
    """An answer's bytes, with version and source hash of this fedshift."""
    content, identity = answer.content, own_identity()
    fields: dict[str, Any] = {"kind": type(content).__name__, "site": content.site, "round": int(content.round)}
    buffers: Buffers = []
    if isinstance(content, Update):
        places, buffers = _laid_out(content)
        fields |= {"n_samples": int(content.n_samples), "n_steps": int(content.n_steps), "arrays": places}
        fields["metrics"] = {name: float(value) for name, value in content.metrics.items()}
    elif isinstance(content, Scores):
        fields |= {name: value for name, value in vars(content).items() if name not in fields}
    else:
        fields["reason"] = content.reason
    info = None if answer.info is None else asdict(answer.info)
    head = AnswerHead(version=identity.version, source=identity.source, info=info, ledger=answer.ledger, **fields)
    return [*_framed(head), *buffers]


def _framed(head: BaseModel) -> Buffers:
    """Length and text of a head, filled up so that what follows is aligned."""
    text = head.model_dump_json(exclude_defaults=True).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % ALIGNED)
    return [memoryview(len(text).to_bytes(LENGTH_BYTES, "big")), memoryview(text)]


def _laid_out(message: Broadcast | Update) -> tuple[list[Place], Buffers]:
    """The places of a message's arrays, counted from the end of the head, and their bytes."""
    places: list[Place] = []
    buffers: Buffers = []
    offset = 0
    for part, method, name, value in _arrays(message):
        array = np.asarray(value)
        if array.dtype.kind not in KINDS:
            raise ContentError(f"has {name}, an array of {array.dtype}, and only numbers travel")
        places.append(
            Place(part=part, method=method, name=name, dtype=array.dtype.str, shape=array.shape, offset=offset)
        )
        fill = -array.nbytes % ALIGNED
        buffers += [memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data), memoryview(bytes(fill))]
        offset += array.nbytes + fill
    return places, buffers


def _arrays(message: Broadcast | Update) -> Iterator[tuple[Part, str, str, Any]]:
    for name, value in message.weights.items():
        yield "weights", "", name, value
    for method, named in message.arrays.items():
        for name, value in named.items():
            yield "arrays", method, name, value
    for name, packed in message.packed.items():
        yield "codes", "", name, packed.codes
        if packed.scale is not None:
            yield "scales", "", name, packed.scale


# --- from bytes -----------------------------------------------------------------------------------------


def decode_request(content: memoryview) -> Broadcast:
    """A request. Whatever was sent, this returns numbers, names and arrays of numbers.

    Raises:
        ContentError: it is none.
    """
    head, rest = _opened(content, RequestHead)
    if head.best_round > head.round:
        raise ContentError(f"has best_round {head.best_round} in round {head.round}")
    weights, arrays, packed = _placed(head.arrays, rest)
    return Broadcast(head.round, head.best_round, weights, arrays, head.sites, packed, head.ledgers)


def decode_answer(content: memoryview) -> Answer:
    """An answer.

    Raises:
        ContentError: it is none.
        Rejected: it was made by another version or source of fedshift.
    """
    head, rest = _opened(content, AnswerHead)
    identity = own_identity()
    if (head.version, head.source) != (identity.version, identity.source):
        raise Rejected(
            "version",
            f"the site runs fedshift {head.version} (source {head.source}), the coordinator fedshift {identity}: "
            "install the same on both",
        )
    decoded: Update | Scores | Failure
    if head.kind == "Update":
        weights, arrays, packed = _placed(head.arrays, rest)
        decoded = Update(head.site, head.round, head.n_samples, head.n_steps, weights, head.metrics, arrays, packed)
    elif head.kind == "Scores":
        decoded = Scores(
            head.site,
            head.round,
            head.values,
            head.personal,
            head.evaluations,
            head.personal_evaluation,
            head.against_local,
            head.reference,
            head.risks,
        )
    else:
        decoded = Failure(head.site, head.round, head.reason)
    try:
        info = None if head.info is None else _INFO.validate_python(head.info)
    except ValidationError as error:
        raise ContentError(f"does not describe a site's data ({first_fault(error)})") from None
    if info is not None and info.site != head.site:
        raise ContentError(f"describes site {info.site} in the answer of site {head.site}")
    return Answer(decoded, info, head.ledger)


_INFO = TypeAdapter(SiteInfo)


def _opened(content: memoryview, model: type[_Model]) -> tuple[_Model, memoryview]:
    """The head, and the bytes after it."""
    length = int.from_bytes(content[:LENGTH_BYTES], "big")
    if not 2 <= length <= min(LONGEST_HEAD, len(content) - LENGTH_BYTES):
        raise ContentError("has no head")
    try:
        head = model.model_validate_json(bytes(content[LENGTH_BYTES : LENGTH_BYTES + length]))
    except (ValidationError, RecursionError) as error:
        fault = first_fault(error) if isinstance(error, ValidationError) else "nested too deeply"
        raise ContentError(f"is not as this fedshift writes it ({fault})") from None
    return head, content[LENGTH_BYTES + length :]


def _placed(
    places: Sequence[Place], content: memoryview
) -> tuple[dict[str, np.ndarray], MethodArrays, dict[str, Packed]]:
    """The arrays where they lie."""
    parts: dict[Part, dict[tuple[str, str], np.ndarray]] = {"weights": {}, "arrays": {}, "codes": {}, "scales": {}}
    for place in places:
        array, key = _array(place, content), (place.method, place.name)
        if key in parts[place.part]:
            raise ContentError(f"has {place.name} twice")
        parts[place.part][key] = array
    methods: MethodArrays = {}
    for (method, name), array in parts["arrays"].items():
        methods.setdefault(method, {})[name] = array
    return _named(parts["weights"]), methods, _packed(_named(parts["codes"]), _named(parts["scales"]))


def _array(place: Place, content: memoryview) -> np.ndarray:
    try:
        dtype = np.dtype(place.dtype)
    except TypeError:
        raise ContentError(f"has {place.name} without a type") from None
    count = prod(place.shape)
    if dtype.kind not in KINDS or dtype.hasobject or any(length < 0 for length in place.shape):
        raise ContentError(f"has {place.name}, which is no array of numbers")
    if place.offset % ALIGNED or place.offset + count * dtype.itemsize > len(content):
        raise ContentError(f"does not hold all of {place.name}")
    array = np.frombuffer(content, dtype, count, place.offset) if count else np.empty(0, dtype)
    return array.reshape(place.shape)


def _named(arrays: Mapping[tuple[str, str], np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for (_, name), array in arrays.items()}


def _packed(codes: Mapping[str, np.ndarray], scales: Mapping[str, np.ndarray]) -> dict[str, Packed]:
    packed = {}
    for name in {**codes, **scales}:
        try:
            packed[name] = Packed(codes.get(name), scales.get(name))  # type: ignore[arg-type]
        except ValueError as error:
            raise ContentError(f"has {name}, which {error}") from None
    return packed
