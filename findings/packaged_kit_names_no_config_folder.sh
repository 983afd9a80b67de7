#!/bin/sh
# `nvflare package` makes a kit from a certificate that was requested by the site (distributed provisioning).
#
# Expected: a job's component asks Workspace.get_app_config_dir(job) for the folder of the job's own files, and gets
# .../app_SITE/config, in which FLARE has put them. NVFlare's documentation says that such a kit is used in the same way
# as a provisioned one, and the kits of the project of `nvflare provision -g` do so.
# Seen: the start script of a packaged kit says `config_folder=` with nothing behind it, so the folder that a component
# gets is .../app_SITE, where the job's files are not. FLARE's own jobs run all the same, because FLARE looks for its
# config_fed_client.json in the folders below as well. The way out: ask for get_app_dir(job), and add "config".
# Version: nvflare 2.9.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q nvflare==2.9.0
cd "$folder"
export HOME="$folder" PATH="$folder/venv/bin:$PATH"
cat > profile.yml <<'YAML'
name: trial
scheme: grpc
connection_security: mtls
server: {host: localhost, fed_learn_port: 8002}
YAML
cat > site-1.yml <<'YAML'
name: trial
participants:
  - {name: site-1, type: client, org: nvidia}
YAML
nvflare cert init --profile profile.yml -o ca > log 2>&1
nvflare cert request -p site-1.yml >> log 2>&1
nvflare cert approve site-1/site-1.request.zip -c ca --profile profile.yml >> log 2>&1
root=$(python - <<'PYTHON'
import json
print(json.load(open("ca/ca.json"))["rootCA_fingerprint"])
PYTHON
)
nvflare package site-1/site-1.signed.zip --request-dir site-1 --fingerprint "$root" -w packaged >> log 2>&1
nvflare provision -g >> log 2>&1
nvflare provision -p project.yml -w provisioned --force >> log 2>&1
python - <<'PYTHON'
import re
from importlib.metadata import version
from pathlib import Path

from nvflare.apis.workspace import Workspace

print("nvflare", version("nvflare"))
folders = {}
for way in ("provisioned", "packaged"):
    (script,) = Path(way).glob("*/prod_00/site-1/startup/sub_start.sh")
    (name,) = set(re.findall(r"config_folder=(\S*)", script.read_text()))
    kit = script.parents[1]
    folder = Workspace(str(kit), "site-1", name).get_app_config_dir("JOB")
    folders[way] = str(Path(folder).relative_to(kit.resolve() if Path(folder).is_absolute() else kit))
    print(f"{way}: config_folder={name!r}, so a component's files are looked for in {folders[way]}")
assert folders == {"provisioned": "JOB/app_site-1/config", "packaged": "JOB/app_site-1"}, "they are alike by now"
PYTHON
