"""Which tasks take cases without their structure, such as patients without a lesion, whose masks are rightly empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.schema.codes import Codes

LESION = frozenset({("49755003", "SCT"), ("M-01000", "SRT")})
"""Categories of what a patient need not have: Morphologically Altered Structure (PS3.16, CID 7150), also formerly."""
WITHOUT_STRUCTURE = "cases_without_structure"
"""Key in ``preparation`` of volumes: how many of the site's masks are empty."""


def takes_empty(data: Mapping[str, Any], classes: Sequence[str], codes: Codes) -> bool:
    """Whether masks may be empty: what ``data.empty`` says, else whether all classes are lesions by their category.

    Args:
        data: the task's ``data``.
        classes: the task's, the background first.
        codes: of the classes.
    """
    said = data.get("empty")
    if said is not None:
        return bool(said)
    foreground = classes[1:]
    return bool(foreground) and all(name in codes and codes[name].category.same_as in LESION for name in foreground)
