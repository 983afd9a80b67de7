"""Tests mirror the package: whoever changes a module finds its test at the same path below ``tests/``."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PACKAGES = {ROOT / "custom" / "fedshift": TESTS, ROOT / "data_prep": TESTS / "data_prep"}
ELSEWHERE = {
    "cli/card": "reporting/test_card.py",
    "cli/compare": "reporting/comparison/test_run.py",
    "cli/cross_site": "federation/test_protocols.py",
    "cli/drift": "inference/test_drift.py",
    "cli/export": "inference/test_bundle.py",
    "cli/leaderboard": "reporting/comparison/test_leaderboard.py",
    "cli/leave_one_out": "federation/test_protocols.py",
    "cli/methods": "cli/test_main.py",
    "cli/model_choice": "cli/test_predict.py",
    "cli/own": "cli/test_data.py",
    "cli/phantom": "data_prep/test_phantom.py",
    "cli/prepared": "cli/test_data.py",
    "cli/report": "reporting/test_report.py",
    "cli/tasks": "cli/test_main.py",
    "data/case_folders": "data/test_scansets.py",
    "data/casefiles": "data/test_check.py",
    "data/deflated": "data/test_segmentations.py",
    "data/described": "data/test_scansets.py",
    "data/description": "data/test_listed.py",
    "data/dicom_classes": "data/test_scan_folders.py",
    "data/dicom_extra": "cli/test_predict_dicom.py",
    "data/explain": "cli/test_explain.py",
    "data/file_header": "data/test_volume_file.py",
    "data/images": "data_prep/test_pictures.py",
    "data/integrity": "data/test_check.py",
    "data/dicom_frames": "data/test_dicom_volumes.py",
    "data/dicom_scan": "data/test_dicom_volumes.py",
    "data/named_masks": "data/test_slicer_masks.py",
    "data/lengths": "data/test_volume_file.py",
    "data/meta_image": "data/test_volume_file.py",
    "data/nifti_header": "data/test_volume_file.py",
    "data/nifti_read": "data/test_volume_file.py",
    "data/nrrd": "data/test_volume_file.py",
    "data/pairing": "data/test_scansets.py",
    "data/patterns": "data/test_scansets.py",
    "data/prepared": "data_prep/test_own.py",
    "data/reading_rules": "repository/test_reading_rules.py",
    "data/scan_file": "data/test_check.py",
    "data/scans": "data/test_check.py",
    "data/series": "data/test_scan_folders.py",
    "data/structures": "data/test_dicom_masks.py",
    "data/studies": "data/test_dicom_masks.py",
    "data/voxels": "data/test_resampled.py",
    "data_prep/lists": "data_prep/test_domainnet.py",
    "data_prep/phantom_anatomy": "data_prep/test_phantom.py",
    "data_prep/phantom_scanner": "data_prep/test_phantom.py",
    "data_prep/scanners": "data_prep/test_hippocampus.py",
    "data_prep/volumes": "data_prep/test_own.py",
    "federation/compression": "schema/test_compression.py",
    "federation/encryption/masks/agreement": "federation/encryption/masks/test_site.py",
    "federation/encryption/masks/fixed_point": "federation/encryption/masks/test_server.py",
    "federation/encryption/masks/protocol": "federation/encryption/masks/test_site.py",
    "federation/encryption/masks/streams": "federation/encryption/masks/test_site.py",
    "federation/encryption/masks/unmasking": "federation/encryption/masks/test_server.py",
    "federation/encryption/server": "flare/test_encryption.py",
    "federation/encryption/site": "flare/test_encryption.py",
    "federation/encryption/sums": "flare/test_encryption.py",
    "federation/footprint": "federation/test_memory.py",
    "federation/model_files": "inference/test_model_files.py",
    "federation/planning/memory": "federation/planning/test_plan.py",
    "federation/planning/task_file": "federation/planning/test_plan.py",
    "federation/refusals": "federation/test_resolve.py",
    "federation/server/global_model": "federation/server/test_coordinator.py",
    "federation/server/inbound": "federation/server/test_update_check.py",
    "federation/server/replaced_update": "federation/server/test_clipping.py",
    "federation/server/run_record": "federation/server/test_run_files.py",
    "federation/server/spool": "federation/server/test_robust.py",
    "federation/server/state_files": "federation/server/test_run_files.py",
    "federation/survey/numbers": "federation/survey/test_merge.py",
    "federation/survey/question": "federation/survey/test_collect.py",
    "federation/survey/suggestions": "federation/survey/test_shift.py",
    "federation/tensor_files": "federation/site/test_state.py",
    "federation/weights": "federation/site/test_site.py",
    "flare/dry_run": "cli/test_site.py",
    "flare/kit_identity": "flare/test_masks.py",
    "flare/keys": "flare/test_encryption.py",
    "flare/once_a_minute": "flare/guard/test_drops.py",
    "flare/patches/broadcast_copy": "flare/test_workflow.py",
    "flare/patches/message_pieces": "flare/patches/test_numpy_arrays.py",
    "flare/patches/return_codes": "flare/patches/test_message_exits.py",
    "flare/patches/simulator_sleeps": "flare/patches/test_simulator_workers.py",
    "flare/patches/stream_pieces": "flare/patches/test_incoming_streams.py",
    "flare/pieces/wire": "flare/pieces/test_server_end.py",
    "flare/run_folders": "flare/test_simulator_state.py",
    "flare/simulated": "flare/test_simulate.py",
    "flare/simulator": "cli/test_run.py",
    "flare/simulator_process": "cli/test_run.py",
    "flare/start": "cli/test_run.py",
    "flare/survey/simulate": "flare/survey/test_job.py",
    "flare/survey/workflow": "flare/survey/test_job.py",
    "inference/bundle_components": "inference/test_monai_bundle.py",
    "inference/bundle_config": "inference/test_monai_bundle.py",
    "inference/bundle_patches": "inference/test_patches.py",
    "inference/bundle_slices": "inference/test_bundle.py",
    "inference/class_colours": "cli/test_predict.py",
    "inference/classify": "cli/test_predict.py",
    "inference/dicom_rtstruct": "inference/test_dicom_results.py",
    "inference/dicom_seg": "inference/test_dicom_results.py",
    "inference/dicom_source": "inference/test_dicom_results.py",
    "inference/dicom_sr": "inference/test_dicom_results.py",
    "inference/export": "inference/test_bundle.py",
    "inference/masks": "inference/test_grid.py",
    "inference/model": "inference/test_choices.py",
    "inference/overlay": "cli/test_predict.py",
    "inference/scoring": "cli/test_evaluate.py",
    "inference/segment": "cli/test_predict.py",
    "inference/slicewise": "inference/test_grid.py",
    "methods/shared/head": "methods/test_refusals.py",
    "methods/shared/prototypes": "methods/test_fedproto.py",
    "methods/base": "methods/test_every_method.py",
    "methods/shared/adaptive": "methods/test_fedadam.py",
    "methods/shared/aggregation": "methods/test_fednova.py",
    "methods/shared/auxiliary": "methods/test_fraug.py",
    "methods/shared/domains": "methods/test_groupdro.py",
    "methods/shared/norms": "methods/test_fedbn.py",
    "methods/shared/spatial": "methods/test_spatial.py",
    "methods/shared/tally": "methods/test_scaffold.py",
    "reporting/comparison/cell_record": "reporting/comparison/test_run.py",
    "reporting/comparison/columns": "reporting/comparison/test_tables.py",
    "reporting/comparison/footnotes": "reporting/comparison/test_tables.py",
    "reporting/comparison/leaderboard_tables": "reporting/comparison/test_leaderboard.py",
    "reporting/comparison/plan": "reporting/comparison/test_estimate.py",
    "reporting/comparison/rank_figure": "reporting/comparison/test_leaderboard.py",
    "reporting/comparison/record": "reporting/comparison/test_run.py",
    "reporting/comparison/runner": "reporting/comparison/test_run.py",
    "reporting/comparison/store": "reporting/comparison/test_run.py",
    "reporting/comparison/work": "reporting/comparison/test_run.py",
    "reporting/figures": "reporting/comparison/test_curves.py",
    "reporting/protocol_tables": "federation/test_protocols.py",
    "reporting/recent_log": "reporting/test_progress.py",
    "reporting/shift_table": "reporting/test_shift_map.py",
    "reporting/without_structure": "federation/test_without_structure.py",
    "schema/evaluation": "tasks/evaluation/test_evaluation.py",
    "schema/fingerprint": "federation/survey/test_collect.py",
    "schema/identity": "flare/test_export.py",
    "schema/policy": "federation/site/privacy/test_gate.py",
    "schema/protocol_results": "federation/test_protocols.py",
    "schema/reading": "cli/test_explain.py",
    "schema/reference": "federation/test_reference.py",
    "schema/results": "schema/test_broken_files.py",
    "tasks/base": "federation/test_protocols.py",
    "tasks/kinds/segmentation": "tasks/segmentation/test_patches.py",
    "tasks/segmentation/patch_task": "tasks/segmentation/test_patches.py",
    "tasks/stages": "methods/test_manifold_mixup.py",
}
"""Module -> the file that tests it together with others. A module that gets a test of its own leaves this table."""


def modules() -> dict[str, Path]:
    """Module as a path like ``data/arrays`` -> the file at which its test is expected."""
    expected = {}
    for package, tests in PACKAGES.items():
        for module in package.rglob("*.py"):
            if module.stem not in (
                "__init__",
                "__main__",
                "errors",
            ):  # entry points, and classes without a line of code
                at = tests / module.relative_to(package)
                expected[str(at.relative_to(TESTS).with_suffix(""))] = at.with_name(f"test_{at.name}")
    return expected


def has_test(test: Path) -> bool:
    """Whether a module has its own test, or a folder that it is in has one that is named after the folder.

    The nine folders of the package are too large for one test.
    """
    inner = [folder for folder in test.parents if TESTS in folder.parents and folder.parent != TESTS]
    named = (place / f"test_{folder.name}.py" for folder in inner for place in (folder, folder.parent))
    return test.is_file() or any(file.is_file() for file in named)


def test_every_module_has_a_test_at_its_mirrored_path() -> None:
    missing = [name for name, test in modules().items() if name not in ELSEWHERE and not has_test(test)]
    assert not missing, "write tests/<path>/test_<module>.py, or say in ELSEWHERE what tests it"


def test_the_table_names_modules_without_a_test_and_tests_that_exist() -> None:
    expected = modules()
    assert not [name for name in ELSEWHERE if name not in expected], "these modules are gone"
    assert not [name for name in ELSEWHERE if name in expected and has_test(expected[name])], "take them off"
    assert not [test for test in ELSEWHERE.values() if not (TESTS / test).is_file()]


def test_nothing_is_reckoned_with_the_time_of_day() -> None:
    """Clocks are set: durations and deadlines need ``time.monotonic``. Certificates, records and files have a date.

    Those who watch a run are told how old its ``progress.json`` is; nothing else depends on that.
    """
    of_day = re.compile(r"\btime\.time\b|\bdatetime\.now\b|\bst_[mca]time\b")
    package = ROOT / "custom" / "fedshift"
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if of_day.search(path.read_text(encoding="utf-8"))
    }
    nvflares_own = {f"flare/patches/{name}.py" for name in ("party_shares", "simulator_sleeps", "steady_clock")}
    of_files = {"cli/watch.py", "inference/drift/months.py", "reporting/watch/moment.py"}
    records = {"cli/site.py", "inference/dicom_rtstruct.py", "reporting/comparison/work.py", "reporting/trackers.py"}
    records |= {"federation/site/privacy/ledger.py", "flare/kit_identity.py", "flare/disabled_sites.py"}
    records |= {"flare/patches/tls_faults.py"}
    assert found == {*records, *of_files, *nvflares_own}
