"""What a run says of its packages, seeds and data as it is started."""

import os
import sys

import numpy as np
import pytest
import torch

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine import start_look
from toolkit.telemetry.logger.machine.software import cuda_version, determinism, installed_packages, seeds
from toolkit.telemetry.logger.machine.start_look import StartLook, data_paths
from toolkit.telemetry.logger.session.start_record import with_room
from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.runfolder.codec import MAX_RECORD_BYTES
from toolkit.telemetry.runfolder.records import WELL_KNOWN_PACKAGES, well_known

PATIENCE_S = 100.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    for name in ("_LONGEST_S", "_LONGEST_WAIT_S"):
        monkeypatch.setattr(start_look, name, PATIENCE_S)


def test_all_installed_packages_are_found_well_known_ones_first(tmp_path, monkeypatch):
    for name in (
        "my_Package-1.2.dist-info",
        "old-0.3-py3.11.egg-info",
        "torch-2.6.0+cu124.dist-info",
        "x.dist-info",
    ):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "gone")])

    assert list(installed_packages().items()) == [
        ("torch", "2.6.0+cu124"),
        ("my-package", "1.2"),
        ("old", "0.3"),
    ]


def test_packages_are_passed_by_the_masking_and_a_secret_among_them_is_not():
    packages = {f"some-package-{number}": f"1.{number}.0rc1" for number in range(500)}

    assert mask_secrets({"packages": packages}) == {"packages": packages}
    assert mask_secrets({"packages": {"a": "hf_" + "a1B2c3D4e5" * 3}}) == {"packages": {"a": "***"}}


def test_where_a_record_has_no_room_the_well_known_packages_are_kept():
    packages = {**dict.fromkeys(WELL_KNOWN_PACKAGES, "1.0"), **{f"p{number}": "1.0" for number in range(500)}}
    large = {"config": "x" * (MAX_RECORD_BYTES - 12_000), "packages": packages}

    assert with_room({"config": {}, "packages": packages})["packages"] == packages
    assert with_room(large) == {**large, "packages": well_known(packages), "packages_left_out": 500}


def test_seeds_and_determinism_are_read_as_they_are_when_the_run_is_started(monkeypatch):
    state, torch_state = np.random.get_state(), torch.get_rng_state()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    try:
        torch.manual_seed(5)
        np.random.seed(1234)
        before = torch.get_rng_state()
        look = StartLook(None, {}, Guard()).result(PATIENCE_S)
        np.random.rand()

        assert torch.equal(torch.get_rng_state(), before)
        assert (look["seeds"]["torch"], look["seeds"]["numpy"]) == (5, 1234)
        assert look["determinism"]["cudnn_benchmark"] is True
        assert "data" not in look
        assert "numpy" not in seeds({})
    finally:
        np.random.set_state(state)
        torch.set_rng_state(torch_state)
    assert seeds({"PYTHONHASHSEED": "3"})["python_hash"] == "3"
    assert not torch.cuda.is_initialized()


def test_a_process_without_torch_has_its_variables_alone(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")

    assert determinism({"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HOME": "x"}) == {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8"
    }
    assert cuda_version() is None


def test_data_is_found_in_what_is_given_and_in_the_configuration():
    config = {
        "process": [{"datasets": [{"folder_path": "a"}, {"folder_path": "b"}], "data_files": ["c", "d"]}]
    }
    config["data_dir"] = "s3://bucket/e"

    assert data_paths(["z", "a"], config) == ["z", "a", "b", "c", "d"]
    assert data_paths({"name": "x"}, None) == data_paths([1], "x") == []


def test_a_changed_file_changes_the_hash_and_a_missing_folder_is_named(tmp_path):
    (tmp_path / "data" / "inner").mkdir(parents=True)
    (tmp_path / "data" / "1.txt").write_text("one")
    (tmp_path / "data" / "inner" / "2.txt").write_text("two!")
    paths = [str(tmp_path / "data"), str(tmp_path / "gone"), str(tmp_path / "data" / "1.txt")]

    first = StartLook(paths, None, Guard()).result(PATIENCE_S)["data"]
    (tmp_path / "data" / "1.txt").write_text("ONE")
    second = StartLook(paths, None, Guard()).result(PATIENCE_S)["data"]

    assert (first[0]["files"], first[0]["bytes"]) == (2, 7)
    assert first[0]["hash"] != second[0]["hash"]
    assert first[1] == {"path": paths[1], "problem": os.strerror(2)}
    assert (first[2]["files"], first[2]["bytes"]) == (1, 3)


def test_of_many_files_a_part_is_looked_at_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(start_look, "_MOST_FILES", 3)
    for number in range(5):
        (tmp_path / f"{number}").write_text("x")

    (data,) = StartLook([tmp_path], None, Guard()).result(PATIENCE_S)["data"]

    assert data["files"] == 3
    assert "hash" not in data
    assert data["looked_at"].startswith("a part")
