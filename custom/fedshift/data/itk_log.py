"""ITK's own messages, which its C++ code prints on the terminal, as debug messages of Python's ``logging``."""

from __future__ import annotations

import logging

import SimpleITK as sitk  # noqa: N813 - its customary name

log = logging.getLogger("fedshift.itk")


class _PythonLogger(sitk.LoggerBase):  # type: ignore[misc]
    """Receives whatever ITK would print. SimpleITK chooses the names of the methods."""

    def DisplayText(self, text: str) -> None:  # noqa: N802
        log.debug("%s", text.strip())

    DisplayErrorText = DisplayWarningText = DisplayGenericOutputText = DisplayDebugText = DisplayText


_logger = _PythonLogger()


def quiet_itk() -> None:
    """Send ITK's messages to the log of this process; our own checks report what matters to a user."""
    _logger.SetAsGlobalITKLogger()
