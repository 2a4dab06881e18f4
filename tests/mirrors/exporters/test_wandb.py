"""W&B for real, offline: what it kept is read back with its own message definitions."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from tests.lengths import in_make_faults
from tests.waiting import wait_until
from toolkit.telemetry.mirrors.shared.span_filter import SpanFilter
from toolkit.telemetry.mirrors.wandb import exporter as client_module
from toolkit.telemetry.mirrors.wandb.exporter import WandbError, WandbExporter

if importlib.util.find_spec("wandb") is None:
    pytest.skip("W&B is not installed", allow_module_level=True)

SECRET = "hf_" + "a1B2c3D4e5" * 3
PATIENCE_S = 150.0
START = {"event": "start", "time": 1_700_000_000.0, "seq": 0, "session": 1, "run_name": "greyjacket"}


def step(seq, loss=0.5, **fields):
    record = {"event": "step", "time": 1_700_000_000.5 + seq, "seq": seq, "session": 1}
    return {**record, "global_step": seq * 10, "train_loss": loss, **fields}


def span(name, seq, duration, **fields):
    record = {"event": "span", "time": 1_700_001_000.5 + seq, "seq": seq, "session": 1, "id": f"{seq:016x}"}
    return {**record, "name": name, "start": 1_700_001_000.0, "duration": duration, **fields}


def happened(span_name, seq, **attributes):
    record = {"event": "span_event", "time": 1_700_001_000.5 + seq, "seq": seq, "session": 1}
    return {**record, "span_id": "a", "span": span_name, "name": "update", "attributes": attributes}


def kept_by_wandb(folder: Path):
    """Return the messages in the one `.wandb` file under `folder`.

    The file is a header of 7 bytes, then blocks of 32 KiB of pieces: checksum, length, kind (1 whole, 2 first,
    3 middle, 4 last), data.
    """
    # Here, because it takes seconds in every worker that only collects this file.
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.rglob("*.wandb")
    data = file.read_bytes()
    found, parts, at = [], b"", 7
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if kind == 0 or at + 7 + length > len(data):
            # Nothing more, or a piece that is still being written.
            break
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            found.append(Record.FromString(parts))
            parts = b""
    return found


def rows(records):
    return [
        {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]


def config(records):
    found = {}
    for record in records:
        if record.WhichOneof("record_type") in ("config", "run"):
            updates = record.config.update or record.run.config.update
            for item in updates:
                found[".".join(item.nested_key) or item.key] = json.loads(item.value_json)
    return found


@pytest.fixture(autouse=True)
def _without_login(monkeypatch, tmp_path):
    for variable in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / ".netrc"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """One real run, with what changed in this process while it was made."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        for variable in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(variable)
        patch.setenv("HOME", str(folder / "home"))
        patch.setattr(client_module, "FINISH_TIMEOUT_S", PATIENCE_S)
        before = _state()
        exporter = WandbExporter(
            folder,
            "my/project",
            "greyjacket: first",
            "abc-123",
            "offline",
            span_filter=SpanFilter(except_=["model_forward"]),
        )
        threads = set(threading.enumerate())

        def export():
            exporter.write(
                [
                    {**START, "config": {"hf_token": "abc", "lr": 1e-4, "note": SECRET, "deep": {"a": [1]}}},
                    {**START, "event": "environment", "host": "here"},
                ]
            )
            exporter.write([step(i, loss=1 / i) for i in range(1, 1201)])
            exporter.write(
                [
                    step(1201, loss=None, nan_inf_detected=True, non_finite={"train_loss": "NaN"}),
                    step(1202, loss=None, nan_inf_detected=True, non_finite={"train_loss": "Infinity"}),
                    {
                        "event": "eval",
                        "time": 1_700_002_000.0,
                        "seq": 1203,
                        "global_step": 50,
                        "val_loss": 0.7,
                    },
                    span("validation_loop", seq=1204, duration=1.25, global_step=60),
                    span("forward", seq=1205, duration=0.5),
                    happened(
                        "validation_loop", seq=1206, loss=0.75, deep={"n": 2}, is_best=True, note=SECRET
                    ),
                    happened("forward", seq=1207, loss=0.1),
                    {"event": "error", "time": 1_700_002_001.0, "seq": 1208, "message": SECRET},
                    {"event": "end", "time": 1_700_002_002.0, "seq": 1209, "status": "finished"},
                ]
            )
            exporter.close()

        # As the mirror does it: on a thread of its own.
        thread = threading.Thread(target=export)
        thread.start()
        thread.join(PATIENCE_S)
        after = _state()
        # Those of earlier tests may end meanwhile.
        assert set(threading.enumerate()) <= threads
    return folder, before, after


