"""A received message has a short text."""

from __future__ import annotations

from nvflare.fuel.utils.buffer_list import ConsumableBufferList

from flare_armour import patches

patches.install()


def test_the_text_of_a_message_does_not_have_its_bytes() -> None:
    assert str(ConsumableBufferList([b"x" * 1000, b"y"])) == "<message in 2 pieces>"
