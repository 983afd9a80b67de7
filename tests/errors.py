"""What tests ask of an error: its code, and the file, site, key or round that it names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedshift.schema.errors import FedshiftError


@contextmanager
def raises(code: str, *, naming: str | tuple[str, ...] = ()) -> Iterator[pytest.ExceptionInfo[FedshiftError]]:
    """A block that ends with a `FedshiftError` of this code whose sentence has these names in it."""
    with pytest.raises(FedshiftError) as raised:
        yield raised
    assert raised.value.code == code, raised.value
    for name in (naming,) if isinstance(naming, str) else naming:
        assert name in str(raised.value)
