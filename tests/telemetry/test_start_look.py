"""What a run says of its packages, seeds and data as it is started."""

import os
import sys
import threading
from collections import ChainMap

import numpy as np
import pytest
import torch

from tests.telemetry.logged import make_logger, records_of
from tests.waiting import wait_until
from toolkit.telemetry.core.background import Job
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine import environment, start_look
from toolkit.telemetry.logger.machine.software import cuda_version, determinism, installed_packages, seeds
from toolkit.telemetry.logger.machine.start_look import data_paths, look_at_start, settings
from toolkit.telemetry.logger.session.start_record import with_room
from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.runfolder.codec import MAX_RECORD_BYTES
from toolkit.telemetry.runfolder.records import WELL_KNOWN_PACKAGES, well_known

PATIENCE_S = 100.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    monkeypatch.setattr(start_look, "_LONGEST_S", PATIENCE_S)


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
        look = settings()
        np.random.rand()

        assert torch.equal(torch.get_rng_state(), before)
        assert (look["seeds"]["torch"], look["seeds"]["numpy"]) == (5, 1234)
        assert look["determinism"]["cudnn_benchmark"] is True
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
    files = {
        "corpus_file": "e",
        "vocab_file": "f",
        "output_dir": "out",
        "checkpoint_path": "g",
        "text_encoder": "h",
    }
    assert data_paths(None, files) == ["e", "f"]
    assert data_paths({"name": "x"}, None) == data_paths([1], "x") == []


def look_at(paths):
    look = look_at_start(data_paths(paths, None), Guard(), with_settings=False)
    assert look.is_done(PATIENCE_S)
    return look.result()["data"]


def test_a_changed_file_changes_the_hash_and_a_missing_folder_is_named(tmp_path):
    (tmp_path / "data" / "inner").mkdir(parents=True)
    (tmp_path / "data" / "1.txt").write_text("one")
    (tmp_path / "data" / "inner" / "2.txt").write_text("two!")
    paths = [str(tmp_path / "data"), str(tmp_path / "gone"), str(tmp_path / "data" / "1.txt")]

    first = look_at(paths)
    (tmp_path / "data" / "1.txt").write_text("ONE")
    second = look_at(paths)

    assert (first[0]["files"], first[0]["bytes"]) == (2, 7)
    assert first[0]["hash"] != second[0]["hash"]
    assert first[1] == {"path": paths[1], "problem": os.strerror(2)}
    assert (first[2]["files"], first[2]["bytes"]) == (1, 3)


def test_no_call_waits_for_a_look_at_the_machine(tmp_path, monkeypatch):
    ends, waits = threading.Event(), []
    join, start = Job.join, threading.Thread.start

    def count_start(thread):
        if threading.current_thread() is threading.main_thread():
            waits.append(thread.name)
        start(thread)

    def count(job, timeout_s):
        if threading.current_thread() is threading.main_thread() and timeout_s > 0.0:
            waits.append(job.name)
        return join(job, timeout_s)

    monkeypatch.setattr(start_look, "_describe", lambda *_: ends.wait(PATIENCE_S) and {"path": "data"})
    monkeypatch.setattr(environment, "_PARTS", {"host": lambda: ends.wait(PATIENCE_S) and "here"})
    with make_logger(tmp_path, log_every=1, config={"data_dir": "data"}) as log:
        monkeypatch.setattr(Job, "join", count)
        # To start a thread is to wait for it.
        monkeypatch.setattr(threading.Thread, "start", count_start)
        for step in range(100):
            log.log_step(step, train_loss=0.5)
            if step == 50:
                log.log_start(config={"data_dir": "data"})

        assert not waits
        monkeypatch.setattr(threading.Thread, "start", start)
        ends.set()
    records = records_of(log)
    assert records[0]["event"] == "start"
    assert [record["seq"] for record in records] == list(range(len(records)))
    described = dict(ChainMap(*records_of(log, "environment")))
    assert (described["data"], described["host"]) == ([{"path": "data"}], "here")


def test_a_disk_that_does_not_answer_does_not_hold_back_what_else_is_known(tmp_path, monkeypatch):
    ends = threading.Event()
    monkeypatch.setattr(start_look, "_LATEST_S", 0.0)
    monkeypatch.setattr(start_look, "_describe", lambda *_: ends.wait(PATIENCE_S))
    monkeypatch.setattr(environment, "_PARTS", {"host": lambda: "here"})
    with make_logger(tmp_path, config={"data_dir": "data"}) as log:
        log.log_step(0, train_loss=0.5)
        wait_until(lambda: records_of(log, "environment"))
        ends.set()
    start, described = records_of(log, "start")[0], records_of(log, "environment")[0]

    assert {**start, **described}["host"] == "here"
    assert described["data"] == [{"path": "data", "problem": "not looked at in time"}]


def test_of_many_files_a_part_is_looked_at_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(start_look, "_MOST_FILES", 3)
    for number in range(5):
        (tmp_path / f"{number}").write_text("x")

    (data,) = look_at([tmp_path])

    assert data["files"] == 3
    assert "hash" not in data
    assert data["looked_at"].startswith("a part")
