"""A hostile site: a process with the real kit of one site that says to the server what no site may say.

``python -m tests.flare.attacks.hostile KIT JOB_ID VICTIM MODULE…`` connects with the kit's certificate, registers as
NVFlare's client does, runs the ``ATTACKS`` of each module, waits for answers, and prints one JSON object: the name of
each attack → what it was answered.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.utils import decode_payload
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamDataType, StreamHeaderKey
from nvflare.private.defs import CellMessageHeaderKeys, ClientType
from nvflare.private.fed.authenticator import Authenticator
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize

from fedshift.flare.kit import Kit, open_kit, read_json

PATIENCE = 5.0
"""Seconds in which all attacks together are answered, after the last has been sent."""
CONNECT = 60.0
"""Seconds for the server to be there."""
SERVER = "server"
ANSWERS = "ANSWERS "
"""Starts the line that the process prints."""

CONNECTIONS, WAITING, HEADERS, JOB = 4, 2, 10_000, 1_000_000
LOWERED = {
    "flare_armour.patches.connections:CONNECTIONS": CONNECTIONS,
    "flare_armour.patches.stream_shares:WAITING": WAITING,
    "flare_armour.patches.incoming_streams:WAITING": WAITING,
    "flare_armour.patches.incoming_streams:MOST_HEADERS": HEADERS,
    "flare_armour.patches.submissions:LARGEST": JOB,
    "fedshift.federation.message_limits:SLACK": 200_000,
}
"""Bounds of the server in these tests, so that little goes beyond them."""

Headers: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Scene:
    """What the attacks are aimed at."""

    job_id: str
    victim: str

    @property
    def server_job(self) -> str:
        return f"{SERVER}.{self.job_id}"

    @property
    def victim_job(self) -> str:
        return f"{self.victim}.{self.job_id}"


class Hostile:
    """A site's connection to the server, and everything that comes back over it."""

    def __init__(self, folder: Path, *, name: str | None = None) -> None:
        """Connect.

        Args:
            folder: the kit.
            name: the name to take, if not the kit's own.
        """
        self.kit: Kit = open_kit(folder)
        self.name = name or self.kit.name
        self.heard: list[Message] = []
        """Every message that came, whatever it is."""
        self.asked: dict[str, list[str]] = defaultdict(list)
        """Attack → ids of its requests."""
        self.attack = ""
        startup = folder / "startup"
        config = read_json(startup / "fed_client.json")["servers"][0]
        self.server_identity = str(config.get("identity", self.kit.host))
        credentials = {
            DriverParams.CA_CERT.value: str(startup / "rootCA.pem"),
            DriverParams.CLIENT_CERT.value: str(startup / "client.crt"),
            DriverParams.CLIENT_KEY.value: str(startup / "client.key"),
        }
        self.cell = Cell(
            fqcn=self.name,
            root_url=f"{config['service']['scheme']}://{self.kit.host}:{self.kit.port}",
            secure=True,
            credentials=credentials,
            auth_identity_map={SERVER: self.server_identity},
        )
        self.core = self.cell.core_cell
        self.core.add_incoming_filter("*", "*", self._hear)
        self.cell.start()
        until = time.monotonic() + CONNECT
        while SERVER not in self.core.agents:
            assert time.monotonic() < until, f"no connection to {self.kit.host}:{self.kit.port} as {self.name}"
            time.sleep(0.1)

    def register(self) -> Headers:
        """Register as this kit's site does; returns the headers that prove it from then on."""
        startup = self.kit.folder / "startup"
        authenticator = Authenticator(
            cell=self.cell,
            project_name=self.kit.project,
            client_name=self.kit.name,
            client_type=ClientType.REGULAR,
            expected_sp_identity=self.server_identity,
            secure_mode=True,
            root_cert_file=str(startup / "rootCA.pem"),
            private_key_file=str(startup / "client.key"),
            cert_file=str(startup / "client.crt"),
            msg_timeout=10.0,
            retry_interval=1.0,
            timeout=CONNECT,
        )
        context = FLContext()
        context.set_public_props({ReservedKey.IDENTITY_NAME: self.kit.name})
        token, signature, ssid, _ = authenticator.authenticate(shared_fl_ctx=context, abort_signal=Signal())
        self.proof = {
            CellMessageHeaderKeys.CLIENT_NAME: self.kit.name,
            CellMessageHeaderKeys.TOKEN: token,
            CellMessageHeaderKeys.TOKEN_SIGNATURE: signature,
            CellMessageHeaderKeys.SSID: ssid,
            CellMessageHeaderKeys.PROJECT_NAME: self.kit.project,
        }
        return self.proof

    def say(
        self,
        channel: str,
        topic: str,
        payload: Any = None,
        *,
        to: str = SERVER,
        origin: str | None = None,
        kind: str = MessageType.REQ,
        headers: Headers | None = None,
    ) -> str:
        """Send one message as it is given; returns its id.

        Args:
            channel: of the message; for the channel of streams see `chunk`.
            topic: of the message.
            payload: of the message.
            to: its destination. It goes to the server.
            origin: whom it says it is from, if not from this site.
            kind: NVFlare's ``MessageType``.
            headers: beside, or in place of, those that NVFlare would set.
        """
        request = uuid.uuid4().hex
        self.asked[self.attack].append(request)
        message = Message(payload=payload)
        message.add_headers(
            {
                **self.proof,
                MessageHeaderKey.CHANNEL: channel,
                MessageHeaderKey.TOPIC: topic,
                MessageHeaderKey.ORIGIN: origin or self.name,
                MessageHeaderKey.DESTINATION: to,
                MessageHeaderKey.FROM_CELL: self.name,
                MessageHeaderKey.TO_CELL: SERVER,
                MessageHeaderKey.MSG_TYPE: kind,
                MessageHeaderKey.REQ_ID: request,
                MessageHeaderKey.REPLY_EXPECTED: True,
                MessageHeaderKey.ROUTE: [(self.name, time.time())],
                **(headers or {}),
            }
        )
        self.core._send_to_endpoint(self.core.agents[SERVER].endpoint, message)
        return request

    def chunk(
        self,
        channel: str,
        topic: str,
        data: bytes = b"",
        *,
        number: int = 1,
        sequence: int = 0,
        last: bool = True,
        size: int | None = None,
        to: str = SERVER,
        origin: str | None = None,
        headers: Headers | None = None,
    ) -> str:
        """Send one piece of a stream.

        Args:
            channel: of what the stream carries.
            topic: of what the stream carries.
            data: of this piece.
            number: of the stream.
            sequence: of the piece.
            last: whether it says that the stream is complete.
            size: bytes that the whole stream says it has; those of ``data`` if not given.
            to: its destination.
            origin: as for `say`.
            headers: as for `say`.
        """
        stream = {
            StreamHeaderKey.CHANNEL: channel,
            StreamHeaderKey.TOPIC: topic,
            StreamHeaderKey.STREAM_ID: number,
            StreamHeaderKey.SEQUENCE: sequence,
            StreamHeaderKey.OFFSET: 0,
            StreamHeaderKey.SIZE: len(data) if size is None else size,
            StreamHeaderKey.DATA_TYPE: StreamDataType.FINAL if last else StreamDataType.CHUNK,
            StreamHeaderKey.STREAM_REQ_ID: str(uuid.uuid4()),
            MessageHeaderKey.REPLY_EXPECTED: False,
            **(headers or {}),
        }
        return self.say(STREAM_CHANNEL, STREAM_DATA_TOPIC, data, to=to, origin=origin, headers=stream)

    def answers(self, attack: str) -> list[str]:
        """What came back for an attack's requests, as text."""
        requests, found = set(self.asked[attack]), []
        for message in self.heard:
            ids = message.get_header(MessageHeaderKey.REQ_ID)
            if message.get_header(MessageHeaderKey.MSG_TYPE) == MessageType.REQ:
                continue
            if requests & set([ids] if isinstance(ids, str) else ids or ()):
                found.append(self._text(message))
        return found

    def _hear(self, message: Message) -> None:
        self.heard.append(message)

    def _text(self, message: Message) -> str:
        code = message.get_header(MessageHeaderKey.RETURN_CODE)
        try:
            decode_payload(message)
            body = getattr(message.payload, "body", message.payload)
        except Exception as error:  # whatever it holds: that there is an answer is what matters
            body = type(error).__name__
        return f"{code}: {body}"[:2000]


def main(kit: str, job_id: str, victim: str, *modules: str) -> dict[str, list[str]]:
    """Run all attacks of these modules; returns what each was answered."""
    nvflare_fobs_initialize()
    hostile, scene = Hostile(Path(kit)), Scene(job_id, victim)
    hostile.register()
    attacks = [a for name in modules for a in importlib.import_module(f"tests.flare.attacks.{name}").ATTACKS]
    for attack in attacks:
        hostile.attack = attack.__name__
        attack(hostile, scene)
    hostile.attack = ""
    time.sleep(PATIENCE)
    return {attack.__name__: hostile.answers(attack.__name__) for attack in attacks}


if __name__ == "__main__":
    sys.stdout.write(f"\n{ANSWERS}{json.dumps(main(*sys.argv[1:]))}\n")
    sys.stdout.flush()
    os._exit(0)  # NVFlare's threads would wait for a goodbye
