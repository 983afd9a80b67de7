"""Model files: plain network keys under ``weights`` behind a header, loadable with ``weights_only=True``.

Of a job with adapters, ``weights`` are the base's with the adapters merged into them, and the header's job has none:
such a model is used as any other. The adapters lie beside them under ``adapter_weights``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

import fedshift
from fedshift.federation.tensors import read_tensors, to_arrays, to_tensors, write_tensors
from fedshift.schema import components
from fedshift.schema.adaptation import Adaptation
from fedshift.schema.adapters import AdaptersSpec
from fedshift.schema.errors import ConfigError, FedshiftError
from fedshift.schema.evaluation import Share
from fedshift.schema.fingerprint import Reference
from fedshift.schema.guarantee import Guarantee
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import MethodArrays, Weights
from fedshift.schema.names import ClassName, Line, Name
from fedshift.schema.packages import PackageSpec
from fedshift.schema.results import MODEL_FORMAT, MODEL_SCHEMA, Lineage
from fedshift.schema.strict import Strict
from fedshift.tasks.adapters import merge, with_adapters
from fedshift.tasks.kinds import build_task
from fedshift.tasks.starting import base_weights

FORMAT, SCHEMA = MODEL_FORMAT, MODEL_SCHEMA
ADAPTED = "adapter_weights"
ARRAYS = ("weights", "methods", ADAPTED)
"""What of a model file is no header."""

Kind = Literal["phantom", "patients", "images"]


class Header(Strict):
    """The header of a model file: what the file says about the model.

    Attributes:
        kind: what the training data are.
        sites: names of the sites whose training went into the model, up to its round.
        lineage: data set -> sites that trained the weights that the run started from, or those that these started
            from.
        statistics: names of the sites, in order, whose arrays of the statistics round are stacked in the methods'
            arrays, such as FedRDN's pairs.
        scores: scores of the round, as far as they were known when the file was written.
        preparation: as `fedshift.tasks.base.Task.preparation` returns it.
        personal: keys that each site keeps for itself; the file has the values of the start of the run for them.
        encrypted: True if the weights are ciphertexts, which a site must decrypt first.
        references: what sites tell of the scans that the model was trained on, if the job asked them.
        thresholds: of findings, site -> class -> the probability from which on it is said to be there, as the site's
            validation part has chosen it for this model.
        specific: likewise of all classes, the probability that has the job's ``evaluation.specificity`` there.
        adaptation: what ``fedshift adapt`` did at one hospital, after the run. ``scores`` are then empty, unless the
            model was kept as it was.
        guarantee: what outlines or sets of classes at certain levels promise, and to whom.
        adapters: those that were trained, and merged into the weights of ``job``'s file.
    """

    format: Literal["fedshift model"]
    schema_: Literal[3] = Field(alias="schema")
    fedshift: Line
    job: JobSpec
    round: int = Field(ge=0)
    kind: Kind
    sites: tuple[Name, ...]
    lineage: dict[Name, tuple[Name, ...]]
    statistics: tuple[Name, ...]
    scores: dict[Name, float]
    preparation: dict[str, Any]
    personal: tuple[Line, ...]
    initial_weights: Line
    encrypted: bool
    references: dict[Name, Reference] = {}
    thresholds: dict[Name, dict[ClassName, Share]] = {}
    specific: dict[Name, dict[ClassName, Share]] = {}
    adaptation: Adaptation | None = None
    guarantee: Guarantee | None = None
    adapters: AdaptersSpec | None = None


def write_model_file(
    path: Path,
    *,
    job: JobSpec,
    round_: int,
    weights: Weights,
    methods: MethodArrays,
    personal: Sequence[str],
    scores: dict[str, float],
    kind: Kind,
    sites: Sequence[str],
    lineage: Lineage,
    statistics: Sequence[str],
    initial_weights: str,
    encrypted: bool = False,
    base: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a model (whole or not at all), with the ``methods``' arrays such as FedRDN's pairs. The rest: `Header`.

    ``base``: the weights that the job's adapters are merged into, if they have been read already.
    """
    adapters, tensors = job.task.network.adapters, to_tensors(weights)
    trained: dict[str, Any] = {}
    if adapters is not None and not encrypted:
        trained = {"adapters": adapters.model_dump(mode="json"), ADAPTED: tensors}
        tensors, job = merge(base_weights(job) if base is None else base, tensors, adapters), with_adapters(job, None)
    content = {
        "format": FORMAT,
        "schema": SCHEMA,
        "fedshift": fedshift.__version__,
        "job": job.dump(),
        "round": round_,
        "kind": kind,
        "sites": list(sites),
        "lineage": {dataset: list(named) for dataset, named in lineage.items()},
        "statistics": list(statistics),
        "scores": scores,
        "preparation": build_task(job).preparation(),
        "personal": list(personal),
        "initial_weights": initial_weights,
        "encrypted": encrypted,
        "weights": tensors,
        "methods": {name: to_tensors(arrays) for name, arrays in methods.items()},
        **trained,
    }
    write_tensors(content, path)


