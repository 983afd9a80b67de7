"""The way to a PACS: a checked address, certificates that are verified, and answers that are whole."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase, HTTPBasicAuth
from urllib3.util import Retry

from fedshift.pacs.addresses import THIS_MACHINE
from fedshift.pacs.credentials import Credentials
from fedshift.pacs.web.carrier import Web
from fedshift.schema.errors import ConfigError

SECONDS_TO_CONNECT, SECONDS_TO_ANSWER = 15, 120
BUSY = (429, 503, 504)
"""Status of a server that is too busy, or of a proxy that waits for one: asked again, as when the line fails."""
ATTEMPTS_MORE, SECONDS_BETWEEN = 3, 0.5
"""Of searches and fetching: storing is never repeated by itself."""
_BOUNDARY = re.compile(r'boundary="?([^";]+)"?', re.IGNORECASE)
TAIL = 4096
"""Bytes at the end of an answer among which its last delimiter must be."""


def connect(url: str, credentials: Credentials, *, ca_file: Path | None = None, allow_unencrypted: bool = False) -> Web:
    """The way to the address of a PACS's DICOMweb service, such as ``https://pacs.hospital.example/dicom-web``.

    Nothing is sent before something is asked of it.

    Raises:
        ConfigError: dicomweb-client is not installed, or the address, or the file of certificates, cannot be used.
    """
    address = checked_address(url, allow_unencrypted=allow_unencrypted)
    try:
        from dicomweb_client.api import DICOMwebClient
    except ImportError:
        raise ConfigError(
            "not-installed", "a PACS needs dicomweb-client, which is not installed: pip install 'fedshift[pacs]'"
        ) from None
    if ca_file is not None and not ca_file.is_file():
        raise ConfigError("file-missing", f"{ca_file} does not exist: name the certificate (.pem) of your authority")
    for library in ("urllib3", "dicomweb_client"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # their lines hold queries, which may name patients
    session = CarefulSession(_Authorisation(credentials), ca_file)
    client = DICOMwebClient(address, session=session, permissive_uid=True)
    client.set_http_retry_params(retry=False)  # it would repeat storing too, with a body that it has used up
    return Web(client, address)


def checked_address(url: str, *, allow_unencrypted: bool = False) -> str:
    """An address without a slash at its end.

    Raises:
        ConfigError: it is none, holds credentials, or leads to another machine without encryption.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = SplitResult("", "", "", "", ""), None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(
            "pacs-address", "a PACS has the address of its DICOMweb service, such as https://pacs.example/dicom-web"
        )
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigError(
            "pacs-address",
            f"the address of {host} has more than a machine and a path: leave out user, password and what follows "
            "'?' (credentials come from the environment or --credentials)",
        )
    if parts.scheme == "http" and host not in THIS_MACHINE and not allow_unencrypted:
        raise ConfigError(
            "pacs-unencrypted",
            f"images of patients would go to and from {host} unencrypted: use its https address, or, in a network that "
            "is closed to others, --allow-unencrypted",
        )
    return url.rstrip("/")


class CarefulSession(requests.Session):
    """A session that follows no redirection and takes no credentials from elsewhere, such as ``~/.netrc``.

    An answer in several parts that ends without its last delimiter is refused: dicomweb-client takes the part that was
    cut off for a whole one, and pydicom reads it without a word.
    """

    def __init__(self, auth: AuthBase, ca_file: Path | None) -> None:
        super().__init__()
        self.auth = auth
        self.max_redirects = 0  # a redirection could lead to another machine, or to one without encryption
        self._ca_file = ca_file
        again = Retry(
            ATTEMPTS_MORE,
            other=0,
            backoff_factor=SECONDS_BETWEEN,
            status_forcelist=BUSY,
            allowed_methods=["GET"],
            raise_on_status=False,
        )
        for scheme in ("https://", "http://"):
            self.mount(scheme, HTTPAdapter(max_retries=again))

    def request(self, method: str, url: Any, *args: Any, **kwargs: Any) -> requests.Response:
        """As of `requests.Session`; wildcards are sent as they are, since not all servers decode them."""
        path, mark, query = str(url).partition("?")
        query = query.replace("%2A", "*").replace("+", "%20")
        kwargs["timeout"] = (SECONDS_TO_CONNECT, SECONDS_TO_ANSWER)
        return super().request(method, f"{path}{mark}{query}", *args, **kwargs)

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        response = super().send(request, **kwargs)
        kind = response.headers.get("content-type", "")
        boundary = _BOUNDARY.search(kind) if kind.lower().startswith("multipart/related") else None
        if response.ok and boundary is not None:
            require_last_delimiter(response, boundary[1])
        return response

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """As of `requests.Session`; but a file that was named is used, whatever the environment says."""
        settings = super().merge_environment_settings(url, proxies, stream, verify, cert)
        return settings | ({} if self._ca_file is None else {"verify": str(self._ca_file)})


def require_last_delimiter(response: requests.Response, boundary: str) -> None:
    """Have reading an answer end with `requests.exceptions.ChunkedEncodingError` if its last delimiter is missing."""
    read, last = response.iter_content, f"--{boundary}--".encode()

    def checked(chunk_size: int | None = 1, decode_unicode: bool = False) -> Iterator[bytes]:
        tail = b""
        for chunk in read(chunk_size):
            tail = (tail + chunk)[-TAIL:]
            yield chunk
        if last not in tail:
            raise requests.exceptions.ChunkedEncodingError("the last delimiter is missing")

    response.iter_content = checked  # type: ignore[method-assign]


class _Authorisation(AuthBase):
    """Adds the header; also in place of ``~/.netrc``, which requests looks into where there is none."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        credentials = self._credentials
        if credentials.token is not None:
            request.headers["Authorization"] = f"Bearer {credentials.token}"
        elif credentials.user is not None and credentials.password is not None:
            HTTPBasicAuth(credentials.user.encode(), credentials.password.encode())(request)
        return request
