"""A MONAI bundle in a validation: the masks of ``fedshift predict``, beside a model of fedshift, and no code."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from errors import raises
from monai.networks.nets import UNet
from validations import blob_models, blob_sites, blob_spec, packed

from fedshift.cli import main
from fedshift.federation.carried_model import read_carried, write_carried
from fedshift.inference.carried_bundle import pack_bundle, unpack_bundle
from fedshift.inference.validation import answer
from fedshift.inference.validation_run import begin
from fedshift.schema.manifest import read_manifest
from fedshift.schema.validation import CASES_FILE, ModelRef
from fedshift.tasks.evaluation.by_class import dice_by_class
from inference.test_monai_bundle import METADATA, NETWORK, write_bundle


def of_blobs(folder: Path) -> Path:
    """A bundle with the classes of `volumesites.make_volume_site`."""

    def change(config: dict[str, Any]) -> None:
        config["network_def"] = {**NETWORK, "out_channels": 3}

    with torch.random.fork_rng():
        torch.manual_seed(1)
        weights = UNet(3, 1, 3, channels=(4, 8), strides=(2,), norm="batch").state_dict()
    write_bundle(folder, change=change, weights=weights)
    outputs = {"pred": {"channel_def": {"0": "background", "1": "left", "2": "right"}}}
    data = {**METADATA["network_data_format"], "outputs": outputs}  # type: ignore[dict-item]
    (folder / "configs" / "metadata.json").write_text(json.dumps({**METADATA, "network_data_format": data}))
    return folder


def test_a_bundle_is_scored_beside_a_model(tmp_path: Path) -> None:
    bundle, site = of_blobs(tmp_path / "bundle"), blob_sites(tmp_path / "data", test=4, shape=(6, 20, 24))["A"]
    carried = tmp_path / "carried"
    refs = (
        ModelRef(name="theirs", sha256=pack_bundle(bundle, carried / "theirs.npz")),
        *packed(blob_models(tmp_path / "models", "ours"), carried),
    )
    record = begin(blob_spec(refs), carried).record()
    assert (record.models["theirs"].task, record.models["theirs"].kind) == ("bundle Ball 0.2.0", "unknown")
    told = answer(site, "A", blob_spec(refs), carried, scores_folder=tmp_path / "own")
    assert set(told.models) == {"theirs", "ours"} and "dice" in told.models["ours"].against_first
    with (tmp_path / "own" / CASES_FILE).open(newline="", encoding="utf-8") as file:
        own = {row["case"]: row for row in csv.DictReader(file) if row["model"] == "theirs"}
    case = read_manifest(site).by_split("test")[0].id
    assert main(["predict", str(bundle), str(site / "volumes" / f"{case}.nii.gz"), "--out", str(tmp_path / "out")]) == 0
    files = (tmp_path / "out" / f"{case}_mask.nii.gz", site / "volumes" / f"{case}_mask.nii.gz")
    masks = [sitk.GetArrayFromImage(sitk.ReadImage(str(file))) for file in files]
    for name, dice in zip(("left", "right"), dice_by_class(*masks, 3), strict=True):
        assert float(own[case][f"dice {name}"]) == pytest.approx(dice, rel=1e-6), name


def test_other_classes_are_refused_at_the_site(tmp_path: Path) -> None:
    site = blob_sites(tmp_path / "data", test=4, shape=(6, 20, 24))["A"]
    refs = (
        ModelRef(name="theirs", sha256=pack_bundle(write_bundle(tmp_path / "bundle"), tmp_path / "c" / "theirs.npz")),
    )
    told = answer(site, "A", blob_spec(refs), tmp_path / "c")
    assert told.refused["theirs"] == "its classes are prostate, and the site was prepared with left, right"


def test_code_is_refused_when_the_job_is_written_and_again_at_a_site(tmp_path: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        config["inferer"]["overlap"] = "$__import__('os').getpid()"

    with raises("bundle-config", naming="no code of a bundle is run"):
        pack_bundle(write_bundle(tmp_path / "code", change=change), tmp_path / "code.npz")
    sha = pack_bundle(write_bundle(tmp_path / "plain"), tmp_path / "plain.npz")
    header, arrays = read_carried(tmp_path / "plain.npz", sha256=sha)
    change(header["bundle"]["inference"])
    path = tmp_path / "changed.npz"
    sha = write_carried(path, header, arrays)
    with raises("bundle-config", naming="no code of a bundle is run"):
        unpack_bundle(path, *read_carried(path, sha256=sha))
    assert np.isfinite([value.double().sum() for value in arrays.values()]).all()
