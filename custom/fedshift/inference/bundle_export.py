"""Export a segmentation model as a MONAI bundle, which runs with MONAI and torch but without fedshift.

MONAI's transforms read, orient and save the scans. The steps between are the files of `fedshift.runtime`, which
``fedshift predict`` itself runs, copied as they are into the bundle's ``scripts/``. The masks are therefore the same.
Configuration, metadata and model card are filled in from the files of ``bundle_templates/``.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import fedshift
from fedshift import runtime
from fedshift.data.picture_scan import COLOURS
from fedshift.federation.model_files import Header
from fedshift.inference.export import write_torchscript
from fedshift.inference.model import Model
from fedshift.inference.plausible import expected_of
from fedshift.inference.ready import ReadyModel
from fedshift.runtime.segmentation import PatchSpec, SliceSpec
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import written_whole

TEMPLATES = Path(__file__).parent / "bundle_templates"
RUNTIME = Path(runtime.__file__).parent
"""The files of a bundle's ``scripts/``."""
USUAL = (("written", ()), ("bias_field", "none"), ("convention", "fedshift"))
"""Settings that a configuration leaves out."""
DATA_DESCRIPTIONS = {
    "phantom": "simulated scans (phantom), no patients",
    "patients": "scans of patients",
    "images": "images",
}


def check_bundle(ready: ReadyModel, folder: Path) -> None:
    """Refuse a model that is none of segmentation, and a folder that is there (`ConfigError`)."""
    if not ready.model.is_segmentation:
        message = f"{ready.model.path} is an image classifier: export it with --onnx or --torch-export"
        raise ConfigError("wrong-task", message)
    if folder.exists():
        raise ConfigError("output-exists", f"{folder} already exists: name a new folder")


def write_bundle(ready: ReadyModel, folder: Path, *, true_spacing: bool = False) -> None:
    """Write the bundle to ``folder``. If anything fails, nothing is written.

    Args:
        ready: the model.
        folder: must not exist yet.
        true_spacing: what the bundle's option of this name is, of a model that works on patches: whether voxels of
            1 x 1 x 1 mm are no placeholder.

    Raises:
        ConfigError: the model is not a segmentation model, the folder exists, or the network cannot be traced.
    """
    check_bundle(ready, folder)
    facts = {**_facts(ready), **_image_facts(ready.model), "true_spacing": true_spacing}
    described = json.loads(_filled_in("metadata.json.j2", facts))
    _refuse_code(described, ready.model.path)
    with written_whole(folder) as staging:
        for part in ("configs", "docs", "models", "scripts"):
            (staging / part).mkdir()
        write_torchscript(ready, staging / "models" / "model.ts", named=folder)
        for name, text in {
            "configs/metadata.json": json.dumps(described, indent=2, ensure_ascii=False) + "\n",
            "configs/inference.json": _filled_in("inference.json.j2", facts),
            "docs/README.md": _filled_in("README.md.j2", facts),
            "LICENSE": _licence_text(),
        }.items():
            (staging / name).write_text(text, encoding="utf-8")
        for file in RUNTIME.glob("*.py"):
            shutil.copyfile(file, staging / "scripts" / file.name)


def _refuse_code(content: Any, path: Path) -> None:
    """Refuse metadata that MONAI would execute or resolve: texts that begin with $, @ or %."""
    for value in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        _refuse_code(value, path)
    if isinstance(content, str) and content.lstrip().startswith(("$", "@", "%")):
        message = f"{path} names something {content[:40]!r}, which MONAI would execute: it is not exported"
        raise ConfigError("executable-text", message)


