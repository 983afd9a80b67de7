"""Convert fedshift's messages to FLARE's DXOs and back. No other module does so.

A task is a COLLECTION of ``weights`` and ``arrays``. An answer is a COLLECTION with one entry a site (a client may host
several), each again a COLLECTION, so that FLARE's DXO filters reach every array. Packed weights are in a COLLECTION of
their own, ``packed``, present only if there are any: ``codes`` and, where a weight has one, ``scales``, both under the
network's keys. Arrays are numpy and keep dtype and shape, 0-d included; everything else is plain Python in the DXO's
``meta``. Every answer carries the version and source hash of the fedshift that made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from pydantic import BaseModel, ValidationError

from fedshift.schema.compression import Packed
from fedshift.schema.errors import FedshiftError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.fingerprint import Fingerprint, Reference
from fedshift.schema.guarantee import RiskCurves
from fedshift.schema.identity import Identity, own_identity
from fedshift.schema.messages import Answer, Broadcast, Failure, MethodArrays, Scores, SiteInfo, Update
from fedshift.schema.paired import LocalComparison
from fedshift.schema.policy import LedgerHead
from fedshift.schema.strict import first_fault, sentence
from flare_armour import patches
from flare_armour.pieces.array_files import KEY

patches.install()  # every process that sends or receives a message imports this module

_Model = TypeVar("_Model", bound=BaseModel)

STATISTICS, TRAIN, UNMASK, VALIDATE = "statistics", "train", "unmask", "validate"
"""Task names."""
SURVEY = "survey"
"""The task of a survey, which is a job of its own."""
FINGERPRINT = "fingerprint"
"""What an answer to it is called in the message."""
SCORE, VALIDATION = "score", "validation"
"""The same of a validation."""
OPTIONAL: dict[str, type[BaseModel]] = {"against_local": LocalComparison, "reference": Reference, "risks": RiskCurves}
"""Parts that scores may have, by their names in the message."""


class WireError(FedshiftError):
    """A message that cannot be decoded."""

    def __init__(self, key: str, reason: str) -> None:
        """``key`` names the part at fault, ``reason`` says what is wrong with it."""
        super().__init__("message-damaged", f"{key}: {reason}")
        self.key, self.reason = key, reason


# --- server to sites ------------------------------------------------------------------------------------


def encode_task(broadcast: Broadcast) -> Shareable:
    """Encode a task's data. The statistics round needs no weights: leave them out of the broadcast.

    The arrays are read-only views of the broadcast's, because all clients get the same.
    """
    data = {
        "weights": _arrays(DataKind.WEIGHTS, _read_only(broadcast.weights)),
        **_packed(broadcast.packed),
        "arrays": _methods({method: _read_only(named) for method, named in broadcast.arrays.items()}),
    }
    meta: dict[str, Any] = {"round": broadcast.round, "best_round": broadcast.best_round, "sites": [*broadcast.sites]}
    if broadcast.ledgers:
        meta["ledgers"] = {site: head.model_dump() for site, head in broadcast.ledgers.items()}
    return DXO(DataKind.COLLECTION, data=data, meta=meta).to_shareable()


def decode_task(shareable: Shareable) -> Broadcast:
    """Decode a task's data at a site. Whatever a server sends, this returns numbers, names and arrays of numbers.

    Raises:
        WireError: not a task of fedshift.
    """
    dxo = _open(shareable)
    round_, best_round = _number(dxo, "round"), _number(dxo, "best_round")
    if not 0 <= best_round <= round_:
        raise WireError("best_round", f"is {best_round} in round {round_}; it is between 0 and the round")
    sites = dxo.get_meta_prop("sites", ())
    if not isinstance(sites, list | tuple) or not all(type(site) is str for site in sites):
        raise WireError("sites", "is no list of names")
    return Broadcast(
        round=round_,
        best_round=best_round,
        weights=_numbers("weights", _part(dxo, "weights")),
        arrays=_methods_of(dxo, checked=True),
        sites=tuple(sites),
        packed=_packed_part(dxo),
        ledgers=_heads(dxo.get_meta_prop("ledgers", {})),
    )


# --- sites to server ------------------------------------------------------------------------------------


def encode_answers(answers: Sequence[Answer]) -> Shareable:
    """Encode a client's answer, with one entry for each of its sites."""
    data = {answer.content.site: _encode(answer) for answer in answers}
    return DXO(DataKind.COLLECTION, data=data, meta={"fedshift": asdict(own_identity())}).to_shareable()


def decode_answers(shareable: Shareable) -> list[Answer]:
    """Decode a client's answer at the server.

    Raises:
        WireError: not an answer of fedshift, or made by another version or source of it (both are named).
    """
    dxo = _open(shareable)
    _require_same(dxo)
    return [_decode(site, part) for site, part in dxo.data.items()]


