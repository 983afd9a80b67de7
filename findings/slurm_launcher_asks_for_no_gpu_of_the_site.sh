#!/bin/sh
# `nvflare deploy prepare KIT --config slurm.yaml` prepares a site whose jobs run in a Slurm queue.
#
# Expected: the site says once how many GPUs, cores and how much memory each of its jobs gets, as it says partition,
# account and time limit: the queue is the site's, and a job's author knows nothing of it. Docker's settings of a site
# have such limits (default_job_container_kwargs).
# Seen: the settings take partition, account, qos, time, constraint and reservation. gres, gpus, cpus-per-task and mem
# are refused, and no other setting has them. Only a job can ask for them, in its meta.json, for each site by name, with
# the launcher of that site (launcher_spec); a job without that runs on a node without a GPU, and nothing says so.
# Version: nvflare 2.9.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q nvflare==2.9.0
cd "$folder"
HOME="$folder" "$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

from nvflare.app_opt.job_launcher.slurm.config import SlurmLauncherError, normalize_slurm_directives

print("nvflare", version("nvflare"))
taken = {}
for key, value in {"partition": "gpu", "time": "1:00:00", "gres": "gpu:1", "gpus": 1, "cpus-per-task": 8, "mem": "32G"}.items():
    try:
        normalize_slurm_directives({key: value})
        taken[key] = True
    except SlurmLauncherError as error:
        taken[key] = False
        print(f"{key}: {error}")
print("a site may say:", ", ".join(key for key, is_taken in taken.items() if is_taken))
assert taken == {"partition": True, "time": True, "gres": False, "gpus": False, "cpus-per-task": False, "mem": False}
PYTHON
