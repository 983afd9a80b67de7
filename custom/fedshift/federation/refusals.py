"""Refuse a job that cannot run, when it is made and again when the server starts it."""

from __future__ import annotations

from fedshift.federation import compression
from fedshift.federation.encryption import shared as encryption
from fedshift.federation.server import model_average, robust
from fedshift.methods.method_set import MethodSet


def check(methods: MethodSet) -> None:
    """Check a job's methods against its task, its network, each other, and the options of ``federation``.

    Raises:
        ConfigError: the first thing that does not fit.
    """
    methods.check()
    robust.check(methods)
    model_average.check(methods)
    encryption.check(methods)
    compression.check(methods)