def encode_told(part: str, answer: BaseModel | str, *, ledger: LedgerHead | None = None) -> Shareable:
    """Encode a site's answer to a job with one question, or why it has none; and its ledger's head if it has one.

    ``part``: what the answer is called in the message.
    """
    meta: dict[str, Any] = {"fedshift": asdict(own_identity())}
    meta |= {"reason": answer} if isinstance(answer, str) else {part: answer.model_dump_json()}
    if ledger is not None:
        meta["ledger"] = ledger.model_dump()
    return DXO(DataKind.COLLECTION, data={}, meta=meta).to_shareable()


def decode_told(part: str, model: type[_Model], shareable: Shareable) -> _Model:
    """Decode such an answer at the server.

    Raises:
        WireError: it is none, or that of another version of fedshift; or the site says why it has none.
    """
    dxo = _open(shareable)
    _require_same(dxo)
    reason, text = dxo.get_meta_prop("reason"), dxo.get_meta_prop(part)
    if reason is not None:
        raise WireError(part, str(reason))
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise WireError(part, first_fault(error)) from None


def told_ledger(shareable: Shareable) -> LedgerHead | None:
    """The head of a site's ledger in such an answer.

    Raises:
        WireError: it is none.
    """
    return _optional(LedgerHead, "ledger", _open(shareable))


def decode_survey(shareable: Shareable) -> Fingerprint:
    """Decode a site's answer to a survey; raises as `decode_told`."""
    return decode_told(FINGERPRINT, Fingerprint, shareable)


def _require_same(dxo: DXO) -> None:
    """Refuse an answer of another version or source of fedshift."""
    theirs = dxo.get_meta_prop("fedshift")
    try:
        identity = Identity(str(theirs["version"]), str(theirs["source"]))
    except (TypeError, KeyError):
        raise WireError("version", "the answer does not say which fedshift made it") from None
    if identity != own_identity():
        raise WireError(
            "version",
            f"the site runs fedshift {identity}, the server fedshift {own_identity()}: install the same on both",
        )


def _encode(answer: Answer) -> DXO:
    content = answer.content
    meta: dict[str, Any] = {"kind": type(content).__name__, "round": int(content.round)}
    if answer.info is not None:
        info = asdict(answer.info)
        if info["devices"] == 1:  # as nearly everywhere
            del info["devices"]
        meta["info"] = info
    if answer.ledger is not None:
        meta["ledger"] = answer.ledger.model_dump()
    data: dict[str, DXO] = {}
    if isinstance(content, Update):
        meta |= {"n_samples": int(content.n_samples), "n_steps": int(content.n_steps)}
        data = {
            "weights": _arrays(DataKind.WEIGHTS, content.weights),
            **_packed(content.packed),
            "arrays": _methods(content.arrays),
            "metrics": _metrics(content.metrics),
        }
    elif isinstance(content, Scores):
        data = {"values": _splits(content.values), "personal": _splits(content.personal)}
        meta["evaluations"] = {part: scores.model_dump(mode="json") for part, scores in content.evaluations.items()}
        personal = content.personal_evaluation
        meta["personal_evaluation"] = None if personal is None else personal.model_dump(mode="json")
        for name in OPTIONAL:
            part = getattr(content, name)
            if part is not None:
                meta[name] = part.model_dump(mode="json")
    else:
        meta["reason"] = content.reason
    return DXO(DataKind.COLLECTION, data=data, meta=meta)


def _decode(site: str, dxo: DXO) -> Answer:
    if not isinstance(dxo, DXO) or not isinstance(dxo.data, dict):
        raise WireError("answer", f"the entry of site {site} is not a DXO")
    kind, round_ = dxo.get_meta_prop("kind"), _number(dxo, "round")
    content: Update | Scores | Failure
    if kind == Update.__name__:
        content = Update(
            site=site,
            round=round_,
            n_samples=_number(dxo, "n_samples"),
            n_steps=_number(dxo, "n_steps"),
            weights=_part(dxo, "weights").data,
            metrics=_floats(_part(dxo, "metrics")),
            arrays=_methods_of(dxo),
            packed=_packed_part(dxo),
        )
    elif kind == Scores.__name__:
        content = _decode_scores(site, round_, dxo)
    elif kind == Failure.__name__:
        content = Failure(site, round_, str(dxo.get_meta_prop("reason")))
    else:
        raise WireError("kind", f"{kind!r} is no kind of answer")
    info = dxo.get_meta_prop("info")
    try:
        answer = Answer(content, None if info is None else SiteInfo(**info), _optional(LedgerHead, "ledger", dxo))
    except TypeError:
        raise WireError("info", "does not describe a site's data") from None
    if answer.info is not None and answer.info.site != site:
        raise WireError("info", f"describes site {answer.info.site} in the answer of site {site}")
    return answer


def _decode_scores(site: str, round_: int, dxo: DXO) -> Scores:
    values, personal = (
        {split: _floats(_part(part, split)) for split in part.data}
        for part in (_part(dxo, "values"), _part(dxo, "personal"))
    )
    evaluations = dxo.get_meta_prop("evaluations")
    if not isinstance(evaluations, dict):
        raise WireError("evaluations", "is missing from the message")
    return Scores(
        site,
        round_,
        values,
        personal,
        {str(part): _checked(Evaluation, f"evaluations.{part}", value) for part, value in evaluations.items()},
        _optional(Evaluation, "personal_evaluation", dxo),
        **{name: _optional(model, name, dxo) for name, model in OPTIONAL.items()},  # type: ignore[arg-type]
    )


