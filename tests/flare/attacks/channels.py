"""Empty messages in others' names, to others, and on channels that are not a site's."""

from __future__ import annotations

import itertools

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageType
from nvflare.private.defs import CellMessageHeaderKeys

from .hostile import SERVER, Hostile, Scene

CHANNELS = sorted({v for k, v in vars(CellChannel).items() if isinstance(v, str) and not k.startswith("_")})
NONE = "none"
"""A topic that nobody has."""
NUMBERS = itertools.count(30_000)
"""Of streams, none of which are those of another module."""


def asks_on_every_channel(hostile: Hostile, scene: Scene) -> None:
    """Of the server, another site, and both their jobs, as itself and as its job."""
    for to in (scene.victim, SERVER, scene.server_job, scene.victim_job):
        for origin in (hostile.name, f"{hostile.name}.{scene.job_id}"):
            for channel in CHANNELS:
                hostile.say(channel, NONE, to=to, origin=origin)


def speaks_for_others(hostile: Hostile, scene: Scene) -> None:
    """What an honest site says, with another's origin."""
    for origin in (scene.victim, scene.victim_job, SERVER):
        hostile.say(CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT, origin=origin)
        hostile.say(CellChannel.CLIENT_MAIN, NONE, to=scene.victim, origin=origin)
        for topic in (ServerCommandNames.GET_TASK, ServerCommandNames.SUBMIT_UPDATE):
            number = next(NUMBERS)
            hostile.chunk(CellChannel.SERVER_COMMAND, topic, number=number, to=scene.server_job, origin=origin)


def gives_anothers_name(hostile: Hostile, scene: Scene) -> None:
    """Beside its own origin."""
    headers = {CellMessageHeaderKeys.CLIENT_NAME: scene.victim}
    hostile.say(CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT, headers=headers)


def answers_for_another(hostile: Hostile, scene: Scene) -> None:
    """What nobody has asked."""
    for kind in (MessageType.REPLY, MessageType.RETURN):
        for to in (SERVER, scene.victim):
            hostile.say(CellChannel.CLIENT_MAIN, NONE, kind=kind, to=to, origin=scene.victim)


ATTACKS = (speaks_for_others, gives_anothers_name, answers_for_another, asks_on_every_channel)
"""The last has more topics than are told apart in a log."""
