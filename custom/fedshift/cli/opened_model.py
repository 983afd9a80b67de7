"""A model as ``predict`` and ``serve`` use it: what does not depend on the images is made once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli.guarantee import show
from fedshift.cli.model_choice import averaged_models, choice, describe, print_statistics
from fedshift.schema.codes import parse_codes
from fedshift.schema.errors import ConfigError
from fedshift.schema.yaml_file import read_yaml

if TYPE_CHECKING:
    from fedshift.inference.dicom_source import Origin
    from fedshift.inference.model import Model
    from fedshift.inference.monai_bundle import Bundle
    from fedshift.inference.promise import Promised
    from fedshift.inference.ready import ReadyModel

Stamp = frozenset[tuple[str, int, int, int]]


@dataclass
class OpenedModel:
    """A model, and what ``--guarantee`` asks of it."""

    model: Model | Bundle
    others: Sequence[Model]
    """Models that are averaged with it."""
    promise: Promised | None
    stamp: Stamp
    """What its files were known by before they were read."""
    _ready: ReadyModel | None = field(default=None, init=False)
    _origin: Origin | None = field(default=None, init=False)

    @property
    def classifies(self) -> bool:
        """Whether it says of an image what it is, and draws nothing."""
        from fedshift.inference.model import Model

        return isinstance(self.model, Model) and not self.model.is_segmentation

    @property
    def classifier(self) -> Model:
        """The model, if it `classifies`."""
        from fedshift.inference.model import Model

        assert isinstance(self.model, Model)
        return self.model

    @property
    def about(self) -> dict[str, Any]:
        """What the record of predictions says of it."""
        averaged = [
            other.about["model"] | {"file": f"{other.path.parent.name}/{other.path.name}"} for other in self.others
        ]
        return self.model.about | ({"averaged_with": averaged} if averaged else {})

    @property
    def has_changed(self) -> bool:
        """Whether its files are others than those that were read, or are away."""
        return _stamp(self.model.path, *(other.path for other in self.others)) != self.stamp

    def ready(self, make: Callable[[], ReadyModel], *, of_these_images: bool) -> ReadyModel:
        """The network with its statistics, of ``make``; each time anew if they are estimated ``of_these_images``."""
        if self._ready is None or of_these_images:
            self._ready = make()
            print_statistics(self._ready)
        return self._ready

    def origin(self, codes: Path | None) -> Origin:
        """What DICOM results say of it, with the codes of a file in place of its task's (`ConfigError`: as there)."""
        from fedshift.inference import dicom_source

        if self._origin is None:
            self._origin = dicom_source.origin(self.model, codes_of(codes), others=self.others)
        return self._origin


def open_for(args: argparse.Namespace) -> OpenedModel:
    """Read the model of a command line, and print what it is and promises.

    Raises:
        ConfigError: it cannot be read, or has nothing of what is asked of it.
    """
    from fedshift.inference.model import Model, open_model
    from fedshift.inference.monai_bundle import describe_bundle, open_bundle
    from fedshift.inference.ready import Choice

    bundle, stamp = args.model.is_dir(), _stamp(args.model, *args.models)
    if bundle and choice(args) != Choice():
        message = "is a bundle, which has no site's statistics: leave out --site, --statistics and --site-state"
        raise ConfigError("no-effect", f"{args.model} {message}")
    if bundle and args.models:
        raise ConfigError("no-effect", f"{args.model} is a bundle, and bundles are not averaged: leave out --models")
    model = open_bundle(args.model, device=args.device) if bundle else open_model(args.model)
    for line in describe(model) if isinstance(model, Model) else describe_bundle(model):
        print(line)
    others = averaged_models(model, args) if isinstance(model, Model) else []
    return OpenedModel(model, others, _promise(model, args), stamp)


def _promise(model: Model | Bundle, args: argparse.Namespace) -> Promised | None:
    """What ``--guarantee`` asks for, which is printed; None without it."""
    from fedshift.inference import promise
    from fedshift.inference.model import Model

    if args.guarantee is None:
        return None
    if not isinstance(model, Model):
        message = f"{args.model} is a bundle, which promises nothing: leave out --guarantee"
        raise ConfigError("no-guarantee", message)
    promised = promise.promised(model, choice(args), args.guarantee)
    show(promised, outlines=model.is_segmentation)
    return promised


def codes_of(file: Path | None) -> Any:
    """Codes of the classes in a file, if one is given."""
    codes = None if file is None else parse_codes(read_yaml(file), where=str(file))
    if codes is not None and not codes:
        message = f"{file} has no 'codes': give category and type of each class there (docs/how-to-dicom.md)"
        raise ConfigError("codes-missing", message)
    return codes


def _stamp(*paths: Path) -> Stamp:
    """What files, or those of a folder, are known by: name, size, and when and where they were written."""
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    stamps = []
    for file in files:
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        stamps.append((str(file), status.st_size, status.st_mtime_ns, status.st_ino))
    return frozenset(stamps)
