"""Fixtures that commands share with the tests of what they call."""

from flare.conftest import phantom_home, short_job, side_by_side
from inference.conftest import sites, trained

__all__ = ["phantom_home", "short_job", "side_by_side", "sites", "trained"]
