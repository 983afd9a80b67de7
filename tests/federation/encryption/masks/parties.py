"""Sites and a server that mask and unmask made-up updates: nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from conftest import small_job
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedshift.federation.encryption.masks.primitives import Checker, Identity
from fedshift.federation.encryption.masks.protocol import FEWEST
from fedshift.federation.encryption.masks.server import MaskedCoordinator
from fedshift.federation.encryption.masks.site import SiteMasks
from fedshift.federation.encryption.vector import VectorLayout
from fedshift.federation.tensors import read_weights
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, SiteInfo, Update

SITES = ("BIDMC", "HK", "UCL")
MASKED = "federation.encryption=masks"
RUN = "run 1"


def masked_job(methods: str = "fedavg", *options: str, sites: Sequence[str] = SITES) -> JobSpec:
    return small_job(methods, "federation.min_sites=2", *options, MASKED, sites=sites)


class Passport:
    """An identity without a kit: the certificate is a name and a public key, and everybody knows which are real."""

    real: dict[str, str] = {}

    def __init__(self, site: str) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.certificate = f"{site} {self._key.public_key().public_bytes_raw().hex()}"
        self.real[self.certificate] = site

    def sign(self, content: bytes) -> tuple[bytes, str]:
        return self._key.sign(content), self.certificate

    def check(self, site: str, content: bytes, signature: bytes, certificate: str) -> None:
        if self.real.get(certificate) != site:
            raise ValueError("comes with a certificate of another")
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(certificate.split()[1])).verify(signature, content)
        except InvalidSignature:
            raise ValueError("is not signed by that site") from None


def update_of(job: JobSpec, site: str) -> Update:
    """An update in clear around the initial model, with a sample count of its own."""
    number = job.task.sites.index(site)
    rng, n = np.random.default_rng(number), 8 * (number + 2)
    weights = {
        key: value + rng.normal(0, 0.1, value.shape).astype(value.dtype)
        if value.dtype == np.float32
        else value + np.int64(number + 1)
        for key, value in read_weights(VectorLayout(job, received=False).net).items()
    }
    weights = {k: np.abs(v) if k.endswith("running_var") else np.asarray(v) for k, v in weights.items()}
    return Update(site, 1, n_samples=n, n_steps=number + 2, weights=weights, metrics={"train_loss": 1.0})


class Parties:
    """A server with the sites of a job, at the beginning of round 1."""

    def __init__(
        self,
        job: JobSpec,
        folder: Path,
        *,
        with_keys: Sequence[str] | None = None,
        identities: Mapping[str, Identity] | None = None,
        checker: Checker | None = None,
        least: int = FEWEST,
    ) -> None:
        """``with_keys``: the sites that answered in round 0; all by default. ``checker`` is the server's.

        ``least``: the fewest sites in a sum, by the policies of all sites.
        """
        self.job, self.folder, self.least = job, folder, least
        self.layout = VectorLayout(job, received=False)
        self.identities = identities or {}
        self.sites = {site: self.site(site) for site in job.task.sites}
        self.plain = {site: update_of(job, site) for site in job.task.sites}
        self.server = MaskedCoordinator(job, folder / "server", run=RUN, checker=checker)
        self.server.open(0)
        for site, update in self.plain.items():
            self.server.register(SiteInfo(site, "phantom", update.n_samples, 1, 1, "0" * 64, "case"))
            if with_keys is None or site in with_keys:
                statistics = Update(site, 0, n_samples=update.n_samples, n_steps=0)
                assert self.server.accept(self.sites[site].seal(statistics, Broadcast(0, 0, {}))), self.server.rejected
        self.server.close()
        self.message = self.server.open(1)

    def site(self, site: str) -> SiteMasks:
        """A site's masks, as a process finds them on disk."""
        identity = self.identities.get(site)
        return SiteMasks(self.job, site, folder=self.folder / site, run=RUN, identity=identity, least=self.least)

    def masked(self, site: str, message: Broadcast | None = None, update: Update | None = None) -> Update:
        """A site's masked update."""
        message = message or self.message
        update = replace(update or self.plain[site], round=message.round)
        return self.sites[site].seal(update, self.sites[site].open(message))

    def upload(self, *sites: str) -> None:
        """These sites' updates reach the server."""
        for site in sites:
            assert self.server.accept(self.masked(site)), self.server.rejected

    def question(self) -> Broadcast:
        """The server's question after the updates."""
        question = self.server.open_unmasking()
        assert question is not None
        return question

    def unmask(self, question: Broadcast, *sites: str) -> None:
        """These sites' shares reach the server."""
        for site in sites:
            assert self.server.accept(self.sites[site].unmask(question))

    def result(self, *sites: str, silent: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """The new weights from the updates of ``sites``, of which ``silent`` do not unmask."""
        self.upload(*sites)
        self.unmask(self.question(), *(site for site in sites if site not in silent))
        self.server.close()
        return self.server.model.weights
