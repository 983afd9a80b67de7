"""The example of docs/armour.md runs as it is shown: another project would copy it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from flare_armour.guard.rules import ASKS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "armour.md"


def test_the_module_of_another_project_takes_its_jobs_and_its_messages(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    mine: dict[str, Any] = {"__name__": "mine"}
    exec(code, mine)
    config = tmp_path / "config"
    config.mkdir()
    (config / "config_fed_client.json").write_text("{}", encoding="utf-8")
    (config / "config_fed_server.json").write_text(json.dumps(mine["SERVER"]), encoding="utf-8")
    assert mine["AppFiles"]().validate(str(tmp_path)) == ("", {})
    (config / "config_fed_server.json").write_text(json.dumps({**mine["SERVER"], "components": [1]}), encoding="utf-8")
    assert "config_fed_server.json" in mine["AppFiles"]().validate(str(tmp_path))[0]
    asked = mine["Guard"].asks["site's job", "server's job"] - ASKS["site's job", "server's job"]
    assert asked == {("aux_communication", "my_topic")}
    assert mine["Guard"].files is mine["FILES"]