def add_references(path: Path, references: Mapping[str, Reference]) -> None:
    """Add what sites tell of their scans to a model file, whose other content stays the same."""
    content = {site: reference.model_dump(mode="json") for site, reference in references.items()}
    write_tensors({**read_model_file(path), "references": content}, path)


def add_thresholds(
    path: Path, *, thresholds: dict[str, dict[str, float]], specific: dict[str, dict[str, float]]
) -> None:
    """Add the thresholds that sites have chosen to a model file, whose other content stays the same."""
    write_tensors({**read_model_file(path), "thresholds": thresholds, "specific": specific}, path)


def add_guarantee(source: Path, guarantee: Guarantee, *, path: Path | None = None) -> None:
    """Add what a model promises to its file, or to a copy in ``path``; its other content stays the same."""
    write_tensors({**read_model_file(source), "guarantee": guarantee.model_dump(mode="json")}, path or source)


def write_adapted(source: Path, path: Path, *, weights: Weights, adaptation: Adaptation) -> None:
    """Write the model of ``source`` with these weights, and what its adaptation was.

    Its scores were those of other weights, as was what it promises: both go with it only if it was kept.
    """
    content = read_model_file(source) | {"adaptation": adaptation.model_dump(mode="json")}
    if adaptation.decision != "kept":
        content |= {"weights": to_tensors(weights), "scores": {}, "guarantee": None}
        content.pop(ADAPTED, None)
    write_tensors(content, path)


def write_postprocessed(source: Path, path: Path, *, job: JobSpec) -> None:
    """Write the model of ``source`` with a job that treats its masks otherwise; its scores were of other masks."""
    write_tensors({**read_model_file(source), "job": job.dump(), "scores": {}}, path)


def read_model(path: Path, *, round_: int) -> tuple[Weights, MethodArrays]:
    """Weights and methods' arrays of the model file of a round, as sites have them: of adapters those alone.

    Raises:
        ConfigError: as `read_model_file`, or another round's model is there.
    """
    content = read_model_file(path)
    if content["round"] != round_:
        raise ConfigError(
            "other-round", f"{path} is the model of round {content['round']}, not {round_}: start the run anew"
        )
    weights = content.get(ADAPTED, content["weights"])
    return to_arrays(weights), {name: to_arrays(tensors) for name, tensors in content["methods"].items()}


def read_model_file(path: Path) -> dict[str, Any]:
    """Read a model that `write_model_file` wrote.

    Raises:
        ConfigError: as `read_with_header`; or it needs a package that is not installed here in the version and with the
            hash that it names; or it does not fit the network of its own job.
    """
    header, content = read_with_header(path)
    components.admit(header.job.packages, where=str(path))
    if not header.encrypted:
        _check_fits(header.job, content["weights"], where=str(path))
    return content


