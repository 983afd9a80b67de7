"""The format of a party's log: whatever a message holds, it can neither pass for another line nor change a terminal.

Messages hold what other parties have sent: names, reasons, the text of an exception about a message that could not be
read. NVFlare writes them as they are.
"""

from __future__ import annotations

import logging

from nvflare.fuel.utils.log_utils import BaseFormatter

from fedshift.schema.names import printable

MOST = 20_000
"""Characters of one entry; a long traceback has a few thousand."""
INDENT = "    "
"""What the further lines of an entry begin with. No entry does."""


class OneEntry(BaseFormatter):
    """NVFlare's format, with control characters written out, further lines indented, and a limit to the length.

    It is named in ``local/log_config.json``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format an entry."""
        return as_one_entry(super().format(record))


def as_one_entry(text: str) -> str:
    """Write out the control and format characters of a text, indent its further lines, and cut it to `MOST`."""
    if text.isprintable() and len(text) <= MOST:
        return text
    if len(text) > MOST:
        text = f"{text[:MOST]} ... ({len(text) - MOST} more characters)"
    return printable(text).replace("\n", f"\n{INDENT}")