def _filled_in(template: str, facts: Mapping[str, Any]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=False,  # Markdown: `_text` leaves no markup in texts of the model file; in JSON `tojson` quotes all
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(text=_text, options=_options, numbered=_numbered)
    return environment.get_template(template).render(facts)


def _facts(ready: ReadyModel) -> dict[str, Any]:
    """What the templates say of the model. Sites stay unnamed: they may not want to be known."""
    model, header, job = ready.model, ready.model.header, ready.model.header.job
    spec, classes, structures = model.spec, job.task.classes[1:], job.task.structures
    assert spec is not None
    expected, data = expected_of(classes[0]), DATA_DESCRIPTIONS[header.kind]
    numbered = ", ".join(f"{number} is {name}" for number, name in enumerate(classes, start=1))
    return {
        "header": header,
        "methods": job.methods,
        "network": job.task.network,
        "rounds": job.task.schedule.rounds,
        "precision": job.task.schedule.precision,
        "seed": job.seed,
        "notes": ready.notes,
        "data": data,
        "target": " and ".join([", ".join(structures[:-1]), structures[-1]] if len(structures) > 1 else structures),
        "classes": classes,
        "labels": f"single channel data, {numbered}, 0 is everything else",
        "logits": [f"logit of {name}" for name in (job.task.structures if job.task.regions else job.task.classes)],
        "modality": "n/a" if expected is None else expected.modality,
        "description": (
            f"Trained by federated learning ({'+'.join(job.methods)}) at {len(header.sites)} sites on {data}; model of "
            f"round {header.round} of {job.task.schedule.rounds}. This file does not record whether the sites were "
            f"hospitals or a simulation on one machine. {_statistics_sentence(ready)}{_adapted(header)}"
        ),
        "spec": spec,
        "spec_component": {
            "_target_": f"scripts.segmentation.{type(spec).__name__}",
            **{key: value for key, value in asdict(spec).items() if (key, value) not in USUAL},
        },
        "sequences": max(len(model.sequences), 1),
        "pictures": model.of_pictures,
        "colours": [COLOURS.index(name.lower()) for name in model.sequences if name.lower() in COLOURS],
        "spatial": model.task.spatial,
        "intensities": model.task.intensities,
        "patches": model.uses_spacing,
        "by_matrix": model.resamples_by_matrix,
        "bias_field": spec.bias_field if isinstance(spec, PatchSpec) else "none",
        "version": fedshift.__version__,
        "packages": {name: _version(name) for name in ("monai", "torch", "numpy")},
        "required": {name: _version(name) for name in _required(model)},
    }


def _required(model: Model) -> list[str]:
    """What a bundle needs besides MONAI's own packages and SciPy."""
    corrects = isinstance(model.spec, PatchSpec) and model.spec.bias_field == "n4"
    return ["pillow" if model.of_pictures else "nibabel", *(["SimpleITK"] if corrects else [])]


def _version(package: str) -> str:
    return metadata.version(package).partition("+")[0]


def _image_facts(model: Model) -> dict[str, Any]:
    """What is said of images: ``what`` is segmented how, the ``image``, its ``channels``, the ``input`` files."""
    spec, sequences = model.spec, model.sequences or ("the image",)
    assert spec is not None
    offsets = [channel - spec.context // 2 for channel in range(spec.context)]
    if isinstance(spec, SliceSpec):
        return {
            "what": "in volumes, slice by slice",
            "image": f"{spec.context} neighbouring slices, intensity scaled to [0, {spec.scale:g}]",
            "channels": [f"slice {offset:+d}" if offset else "the slice" for offset in offsets],
            "input": "one axial volume as a NIfTI file",
        }
    size = " x ".join(map(str, spec.patch))
    files = "one volume as a NIfTI file"
    if len(sequences) > 1:
        named = ", ".join(f"`_{number:04d}` for {name}" for number, name in enumerate(sequences))
        files = f"the NIfTI files of a case on one grid, whose names end in {named}"
    if model.of_pictures:
        return {
            "what": f"in pictures, in patches of {size} pixels",
            "image": f"{', '.join(sequences)} of a picture, normalised ({spec.normalise})",
            "channels": list(sequences),
            "input": f"a picture in {'grey' if model.sequences == () else 'colour'} as PNG, JPEG, TIFF or BMP",
            "size": size,
            "grid": "its own size" if spec.matrix is None else f"{spec.matrix} pixels along its longer side",
        }
    by_matrix = f"{spec.matrix} voxels along the longer side of a slice"
    if spec.spacing is None:
        grid = "its own voxels" if spec.matrix is None else by_matrix
    else:
        lengths = " x ".join("own" if length is None else f"{length:g}" for length in spec.spacing)
        grid = f"voxels of {lengths} mm (along z, y, x)"
        grid += "" if spec.matrix is None else f"; if it has no voxel size (1 x 1 x 1 mm), to {by_matrix}"
    return {
        "what": f"in patches of {size} voxels",
        "image": f"{', '.join(sequences)}, normalised ({spec.normalise})",
        "channels": [
            name if spec.context == 1 else f"{name}, slice {offset:+d}" for name in sequences for offset in offsets
        ],
        "input": files,
        "size": size,
        "grid": grid,
    }


def _statistics_sentence(ready: ReadyModel) -> str:
    if ready.used.site is not None:
        return "Images are normalised with the statistics of one training site, which are part of the network."
    if ready.used.state is not None:
        return "The personal layers, which each site keeps for itself, are those of one training site."
    if ready.used.estimate:
        return "Normalisation statistics were estimated from scans at export and are part of the network."
    return "The network is the same for every site."


def _adapted(header: Header) -> str:
    """A sentence on its adaptation at one hospital, if it was adapted."""
    if header.adaptation is None or header.adaptation.decision == "kept":
        return ""
    return f" Afterwards, at one hospital, it was {header.adaptation.reason}."


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{_text(key)} = {_text(str(value))}" for key, value in options.items()) or "no options"


def _text(text: str) -> str:
    """A text of the model file for a Markdown table: one line, in which nothing is markup."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", " ".join(text.split()))


def _numbered(names: Sequence[str]) -> dict[str, str]:
    return {str(number): name for number, name in enumerate(names)}


def _licence_text() -> str:
    """The text of fedshift's licence, from the checkout or the installed package."""
    checkout = Path(fedshift.__file__).parents[2] / "LICENSE"
    if checkout.is_file():
        return checkout.read_text(encoding="utf-8")
    installed = [file for file in metadata.files("fedshift") or () if file.name == "LICENSE"]
    online = "Apache License 2.0: https://www.apache.org/licenses/LICENSE-2.0\n"
    return installed[0].read_text(encoding="utf-8") if installed else online
