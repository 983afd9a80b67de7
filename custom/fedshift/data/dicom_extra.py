"""highdicom, which only DICOM masks and results need; and pydicom without its warnings."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedshift.schema.errors import ConfigError


def need_highdicom(what: str) -> None:
    """Make sure that highdicom is there.

    Raises:
        ConfigError: it is not; the sentence begins with ``what`` needs it.
    """
    try:
        importlib.import_module("highdicom")
    except ImportError:
        raise ConfigError(
            "not-installed", f"{what} needs highdicom, which is not installed: pip install 'fedshift[dicom]'"
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings of pydicom and highdicom, which repeat values of tags."""
    pydicom: Any = importlib.import_module("pydicom")
    others = logging.getLogger("highdicom")
    levels = pydicom.config.logger.level, others.level
    former = pydicom.config.settings.reading_validation_mode
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pydicom.config.logger.setLevel("CRITICAL")
        others.setLevel("CRITICAL")
        pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
        try:
            yield
        finally:
            pydicom.config.logger.setLevel(levels[0])
            others.setLevel(levels[1])
            pydicom.config.settings.reading_validation_mode = former


UNREADABLE = (ValueError, RuntimeError, AttributeError, KeyError, TypeError, IndexError, OSError, NotImplementedError)
"""What pydicom and highdicom raise where an object is not as the standard has it."""