def checked_model(
    content: dict[str, Any], *, where: str, packages: Mapping[str, PackageSpec] | None = None
) -> dict[str, Any]:
    """Content that did not come from a model file, which is no other for that; raises as `read_model_file`.

    ``packages``: as ``listed`` of `fedshift.schema.components.admit`.
    """
    header = _checked_header(content, where=where)
    components.admit(header.job.packages, where=where, listed=packages)
    _check_fits(header.job, content["weights"], where=where)
    return content


def read_with_header(path: Path) -> tuple[Header, dict[str, Any]]:
    """The header and all of a model file, which is compared with no network; nothing in it is run.

    Raises:
        ConfigError: not there, truncated, of another make or a newer version, or its weights are not finite.
    """
    if not path.is_file():
        problem = "is a folder, not a model file" if path.is_dir() else "does not exist"
        near = did_you_mean(path) if path.is_dir() else did_you_mean(path.parent, path.name)
        raise ConfigError("model-missing", f"{path} {problem}{near}")
    content = read_tensors(path, "copy it again from the server")
    return _checked_header(content, where=str(path)), content


def _checked_header(content: Any, *, where: str) -> Header:
    """The header of a model, if its parts are what they should be."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError("not-a-model", f"{where} is not a model that fedshift wrote")
    if content.get("schema") != SCHEMA:
        raise ConfigError(
            "other-version",
            f"{where} is a model file of schema {content.get('schema')!s:.20} and fedshift "
            f"{content.get('fedshift')!s:.40}, this version reads schema {SCHEMA}: install that version",
        )
    header = header_of(content, where=where)
    if header.job.task.network.adapters is not None and not header.encrypted:
        raise ConfigError("file-damaged", f"{where} has adapters that are not merged: copy it again from the server")
    arrays = content.get("methods")
    named = [content.get("weights"), content.get(ADAPTED, {}), *(arrays.values() if isinstance(arrays, dict) else ())]
    if not isinstance(arrays, dict) or not all(map(_named_tensors, named)):
        raise ConfigError("file-damaged", f"{where} does not hold arrays by name: copy it again from the server")
    odd = [key for key, value in content["weights"].items() if not torch.isfinite(value).all()]
    if odd and not header.encrypted:
        raise ConfigError(
            "file-damaged", f"{where}: {odd[0]} has numbers that are not finite: copy it again from the server"
        )
    return header


def did_you_mean(folder: Path, name: str = "best_global_model.pt") -> str:
    """The end of a sentence about a missing model: the first in a folder or, as of the simulator, two levels below."""
    below = [path for depth in ("", "*/", "*/*/") for path in sorted(folder.glob(f"{depth}{name}")) if path.is_file()]
    return f": did you mean {below[0]}?" if below else ""


def header_of(content: dict[str, Any], *, where: str) -> Header:
    """The header of what `read_model_file` returns; ConfigError if something in it is missing or has no place there."""
    return Header.parse({key: value for key, value in content.items() if key not in ARRAYS}, where=where)


def _check_fits(job: JobSpec, weights: dict[str, Tensor], *, where: str) -> None:
    """Compare with the network of the job, which is built without memory or random numbers."""
    unfit = f"{where} does not fit its own job, it is damaged or was changed"
    try:
        with torch.device("meta"):
            wanted = build_task(job).network().state_dict()
    except FedshiftError as error:
        raise ConfigError("file-damaged", f"{unfit} ({error})") from None
    fault = next(filter(None, (_fault(key, weights.get(key), wanted.get(key)) for key in {**wanted, **weights})), "")
    if fault:
        raise ConfigError("file-damaged", f"{unfit}: {fault}; copy it again from the server")


def _fault(key: str, value: Tensor | None, wanted: Tensor | None) -> str:
    """What is wrong with an array of a model file; empty if nothing is."""
    if value is None or wanted is None:
        return f"{key} is missing" if value is None else f"{key} has no place in the network"
    if value.shape != wanted.shape or value.dtype != wanted.dtype:
        return f"{key} is {_described(value)}, the network's {_described(wanted)}"
    return ""


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _named_tensors(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())
