"""A site answers its three tasks from its own data and state; the same task gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import first_round, make_image_site, small_image_job
from errors import raises

from fedshift.federation.in_process import PooledSite
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.site.state import StateStore
from fedshift.federation.tensors import load_weights, read_weights
from fedshift.schema.errors import Stopped
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast


def site_of(job: JobSpec, tmp_path: Path, name: str = "A", **options: object) -> Site:
    data = tmp_path / "data" / "shapes" / name
    if not data.is_dir():
        make_image_site(tmp_path / "data", name)
    return Site(job, name, data, SiteOptions(tmp_path / "state", **options))  # type: ignore[arg-type]


def broadcast_of(job: JobSpec, tmp_path: Path, *sites: Site) -> Broadcast:
    return first_round(Coordinator(job, tmp_path / "server"), {site.name: site for site in sites})


def three(job: JobSpec, tmp_path: Path) -> list[Site]:
    first = site_of(job, tmp_path)
    return [first, *(site_of(job, tmp_path, name, job_network=first.job_network) for name in "BC")]


def test_info_has_counts_and_hardware_and_no_path(tmp_path: Path) -> None:
    info = site_of(small_image_job("fedavg"), tmp_path).info()
    assert (info.n_train, info.n_val, info.n_test) == (36, 6, 6) and info.precision == "fp32" and info.threads == 1
    assert str(tmp_path) not in repr(info)


def test_round_0_sends_the_methods_arrays_and_is_remembered(tmp_path: Path) -> None:
    site = site_of(small_image_job("fedrdn"), tmp_path)
    update = site.statistics()
    assert update.round == 0 and update.weights == {} and set(update.arrays) == {"fedrdn"}
    state = StateStore(tmp_path / "state" / "A").before(1)
    assert state is not None and set(state.methods["fedrdn"]) == {"mean", "std"}


def test_a_repeated_task_gives_the_same_bytes_whatever_the_network_did_in_between(tmp_path: Path) -> None:
    job = small_image_job("fedfa+fedrdn", "schedule.rounds=2")
    sites = three(job, tmp_path)
    broadcast = broadcast_of(job, tmp_path, *sites)
    first = sites[0].train(broadcast)
    assert first.n_steps > 0 and first.metrics["train_loss"] > 0 and set(first.arrays) == {"fedfa"}
    sites[1].train(broadcast)  # another site that uses the same network
    again = sites[0].train(broadcast)
    for key, value in first.weights.items():
        np.testing.assert_array_equal(again.weights[key], value)
    for key, value in first.arrays["fedfa"].items():
        np.testing.assert_array_equal(again.arrays["fedfa"][key], value)


def test_personal_keys_stay_and_are_used_in_the_next_round(tmp_path: Path) -> None:
    job = small_image_job("fedbn", "schedule.rounds=2")
    site = site_of(job, tmp_path)
    received = read_weights(site.network)
    update = site.train(Broadcast(1, 0, received))
    state = StateStore(tmp_path / "state" / "A").before(2)
    assert state is not None and state.personal
    assert not update.weights.keys() & state.personal.keys()
    assert update.weights.keys() | state.personal.keys() == received.keys()
    mean = next(key for key in state.personal if key.endswith("running_mean"))
    assert not torch.equal(state.personal[mean], torch.from_numpy(received[mean]))
    fresh = Site(job, "A", tmp_path / "data" / "shapes" / "A", SiteOptions(tmp_path / "elsewhere"))
    own, initial = (torch.cat(list(s.predictions(Broadcast(2, 0, received), "val"))) for s in (site, fresh))
    assert own.shape == initial.shape == (6, 3) and not torch.allclose(own, initial, atol=1e-3)


def test_a_task_that_is_stopped_or_diverges_writes_nothing(tmp_path: Path) -> None:
    site = site_of(small_image_job("fedavg"), tmp_path)
    received = read_weights(site.network)
    with pytest.raises(Stopped):
        site.train(Broadcast(1, 0, received), stop=lambda: True)
    broken = {
        key: value * np.float32(np.nan) if value.dtype == np.float32 else value for key, value in received.items()
    }
    with raises("diverged", naming=("A", "round 1")):
        site.train(Broadcast(1, 0, broken))
    assert not (tmp_path / "state" / "A" / "round_000001.pt").exists()


def test_fine_tuning_is_scored_apart_and_leaves_no_state(tmp_path: Path) -> None:
    site = site_of(small_image_job("pfedavg", "schedule.rounds=1"), tmp_path)
    broadcast = Broadcast(2, 1, read_weights(site.network))
    scores = site.validate(broadcast)
    assert set(scores.personal) == {"val", "test"} and scores.personal_evaluation is not None
    assert not (tmp_path / "state" / "A").exists() or not list((tmp_path / "state" / "A").glob("round_*.pt"))
    assert site.validate(broadcast).personal == scores.personal


def test_only_a_site_that_trains_in_the_job_answers_what_is_asked_of_those(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    """What another one sent would be in clear also where the job has masks, since it has no part in them."""
    for options in ((), ("federation.min_sites=2", "federation.encryption=masks")):
        held_out = small_image_job("fedavg", "held_out=[C]", *options, sites=("A", "B"))
        unnamed = small_image_job("fedavg", *options, sites=("A", "B"))
        for job, how in ((held_out, "is held out of"), (unnamed, "is not named by")):
            site = Site(job, "C", three_image_sites["C"], SiteOptions(tmp_path / f"{how} {len(options)}"))
            broadcast = Broadcast(1, 0, read_weights(site.network), sites=("C",))
            for ask in (site.train, site.unmask):
                with raises("no-part", naming=("C", how, job.name)):
                    ask(broadcast)
            if job is held_out:
                assert site.validate(broadcast).values["all"]
                continue
            with raises("no-part", naming=("C", how, job.name)):
                site.validate(broadcast)


def test_a_pooled_site_trains_on_all_images_and_has_none_to_score_on(tmp_path: Path) -> None:
    job = small_image_job("all")
    data = {name: make_image_site(tmp_path / "data", name) for name in "ABC"}
    pooled = PooledSite(job, data, SiteOptions(tmp_path / "state"))
    broadcast = Broadcast(1, 0, read_weights(pooled.network))
    update = pooled.train(broadcast)
    assert update.n_samples == 3 * 36 and not any(name.endswith("accuracy") for name in update.metrics)


def test_read_only_arrays_of_a_message_load_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    net = torch.nn.Linear(2, 1)
    weights = {key: value + 1 for key, value in read_weights(net).items()}
    for value in weights.values():
        value.flags.writeable = False
    load_weights(net, weights)
    assert not recwarn.list and all(read_weights(net)[key].tobytes() == weights[key].tobytes() for key in weights)
