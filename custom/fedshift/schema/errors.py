"""Errors that a person is meant to read: one sentence naming the thing and the mend."""


class FedshiftError(Exception):
    """Anything the user can put right. The command line prints it and exits with 2."""


class ConfigError(FedshiftError):
    """A job, task, method or option that does not fit."""


class PolicyError(ConfigError):
    """What a site's own policy forbids. The sentence says nothing about its data, so that the server may read it."""


class MixedDataError(ConfigError):
    """Simulated and real data in one job; no quorum makes that right."""


class DataError(FedshiftError):
    """A scan, mask, manifest or site folder that cannot be used as it is."""


class TooLittleMemory(FedshiftError):
    """Memory does not suffice for a run, or ran out at a site."""


class Stopped(FedshiftError):
    """The run was ended from outside while a site was at work."""


class QuorumError(FedshiftError):
    """Fewer sites than ``min_sites`` gave a usable answer."""
