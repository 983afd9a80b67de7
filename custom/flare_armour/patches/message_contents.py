"""A message holds data and nothing else.

NVFlare 2.9: a message can hold more than data, and as many objects as fit into it.
Cost: any site can fill the disk and the memory of the others, or stop them.
Instead: files and references are refused, and so are more than `MOST_CONTAINERS` lists and mappings, or than
`MOST_ELSEWHERE` where there is no task and no answer. A task and an answer hold plain data, DXOs and arrays.
Fixed in NVFlare when: what a received message may hold is a setting.
"""

from __future__ import annotations

from typing import Any

from nvflare.apis.fl_constant import ServerCommandNames

from flare_armour.patches.patch import Patch, find

MOST_CONTAINERS = 1_000_000
"""Lists and mappings in a message, and elements of each. An array takes about four."""
MOST_ELSEWHERE = 50_000
"""The same of a message that is no task and no answer."""
MOST_MESSAGES = 16
"""Objects of NVFlare's type for messages in a message."""
HOLDS = frozenset(
    {
        "tuple",
        "set",
        "collections.OrderedDict",
        "numpy.ndarray",
        "numpy.float32",
        "numpy.float64",
        "numpy.int32",
        "numpy.int64",
        "nvflare.apis.dxo.DXO",
        "nvflare.apis.dxo.DataKind",
        "nvflare.apis.fl_context.FLContext",
        "nvflare.apis.shareable.Shareable",
        "nvflare.fuel.utils.fobs.datum.DatumRef",
    }
)
"""Types that a task and an answer may hold, beside msgpack's own."""
MESSAGE = "nvflare.apis.shareable.Shareable"
FOBS = "nvflare.fuel.utils.fobs"
TOPIC = "nvflare.fuel.f3.streaming.stream_const:StreamHeaderKey.TOPIC"
PATCH = Patch(
    name="message_contents",
    without="one site can fill the disk and the memory of the others' processes or stop them",
    replaces={
        f"{FOBS}.lobs:_get_one_section": "d6e46b22c64d",
        f"{FOBS}.lobs:load_from_stream": "bab9c828b06b",
        f"{FOBS}.fobs:deserialize": "4a15c330a577",
        f"{FOBS}.fobs:Packer.unpack": "251ce1811b4a",
    },
)


def apply() -> None:
    """Replace how a message's parts are read."""
    lobs, fobs = find(f"{FOBS}:lobs"), find(f"{FOBS}:fobs")
    section, unpack = lobs._get_one_section, fobs.Packer.unpack
    key, topic_key = find(f"{FOBS}:FOBSContextKey.MESSAGE"), find(TOPIC)

    def get_section(stream: Any, expect_datum: bool) -> Any:
        found = section(stream, expect_datum)
        header = found[0]
        if header is not None and header.marker == lobs.MARKER_DATUM_FILE:
            raise ValueError("a message must not hold a file")
        if header is not None and header.dot:
            raise ValueError("a message must not hold a reference to data elsewhere")
        return found

    def deserialize(data: bytes, manager: Any = None, **kwargs: Any) -> Any:
        fobs._register_decomposers()
        message = None if manager is None else manager.get_fobs_context().get(key)
        topic = "" if message is None else str(message.get_header(topic_key, ""))
        strict = topic.endswith((ServerCommandNames.SUBMIT_UPDATE, ServerCommandNames.GET_TASK))
        most = MOST_CONTAINERS if strict else MOST_ELSEWHERE
        contents = _Contents(strict=strict, most=most)
        packer = fobs.Packer(manager)

        def open_mapping(mapping: dict[Any, Any]) -> Any:
            contents.count(mapping.get(fobs.FOBS_TYPE))
            return unpack(packer, mapping)

        result = find("msgpack:unpackb")(
            data,
            strict_map_key=False,
            object_hook=open_mapping,
            list_hook=contents.count_list,
            max_array_len=min(len(data), most),
            max_map_len=min(len(data), most),
            **kwargs,
        )
        if manager is not None:
            manager.post_process()
        return result

    lobs._get_one_section, lobs.deserialize, fobs.deserialize = get_section, deserialize, deserialize


class _Contents:
    """Counts what is in a message while it is read."""

    def __init__(self, *, strict: bool, most: int) -> None:
        """``strict``: only types of `HOLDS`; ``most``: lists and mappings."""
        self._strict, self._most = strict, most
        self._containers = self._messages = 0

    def count(self, kind: object) -> None:
        """A mapping, or the object of type ``kind`` that it stands for."""
        self._containers += 1
        self._messages += kind == MESSAGE
        if self._strict and kind is not None and kind not in HOLDS:
            raise TypeError("a task or an answer holds an object of a type that it must not hold")
        if self._containers > self._most or self._messages > MOST_MESSAGES:
            raise ValueError("a message holds too many lists and mappings, or other messages")

    def count_list(self, values: list[Any]) -> list[Any]:
        """A list."""
        self.count(None)
        return values
