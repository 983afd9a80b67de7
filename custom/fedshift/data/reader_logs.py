"""What ITK and nibabel print on the terminal, as debug messages of Python's ``logging``.

Our own checks report what matters to a user, with the file's name, which these messages lack.
"""

from __future__ import annotations

import logging

import nibabel.imageglobals
import SimpleITK as sitk  # noqa: N813 - its customary name

log = logging.getLogger("fedshift.readers")


class _PythonLogger(sitk.LoggerBase):  # type: ignore[misc]
    """Receives whatever ITK would print. SimpleITK chooses the names of the methods."""

    def DisplayText(self, text: str) -> None:  # noqa: N802
        log.debug("%s", text.strip())

    DisplayErrorText = DisplayWarningText = DisplayGenericOutputText = DisplayDebugText = DisplayText


class _Debugging(logging.Handler):
    """Passes on what nibabel logs of a header that it mends."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log it again, as a debug message."""
        log.debug("%s", record.getMessage())


_logger = _PythonLogger()


def quiet_readers() -> None:
    """Send the readers' messages to the log of this process."""
    _logger.SetAsGlobalITKLogger()
    nibabel.imageglobals.logger.handlers = [_Debugging()]
    nibabel.imageglobals.logger.propagate = False
