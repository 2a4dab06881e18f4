"""Run MLflow's own tests of tracking stores with ours in place, or measure what a call costs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from benchmarks.child import ROOT
from benchmarks.mlflow_store import cost

FILES = (
    "tests/store/tracking/test_file_store.py",
    "tests/store/tracking/test_file_store_logged_model.py",
    "tests/tracking/test_tracking.py",
    "tests/tracking/test_client.py",
    "tests/tracking/fluent/test_fluent.py",
    "tests/tracking/_tracking_service",
)
LAYOUT = {
    "test_delete_restore_run": "reads a run's meta.yaml",
    "test_get_run_retries_for_transient_empty_yaml_read": "counts reads of a run's meta.yaml",
    "test_get_run_int_experiment_id_backcompat": "edits a run's meta.yaml",
    "test_search_runs_run_name": "edits a run's meta.yaml",
    "test_malformed_run": "removes a run's meta.yaml",
    "test_malformed_metric": "writes a file of metrics",
    "test_bad_experiment_id_recorded_for_run": "edits a run's meta.yaml",
    "test_log_batch_internal_error": "replaces internal methods of the file store",
    "test_log_inputs_uses_expected_input_and_dataset_ids_for_storage": "lists the file store's folders",
    "test_get_experiment_missing_and_empty_metadata_file": "writes meta.yaml of an experiment",
}
"""Tests of the files of MLflow's file store, which a run folder does not have."""
OF_A_DATABASE = {
    "test_create_experiment_with_duplicate_name": "expects the words of the database's error",
    "test_set_experiment_by_id": "expects the words of the database's error",
    "test_set_active_model_error": "expects the words of the database's error",
    "test_search_runs_multiple_experiments": "expects experiments to be numbered from 1",
    "test_clear_active_model": "expects None, not an empty list, of a model without metrics",
    "test_set_trace_tag_skips_immutable_internal_tags_on_active_trace": "expects spans in a database",
    "test_delete_trace_tag_skips_immutable_internal_tags_on_active_trace": "expects spans in a database",
}
"""Tests that MLflow's file store does not pass either: they count as failures."""
TARGET = 0.95


def main() -> int:
    """Return 1 if fewer tests pass than the target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mlflow_store", description=__doc__)
    parser.add_argument("checkout", nargs="?", type=Path, help="a checkout of MLflow; its tests are run")
    parser.add_argument("--calls", type=int, default=2_000, help="calls of each store that are timed")
    given = parser.parse_args()
    if given.checkout is None:
        cost.show(given.calls)
        return 0
    return run_tests(given.checkout)


def run_tests(checkout: Path) -> int:
    """Run the tests, and those that fail once more with MLflow's own stores; print what came of them."""
    ours = _results(checkout, [name for name in FILES if (checkout / name).exists()], {})
    failed = [name for name, outcome in ours.items() if outcome == "failed"]
    by_themselves = {
        name
        for name, outcome in _results(checkout, failed, {"BASELINE": "file"}).items()
        if outcome == "failed"
    }
    ran = [name for name, outcome in ours.items() if outcome != "skipped"]
    layout = [name for name in failed if _short(name) in LAYOUT]
    counted = len(ran) - len(layout)
    passed = len(ran) - len(failed)
    for name in failed:
        reason = "fails with MLflow's own store as well" if name in by_themselves else "not explained"
        reason = {**LAYOUT, **OF_A_DATABASE}.get(_short(name), reason)
        print(f"failed: {name}: {reason}")
    print(f"{passed} of {len(ran)} tests pass, {len(ours) - len(ran)} are skipped by MLflow")
    print(
        f"without {len(layout)} about the file store's own files: {passed} of {counted} ({passed / counted:.1%})"
    )
    print(f"of the others that fail, {len(by_themselves - set(layout))} fail with MLflow's own store as well")
    return int(passed / counted < TARGET)


def _results(checkout: Path, tests: Sequence[str], variables: dict[str, str]) -> dict[str, str]:
    """Return passed, failed or skipped by the name of a test."""
    if not tests:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "benchmarks.mlflow_store.in_place"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MLFLOW_ALLOW_FILE_STORE": "true",
            **variables,
        }
        subprocess.run(
            [*command, "-o", "junit_family=xunit1", f"--junitxml={report}", *tests],
            cwd=checkout,
            env=environment,
            check=False,
        )
        found: dict[str, str] = {}
        for case in ElementTree.parse(report).iter("testcase"):
            kinds = {child.tag for child in case}
            outcome = (
                "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            )
            name = f"{case.get('file')}::{case.get('name')}"
            found[name] = "failed" if found.get(name) == "failed" else outcome
        return found


def _short(name: str) -> str:
    return name.rpartition("::")[2].partition("[")[0]


if __name__ == "__main__":
    sys.exit(main())
