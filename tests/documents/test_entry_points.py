"""docs/nvflare-entry-points.md names every place of the installed NVFlare where something that arrives is acted on."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

import nvflare
import pytest
from nvflare.apis import fl_constant
from nvflare.fuel.f3.cellnet import core_cell, defs, net_agent
from nvflare.fuel.f3.streaming import download_service, stream_const
from nvflare.fuel.hci.proto import InternalCommands
from nvflare.private import defs as private_defs
from nvflare.private import stream_runner
from nvflare.private.fed.client.admin_commands import AdminCommands
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.server.server_cmd_modules import ServerCommandModules
from nvflare.private.fed.server.server_commands import ServerCommands

PAGE = Path(__file__).parents[2] / "docs" / "nvflare-entry-points.md"
NVFLARE = Path(nvflare.__file__).parent
NET_MANAGER = "fuel/f3/cellnet/net_manager.py"
"""Read as source: fedshift's guard takes its commands away in a process that has it."""
REGISTERS = (
    "register_request_cb",
    "register_blob_cb",
    "register_stream_cb",
    "register_aux_message_handler",
    "register_stream_processing",
    "register_request_handler",
    "add_error_handler",
)
"""NVFlare's functions that take what is called when a message arrives."""


def named(title: str | None = None) -> set[str]:
    """Everything in code quotes, on the page or in one of its sections with what is below it."""
    text = PAGE.read_text(encoding="utf-8")
    if title is not None:
        found = re.search(rf"^(##+) {re.escape(title)}\n(.*?)(?=^##(?!#)|\Z)", text, flags=re.DOTALL | re.MULTILINE)
        assert found is not None, f"no section {title!r}"
        text = found.group(2)
    return set(re.findall(r"`([^`]+)`", text))


def texts(holder: object) -> set[str]:
    """The strings that a class or module of constants holds."""
    return {value for key, value in vars(holder).items() if isinstance(value, str) and not key.startswith("_")}


def topics(module: object, prefix: str) -> set[str]:
    """The strings of a module whose names begin with ``prefix``."""
    return {value for key, value in vars(module).items() if key.startswith(prefix) and isinstance(value, str)}


CORE = {core_cell._SM_CHANNEL, core_cell._SM_TOPIC, core_cell._TOPIC_BULK}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (None, texts(defs.CellChannel) | texts(defs.CellChannelTopic)),
        ("Every cell", CORE | {stream_const.STREAM_CHANNEL, stream_const.STREAM_DATA_TOPIC}),
        (
            "Every cell",
            {stream_const.STREAM_ACK_TOPIC, stream_const.STREAM_ERROR_TOPIC, stream_const.STREAM_CERT_TOPIC},
        ),
        ("Every cell", topics(download_service, "OBJ_DOWNLOADER") | topics(download_service, "SOURCE_FAILURE_TOPIC")),
        ("Every cell", topics(net_agent, "_TOPIC") | {net_agent._CHANNEL}),
        (None, texts(fl_constant.ServerCommandNames)),
        ("The server's job process", {command.get_command_name() for command in ServerCommands.commands}),
        (
            "A site's main process",
            {topic for one in ClientRequestProcessors.request_processors for topic in one.get_topics()}
            | texts(private_defs.TrainingTopic)
            | texts(private_defs.SysCommandTopic)
            | texts(private_defs.InfoCollectorTopic)
            | texts(private_defs.ComponentCallerTopic)
            | texts(private_defs.ControlCommandTopic),
        ),
        ("A site's job process", {command.get_command_name() for command in AdminCommands.commands}),
        ("Auxiliary topics", texts(fl_constant.ReservedTopic) | topics(stream_runner, "TOPIC_")),
        ("Auxiliary topics", {"fed.event", "RM.RELIABLE_REQUEST", "RM.RELIABLE_REPLY"}),
        ("Commands of the console", texts(fl_constant.AdminCommandNames) | set(InternalCommands.commands)),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_every_channel_topic_and_command_is_on_the_page(section: str | None, expected: set[str]) -> None:
    assert expected
    assert not expected - named(section)


def specs(module: str) -> dict[str, bool]:
    """The commands that a module's source names in so many words: name -> whether a right may be asked for."""
    found = {}
    for node in ast.walk(ast.parse((NVFLARE / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "CommandSpec":
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if isinstance(given["name"], ast.Constant):
                found[str(given["name"].value)] = "authz_func" in given
    return found


def test_every_command_is_on_the_page_and_those_that_ask_for_no_right_are_said_to_ask_for_none() -> None:
    looking = specs(NET_MANAGER)
    expected = {command.name for module in ServerCommandModules.cmd_modules for command in module.get_spec().cmd_specs}
    assert not (expected | looking.keys()) - named("Commands of the console")
    free = {
        command.name
        for module in ServerCommandModules.cmd_modules
        for command in module.get_spec().cmd_specs
        if command.authz_func is None
    }
    (row,) = (line for line in PAGE.read_text(encoding="utf-8").splitlines() if f"`{NET_MANAGER}`" in line)
    of_the_row = set(re.findall(r"`([^`]+)`", row.split("|")[1]))
    assert free | {name for name, asks in looking.items() if not asks} == of_the_row


def registering() -> set[str]:
    """Modules of NVFlare that register something to be called when a message arrives."""
    found = set()
    for path in NVFLARE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(f"{name}(" in text for name in REGISTERS):
            continue
        calls = (node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        if any(isinstance(call, ast.Attribute) and call.attr in REGISTERS for call in calls):
            found.add(path.relative_to(NVFLARE).as_posix())
    return found


def test_every_module_that_takes_messages_is_on_the_page() -> None:
    modules, patterns = registering(), named()
    assert len(modules) > 40, "NVFlare registers in another way: look for it, and at this test"
    assert not {module for module in modules if not any(fnmatch(module, pattern) for pattern in patterns)}


def test_every_module_that_the_page_names_is_there() -> None:
    paths = {
        name for name in named() if re.fullmatch(r"(fuel|private|apis|app_common|app_opt|edge|client)/[\w/]+\.py", name)
    }
    assert len(paths) > 30
    assert not {path for path in paths if not (NVFLARE / path).is_file()}


def test_every_driver_of_connections_is_on_the_page() -> None:
    drivers = {path.name for path in (NVFLARE / "fuel" / "f3" / "drivers").glob("*_driver.py")} - {"base_driver.py"}
    quoted = " ".join(named("Before a message"))
    assert not {name for name in drivers if name not in quoted}
