"""Errors for users: a code, and one sentence that names the file, site, round or key, and how to fix it.

Every code with its sentences is on the page docs/reference/errors.md, which is made from the lines that raise them.
"""

from __future__ import annotations

AFTER_AN_END = (
    "a simulated run then goes on with 'fedshift run JOB --resume'; a job of provisioned sites has ended, and a new "
    "one can start from its last model (fedshift job --weights)"
)
"""What a sentence that ends a run says about how to go on."""


class FedshiftError(Exception):
    """Base of all errors that a user can fix. The command line prints sentence and code and exits with code 2.

    Attributes:
        code: what is wrong, in a word or two that a user can search for, as ``mask-grid``.
    """

    def __init__(self, code: str, sentence: str) -> None:
        """``str()`` of the error is the sentence."""
        super().__init__(sentence)
        self.code = code


class ConfigError(FedshiftError):
    """An invalid job, task, method or option, or a combination that cannot work."""


class PolicyError(ConfigError):
    """A request that the site's policy forbids. The message is sent to the server and says nothing about the data."""


class DataError(FedshiftError):
    """A scan, mask, manifest or site folder that cannot be used."""


class DiskFull(FedshiftError):
    """A file of a run could not be written because there was no room for too long."""


class TooLittleMemory(FedshiftError):
    """A run would need more memory than there is, or a site ran out of it."""


class Stopped(FedshiftError):
    """The run was stopped from outside (abort, signal) while a site was working."""


class QuorumError(FedshiftError):
    """Fewer accepted updates than ``federation.min_sites`` requires."""
