"""The context of FLARE, as its tests have it."""

from __future__ import annotations

from flare.conftest import context as context