def _state():
    return {
        "excepthook": sys.excepthook,
        "exit": sys.exit,
        "environment": dict(os.environ),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "import hooks": list(sys.meta_path),
    }


def test_every_row_is_there_with_its_step_and_its_time(exported):
    found = rows(kept_by_wandb(exported[0]))

    assert [row["_step"] for row in found[:1203]] == list(range(1, 1204))
    assert [row["global_step"] for row in found[:3]] == [10, 20, 30]
    assert found[1]["train_loss"] == 0.5
    assert found[1]["_timestamp"] == 1_700_000_002.5
    assert found[1202]["eval/val_loss"] == 0.7


def test_spans_and_events_are_there_with_their_numbers_and_none_that_are_filtered(exported):
    duration, event = [
        {name: value for name, value in row.items() if not name.startswith("_r")}
        for row in rows(kept_by_wandb(exported[0]))[1203:]
    ]

    assert duration == {
        "span/validation_loop/duration_s": 1.25,
        "global_step": 60,
        "_step": 1204,
        "_timestamp": 1_700_002_204.5,
    }
    assert event == {
        "event/update/loss": 0.75,
        "event/update/deep.n": 2.0,
        "global_step": 60,
        "_step": 1206,
        "_timestamp": 1_700_002_206.5,
    }


def test_the_configuration_is_sent_masked(exported):
    found = config(kept_by_wandb(exported[0]))

    assert found["config"] == {"hf_token": "***", "lr": 1e-4, "note": "***", "deep": {"a": [1]}}
    assert found["host"] == "here"


def test_curves_are_drawn_over_the_global_step(exported):
    metrics = [
        record.metric for record in kept_by_wandb(exported[0]) if record.WhichOneof("record_type") == "metric"
    ]

    assert any(metric.glob_name == "*" and metric.step_metric == "global_step" for metric in metrics)


def test_the_run_keeps_its_name_and_id_and_ends_well(exported):
    records = kept_by_wandb(exported[0])
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    (end,) = [record.exit for record in records if record.WhichOneof("record_type") == "exit"]

    assert (run.run_id, run.display_name, run.project) == ("abc-123", "greyjacket: first", "my-project")
    assert end.exit_code == 0


def test_wandb_learns_nothing_that_it_was_not_given(exported):
    folder = exported[0]
    kept = b"".join(file.read_bytes() for file in folder.rglob("*.wandb"))
    files = {file.name for file in folder.rglob("*") if file.is_file()}

    for private in (os.uname().nodename, sys.executable, os.getcwd(), "hf_a1B2"):
        # A machine may have a name of two letters; those are in any file.
        assert len(private) < 6 or private.encode() not in kept
    assert not files & {"requirements.txt", "wandb-metadata.json", "output.log", "config.yaml", "diff.patch"}


def test_the_training_process_is_left_as_it_was(exported):
    _, before, after = exported

    assert after == before


def test_everything_stays_in_the_run_folder_and_with_its_owner(exported):
    folder = exported[0]
    made = list((folder / "wandb").rglob("*"))

    assert not (folder / "home").exists()
    assert made
    assert all(stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0 for path in made if not path.is_symlink())