# --- parts ----------------------------------------------------------------------------------------------


def _read_only(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    views = {name: np.asarray(value).view() for name, value in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def _arrays(kind: str, arrays: Mapping[str, Any]) -> DXO:
    # FLARE cannot send numpy's scalars: np.asarray makes 0-d arrays of them.
    return DXO(kind, data={name: np.asarray(value) for name, value in arrays.items()})


def _methods(arrays: MethodArrays) -> DXO:
    data = {method: _arrays(DataKind.STATISTICS, named) for method, named in arrays.items()}
    return DXO(DataKind.COLLECTION, data=data)


def _packed(packed: Mapping[str, Packed]) -> dict[str, DXO]:
    if not packed:
        return {}
    parts = {
        "codes": {key: value.codes for key, value in packed.items()},
        "scales": {key: value.scale for key, value in packed.items() if value.scale is not None},
    }
    data = {name: _arrays(DataKind.WEIGHTS, named) for name, named in parts.items()}
    return {"packed": DXO(DataKind.COLLECTION, data=data)}


def _metrics(metrics: Mapping[str, float]) -> DXO:
    return DXO(DataKind.METRICS, data={name: float(value) for name, value in metrics.items()})


def _splits(splits: Mapping[str, Mapping[str, float]]) -> DXO:
    return DXO(DataKind.COLLECTION, data={split: _metrics(values) for split, values in splits.items()})


def _checked(model: type[_Model], key: str, value: object) -> _Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise WireError(f"{key}.{place}" if place else key, sentence(fault)) from None
    except RecursionError:
        raise WireError(key, "nested too deeply") from None


def _optional(model: type[_Model], key: str, dxo: DXO) -> _Model | None:
    value = dxo.get_meta_prop(key)
    return None if value is None else _checked(model, key, value)


def _heads(value: object) -> dict[str, LedgerHead]:
    if not isinstance(value, dict) or not all(type(site) is str for site in value):
        raise WireError("ledgers", "are not told by site")
    return {site: _checked(LedgerHead, f"ledgers.{site}", head) for site, head in value.items()}


def _open(shareable: Shareable) -> DXO:
    if KEY in shareable:
        raise WireError("arrays", "did not come whole")
    try:
        dxo = from_shareable(shareable)
    except ValueError as error:
        raise WireError("message", str(error)) from None
    if dxo.data_kind != DataKind.COLLECTION or not isinstance(dxo.data, dict):
        raise WireError("message", f"is a DXO of kind {dxo.data_kind}, not {DataKind.COLLECTION}")
    return dxo


def _part(dxo: DXO, name: str) -> DXO:
    part = dxo.data.get(name)
    if not isinstance(part, DXO) or not isinstance(part.data, dict):
        raise WireError(name, "is missing from the message")
    return part


def _numbers(where: str, part: DXO) -> dict[str, np.ndarray]:
    """The arrays of a part, which must be arrays of whole or floating numbers: nothing else is used as weights."""
    for name, value in part.data.items():
        if type(name) is not str:
            raise WireError(where, f"has {name!r} for a name")
        if type(value) is not np.ndarray or value.dtype.kind not in "iuf":
            kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
            raise WireError(f"{where}/{name}", f"is {kind}, not an array of numbers")
    return dict(part.data)


def _methods_of(dxo: DXO, *, checked: bool = False) -> MethodArrays:
    """The methods' arrays. Those of a site are checked against their specifications later, those of a server here."""
    arrays = _part(dxo, "arrays")
    if checked and not all(type(method) is str for method in arrays.data):
        raise WireError("arrays", "has names that are no text")
    parts = {method: _part(arrays, method) for method in arrays.data}
    return {method: _numbers(method, part) if checked else part.data for method, part in parts.items()}


def _packed_part(dxo: DXO) -> dict[str, Packed]:
    if "packed" not in dxo.data:
        return {}
    part = _part(dxo, "packed")
    codes, scales = _part(part, "codes").data, _part(part, "scales").data
    packed = {}
    for key in {**codes, **scales}:
        try:
            packed[key] = Packed(codes.get(key), scales.get(key))
        except ValueError as error:
            raise WireError(f"packed.{key}", str(error)) from None
    return packed


def _number(dxo: DXO, name: str) -> int:
    value = dxo.get_meta_prop(name)
    if type(value) is not int:  # True would be another round than 1 to whoever keeps a record by round
        raise WireError(name, f"is {value!r}, not a whole number")
    return value


def _floats(dxo: DXO) -> dict[str, float]:
    for name, value in dxo.data.items():
        if not isinstance(value, float):
            raise WireError(f"metrics.{name}", f"is a {type(value).__name__}, not a number")
    return dict(dxo.data)
