#!/bin/sh
# NVFlare's federated statistics give mean and standard deviation of each site and of all sites together, with four digits
# behind the point unless another precision is set. StatsJob does not offer another one.
#
# Expected: where each of two sites has a standard deviation of 0.006, and both the same mean, all together have 0.006.
# Seen: they have 0. What is rounded to four digits is the variance, first each site's share of it, then their sum, and only
# then the root is taken: about two digits are left, and of two sites that spread by less than 0.01 nothing. 0.0123 becomes
# 0.0141. The more sites there are the smaller are their shares: ten have to spread by more than 0.022 not to be 0. Such a
# feature, a diffusion coefficient in mm²/s, a fraction or a probability, is divided by 0 when it is standardized. Nothing
# is said.
# Versions: nvflare 2.9.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q nvflare==2.9.0 numpy==2.2.6
cd "$folder"
cat > values.py <<'PYTHON'
import numpy as np
from nvflare.app_common.abstract.statistics_spec import DataType, Feature, Statistics

SPREADS = {"narrow": 0.006, "middle": 0.0123, "wide": 1.2345}


class Values(Statistics):
    """Of each feature a thousand values at each site, half of them below its mean and half above."""

    def features(self):
        return {"train": [Feature(name, DataType.FLOAT) for name in SPREADS]}

    def values(self, name):
        return 0.5 + SPREADS[name] * np.tile([-1.0, 1.0], 500)

    def count(self, dataset_name, feature_name):
        return 1000

    def failure_count(self, dataset_name, feature_name):
        return 0

    def sum(self, dataset_name, feature_name):
        return float(self.values(feature_name).sum())

    def mean(self, dataset_name, feature_name):
        return float(self.values(feature_name).mean())

    def stddev(self, dataset_name, feature_name):
        return float(self.values(feature_name).std())

    def variance_with_mean(self, dataset_name, feature_name, global_mean, global_count):
        return float(((self.values(feature_name) - global_mean) ** 2).sum() / global_count)

    def histogram(self, dataset_name, feature_name, num_of_bins, global_min_value, global_max_value):
        raise NotImplementedError

    def max_value(self, dataset_name, feature_name):
        return float(self.values(feature_name).max())

    def min_value(self, dataset_name, feature_name):
        return float(self.values(feature_name).min())
PYTHON
cat > run.py <<'PYTHON'
from nvflare.job_config.stats_job import StatsJob
from values import Values

wanted = {"count": {}, "sum": {}, "mean": {}, "stddev": {}}
job = StatsJob("stats", wanted, Values(), output_path="statistics/seen.json")
job.setup_clients(["site-1", "site-2"])
job.simulator_run("work")
PYTHON
PYTHONPATH="$folder" "$folder/venv/bin/python" run.py > log.txt 2>&1 || { tail -20 log.txt; exit 1; }
PYTHONPATH="$folder" "$folder/venv/bin/python" - <<'PYTHON'
import json
from importlib.metadata import version
from pathlib import Path

from values import SPREADS

print("nvflare", version("nvflare"))
(path,) = Path("work").rglob("seen.json")
statistics = json.loads(path.read_text())
seen = {}
for name, spread in SPREADS.items():
    found = statistics[name]["stddev"]
    seen[name] = [found[place]["train"] for place in ("site-1", "site-2", "Global")]
    print("{}: the sites have {} and {}, all together {}, right is {}".format(name, *seen[name], spread))
right = {name: [spread] * 2 for name, spread in SPREADS.items()}
assert {name: found[:2] for name, found in seen.items()} == right, f"the sites have other numbers now: {seen}"
assert [found[2] for found in seen.values()] == [0, 0.0141, 1.2345], f"it is otherwise now: {seen}"
PYTHON