@in_make_faults
def test_a_killed_training_loses_nothing_that_wandb_was_given(tmp_path):
    script = f"""
        import os, signal
        from pathlib import Path
        from toolkit.telemetry.mirrors.wandb.exporter import WandbExporter

        exporter = WandbExporter(Path({str(tmp_path)!r}), "p", "n", "killed", "offline")
        exporter.write([{step(1)!r}, {step(2)!r}])
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, timeout=PATIENCE_S)
    wait_until(lambda: any(record.HasField("exit") for record in kept_by_wandb(tmp_path)))
    records = kept_by_wandb(tmp_path)

    assert done.returncode == -signal.SIGKILL
    assert len(rows(records)) == 2
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [1]


@in_make_faults
def test_without_a_key_the_run_is_kept_offline_and_this_is_reported(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(client_module, "FINISH_TIMEOUT_S", PATIENCE_S)
    exporter = WandbExporter(tmp_path, "p", "n", "no-key")
    exporter.write([step(1)])
    exporter.write([{"event": "end", "time": 1.0, "seq": 2, "status": "failed"}])
    exporter.close()

    records = kept_by_wandb(tmp_path)
    assert "no API key" in caplog.text
    assert "wandb sync" in caplog.text
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [1]


def test_a_disabled_mirror_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(client_module, "subprocess", None)
    WandbExporter(tmp_path, "p", "n", "i", "disabled").write([step(1)])
    monkeypatch.setenv("WANDB_MODE", "disabled")
    by_variable = WandbExporter(tmp_path, "p", "n", "i")
    by_variable.write([step(1)])
    by_variable.close()

    assert list(tmp_path.iterdir()) == []


def test_a_missing_wandb_is_reported_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(client_module.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ModuleNotFoundError, match="pip install"):
        WandbExporter(tmp_path, "p", "n", "i", "offline").write([step(1)])


@pytest.fixture
def pretender(tmp_path, monkeypatch):
    """Put another program in the place of W&B's process."""

    def pretend(body):
        script = tmp_path / "pretender.py"
        script.write_text("import json, sys, time\n" + textwrap.dedent(body))
        monkeypatch.setattr(client_module, "_SCRIPT", script)

    return pretend


def test_a_process_that_dies_says_why_and_is_started_again(tmp_path, pretender):
    pretender("sys.stdin.readline(); sys.exit('CommError: quota exceeded')")
    exporter = WandbExporter(tmp_path, "p", "n", "i", "offline")

    for _ in range(2):
        with pytest.raises(WandbError, match="CommError: quota exceeded"):
            exporter.write([step(1)])
    exporter.close()


def test_a_process_that_dies_between_two_batches_is_noticed(tmp_path, pretender):
    pretender(
        """
        sys.stdin.readline(), sys.stdin.readline(); print("{}", flush=True)
        sys.stdin.readline(); print("{}", flush=True)
        sys.exit("gone")
        """
    )
    exporter = WandbExporter(tmp_path, "p", "n", "i", "offline")
    exporter.write([step(1)])
    time.sleep(0.2)

    with pytest.raises(WandbError, match="gone"):
        exporter.write([step(2)])


def test_a_process_that_does_not_finish_is_left_to_itself(tmp_path, pretender, monkeypatch):
    monkeypatch.setattr(client_module, "FINISH_TIMEOUT_S", 0.1)
    pretender(
        """
        while line := sys.stdin.readline():
            if "path" not in line:
                print("{}", flush=True)
            if "finish" in line:
                time.sleep(100)
        """
    )
    exporter = WandbExporter(tmp_path, "p", "n", "i", "offline")
    exporter.write([step(1)])
    process = exporter._client._process

    began = time.monotonic()
    exporter.close()
    took = time.monotonic() - began
    is_left = process.poll() is None
    process.kill()
    process.wait()

    assert took < 30
    assert is_left
