"""A party's keys, and the card by which the others know them.

`identity.Keys` are an Ed25519 key that signs letters and an X25519 key that content keys are wrapped for. They are made
once, in the party's own folder. The public halves are on its card, which the key of its kit's certificate has signed
(RSA-PSS), so whoever has the project's root certificate can check whose they are. The kit's key signs the card and
nothing else, and the same key never both signs and decrypts.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import Field, ValidationError

from fedshift.federation.encryption.kit_keys import KitIdentity, ProjectRoot
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import write_private
from fedshift.schema.names import Name
from fedshift.schema.strict import Strict

FILE_NAME = "keys.json"
CARD_VERSION = 1
LONGEST_CARD = 32 * 1024
"""Bytes of a card's file."""
KEY_BYTES = 32

Hex32 = Field(pattern="^[0-9a-f]{64}$")


class Card(Strict):
    """Who a party is, for the others.

    Attributes:
        project: name of the project whose kits the parties have.
        name: the party's, as in its certificate.
        signs: its Ed25519 public key.
        opens: its X25519 public key.
        certificate: that of its kit, PEM.
        signature: of all above, by the certificate's key.
    """

    card: int
    project: str = Field(max_length=256)
    name: Name
    signs: str = Hex32
    opens: str = Hex32
    certificate: str = Field(max_length=16 * 1024)
    signature: str = Field(pattern="^[0-9a-f]*$", max_length=2048)

    @classmethod
    def read(cls, content: bytes, *, project: str, name: str, root: ProjectRoot) -> Card:
        """Read and check the card of the party ``name``.

        Raises:
            ValueError: it is not; the reason continues "the card of X …".
        """
        try:
            card = cls.model_validate_json(content)
        except ValidationError:
            raise ValueError("is none, or not whole yet") from None
        if card.card != CARD_VERSION:
            raise ValueError(f"is of version {card.card}, and this fedshift reads {CARD_VERSION}: install one version")
        if card.project != project:
            raise ValueError(f"is of project {card.project}, not of {project}")
        if card.name != name:
            raise ValueError(f"is one of {card.name}")
        root.check(name, card.signed(), bytes.fromhex(card.signature), card.certificate)
        return card

    def signed(self) -> bytes:
        """What the certificate's key signs."""
        return json.dumps(
            ["fedshift mailbox card", self.card, self.project, self.name, self.signs, self.opens]
        ).encode()

    def verify(self, content: bytes, signature: bytes) -> bool:
        """Whether the party has signed this with the key on its card."""
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.signs)).verify(signature, content)
        except InvalidSignature:
            return False
        return True

    def wrap(self, content_key: bytes, about: bytes) -> tuple[str, str]:
        """A content key for this party alone: a fresh public key, and the encrypted key, both hexadecimal.

        X25519 with a key that is used once, HKDF-SHA-256, AES-256-GCM. ``about`` is authenticated with it.
        """
        once = X25519PrivateKey.generate()
        shared = once.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(self.opens)))
        public = once.public_key().public_bytes_raw()
        key = _wrapping_key(shared, public, bytes.fromhex(self.opens), about)
        return public.hex(), AESGCM(key).encrypt(bytes(12), content_key, about).hex()  # a key for one message


class Keys(Strict):
    """A party's own keys; the file is readable by its owner alone."""

    signs: str = Hex32
    opens: str = Hex32
    card: Card

    @classmethod
    def make(cls, project: str, name: str, kit: KitIdentity) -> Self:
        """New keys, with a card that the kit has signed."""
        signs, opens = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
        publics = {
            "signs": signs.public_key().public_bytes_raw().hex(),
            "opens": opens.public_key().public_bytes_raw().hex(),
        }
        unsigned = Card(card=CARD_VERSION, project=project, name=name, **publics, certificate="", signature="")
        signature, certificate = kit.sign(unsigned.signed())
        card = unsigned.model_copy(update={"signature": signature.hex(), "certificate": certificate})
        return cls(signs=signs.private_bytes_raw().hex(), opens=opens.private_bytes_raw().hex(), card=card)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read them from a party's folder.

        Raises:
            ConfigError: they are missing or damaged.
        """
        path = folder / FILE_NAME
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            raise ConfigError(
                "file-damaged",
                f"{path} is missing or damaged: restore it, or run 'fedshift mailbox init' in a new folder",
            ) from None

    def write(self, folder: Path) -> None:
        write_private(folder / FILE_NAME, self.model_dump_json().encode())

    def sign(self, content: bytes) -> bytes:
        """Sign as this party."""
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.signs)).sign(content)

    def unwrap(self, public: str, wrapped: str, about: bytes) -> bytes:
        """The content key that was wrapped for this party (`Card.wrap`).

        Raises:
            ValueError: it was not, or for another letter.
        """
        private = X25519PrivateKey.from_private_bytes(bytes.fromhex(self.opens))
        try:
            shared = private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))
            key = _wrapping_key(shared, bytes.fromhex(public), private.public_key().public_bytes_raw(), about)
            content_key = AESGCM(key).decrypt(bytes(12), bytes.fromhex(wrapped), about)
        except (ValueError, InvalidTag):
            raise ValueError("has a key that is not for this party, or of another letter") from None
        if len(content_key) != KEY_BYTES:
            raise ValueError("has a key of another length")
        return content_key


def _wrapping_key(shared: bytes, once: bytes, reader: bytes, about: bytes) -> bytes:
    info = b"fedshift mailbox wrap 1\0" + once + reader + hashlib.sha256(about).digest()
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=info).derive(shared)
