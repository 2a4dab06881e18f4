"""From the call in the loop to the reader and pandas: what was logged is what is found, at any time."""

import json
import math
import os
import random
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.crash_checks import with_rows
from tests.fork_server import run_python
from tests.lengths import longer
from tests.records import without_padding
from tests.waiting import wait_until
from toolkit.telemetry import MemorySink, TelemetryLogger
from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.journal.repair import repair_run
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.reader import Cursor, read_from
from toolkit.telemetry.runfolder.status import work_out_status
from toolkit.telemetry.runfolder.table.csv_table import build_table, table_form

pytestmark = pytest.mark.filterwarnings("ignore:The 'float_precision' argument is deprecated")


PATIENCE_S = 60.0
"""A machine that pauses for seconds still gets everything into the files."""


def table(folder):
    return pd.read_csv(folder / "metrics.csv", float_precision="round_trip", low_memory=False)


def records(folder):
    chunk = read_from(folder / "metrics.jsonl")
    assert chunk.bad_count == chunk.pending_bytes == 0
    return [with_non_finite(record) for record in chunk.records]


def rebuilt(folder):
    build_table(folder / "metrics.jsonl", folder / "again.csv", form=table_form(folder))
    data = without_padding(folder / "again.csv")
    (folder / "again.csv").unlink()
    return data


@pytest.fixture
def make(tmp_path):
    made = []

    def make(name="r", **options):
        usual = {"log_dir": tmp_path / "logs", "system": False, "close_timeout": PATIENCE_S}
        made.append(TelemetryLogger(name, **{**usual, **options}))
        return made[-1]

    yield make
    for log in made:
        log.close()


# ---------------------------------------------------------------- the same numbers everywhere


numbers = st.floats() | st.integers(-(2**53), 2**53) | st.floats(width=32).map(np.float32) | st.booleans()
metrics = st.dictionaries(
    st.sampled_from(["lr", "grad_norm", "a", "b/c", "acc,uracy", "=x"]), numbers, max_size=4
)


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.tuples(st.floats(), metrics), min_size=1, max_size=12))
def test_every_number_comes_back_exactly(tmp_path_factory, steps):
    log_dir, sink = tmp_path_factory.mktemp("logs"), MemorySink()
    with TelemetryLogger(
        "r",
        log_dir=log_dir,
        log_every=1,
        system=False,
        control=False,
        sinks=[sink],
        close_timeout=PATIENCE_S,
    ) as log:
        for step, (loss, more) in enumerate(steps):
            log.log_step(step, train_loss=loss, **more)
    found = [record for record in records(log.run_folder) if record["event"] == "step"]
    frame = table(log.run_folder)
    rows = frame[frame["event"] == "step"]

    assert len(found) == len(rows) == len(steps)
    assert [record["seq"] for record in sink.records] == [record["seq"] for record in records(log.run_folder)]
    for (loss, more), record, (_, row) in zip(steps, found, rows.iterrows(), strict=True):
        for name, given_number in {"train_loss": loss, **more}.items():
            given_number = given_number.item() if isinstance(given_number, np.float32) else given_number
            shown = row["'=x" if name == "=x" else name]
            shown = {"True": True, "False": False}.get(shown, shown)
            assert same(record[name], given_number)
            assert same(float(shown), float(given_number))
    assert without_padding(log.run_folder / "metrics.csv") == rebuilt(log.run_folder)


def same(found, given_number):
    return found == given_number or (math.isnan(found) and math.isnan(given_number))


def test_the_readme_way_with_pandas(make):
    with make(log_every=10) as log:
        log.log_start(training={"batch_size": 2})
        for step in range(101):
            log.log_step(step, train_loss=1 / (step + 1), lr=1e-4, grad_norm=torch.tensor(0.5))
        log.log_eval(100, val_loss=0.25)
    frame = pd.read_csv(log.run_folder / "metrics.csv")
    steps = frame[frame["event"] == "step"]

    assert steps["global_step"].tolist() == list(range(0, 101, 10))
    assert steps["grad_norm"].eq(0.5).all()
    assert frame["val_loss"].dropna().tolist() == [0.25]
    assert steps["train_loss"].iloc[-1] == 1 / 101
    assert steps["train_loss_mean"].iloc[-1] == pytest.approx(
        np.mean([1 / (step + 1) for step in range(91, 101)])
    )


def test_pandas_reads_the_jsonl_too(make):
    with make(log_every=1) as log:
        for step in range(20):
            log.log_step(step, train_loss=float("nan") if step == 7 else step / 7)
    frame = pd.read_json(log.run_folder / "metrics.jsonl", lines=True)
    steps = frame[frame["event"] == "step"]

    assert len(steps) == 20
    assert steps["train_loss"].isna().sum() == 1


# ---------------------------------------------------------------- while it runs


def test_a_flush_puts_everything_into_both_files(make):
    log = make(log_every=1, diagnostics=False)
    for step in range(30):
        log.log_step(step, train_loss=step / 3, **{f"metric/{step // 10}": 1.0})
        if step % 7 == 0:
            log.flush(PATIENCE_S)

            assert table(log.run_folder)["global_step"].max() == step
            # The machine may have been described meanwhile, in a record of its own.
            steps = [record for record in records(log.run_folder) if record["event"] == "step"]
            assert steps[-1]["global_step"] == step


def test_a_reader_that_follows_a_live_run_misses_nothing(make):
    log = make(log_every=1)
    cursor, found = Cursor(), []
    rng = random.Random(1)
    for step in range(3000):
        log.log_step(step, train_loss=rng.random(), text="é" * rng.randint(0, 50))
        if step == 0:
            # From now on there is a file to be read.
            log.flush(PATIENCE_S)
        if step % 50 == 0:
            chunk = read_from(log.run_folder / "metrics.jsonl", cursor)
            found += chunk.records
            cursor = chunk.cursor
    log.close()
    found += read_from(log.run_folder / "metrics.jsonl", cursor).records

    assert [record["seq"] for record in found] == list(range(len(found)))
    assert [record["global_step"] for record in found if record["event"] == "step"] == list(range(3000))


@pytest.mark.slow
def test_pandas_reads_the_table_of_a_live_run_at_any_time(tmp_path):
    script = """
        import os, random, sys, time
        from toolkit.telemetry import TelemetryLogger
        log = TelemetryLogger("r", log_dir=sys.argv[1], log_every=1, system=False, close_timeout=60.0)
        rng, step, until = random.Random(2), 0, time.monotonic() + float(sys.argv[3])
        log.log_start(config={"deep": [{"k": "v, " * 50}] * 20})
        while time.monotonic() < until or not os.path.exists(sys.argv[2]):
            more = {f"new/{step}": 1.5} if rng.random() < 0.002 else {}
            if rng.random() < 0.05:
                more["note"] = 'a "quoted", text ' * rng.choice([1, 10, 100])
            log.log_step(step, train_loss=1 / (step + 3), lr=1e-4 / 3, **more)
            step += 1
            time.sleep(0.0002)
        log.close()
        print(step)
    """
    enough = tmp_path / "enough"
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, (tmp_path, enough, longer(1.0, 3.0)))]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    path, reads, newest = tmp_path / "r" / "metrics.csv", 0, -1
    try:
        wait_until(path.exists, writer)
        while writer.poll() is None:
            frame = pd.read_csv(path, float_precision="round_trip", low_memory=False)
            steps = frame[frame["event"] == "step"].dropna(subset="global_step")
            reads += 1
            if reads > 5:
                enough.touch()

            assert (steps["train_loss"] == 1 / (steps["global_step"] + 3)).all()
            assert frame["seq"].dropna().is_monotonic_increasing
            if len(steps):
                assert steps["global_step"].max() >= newest
                newest = steps["global_step"].max()
    finally:
        writer.kill()
        logged = int(writer.communicate()[0].split()[-1])
    print(f"{reads} reads while {logged} steps were logged")

    assert reads > 5
    assert len(table(tmp_path / "r").query("event == 'step'")) == logged
    assert without_padding(path) == rebuilt(tmp_path / "r")


def test_threads_may_log_together(make):
    log = make(log_every=1)

    def work(name):
        for number in range(300):
            log.log_event("work", thread=name, number=number)
            log.log_step(number, train_loss=0.5, thread=name)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    found = records(log.run_folder)

    assert [record["seq"] for record in found] == list(range(len(found)))
    for name in range(4):
        numbers_of = [
            record["number"] for record in found if record["event"] == "work" and record["thread"] == name
        ]
        assert numbers_of == list(range(300))
    assert len(table(log.run_folder)) == len(with_rows(log.run_folder, found))


# ---------------------------------------------------------------- killed, moved, resumed


KILLED = """
    import os, signal, sys
    from toolkit.telemetry import TelemetryLogger
    log = TelemetryLogger("r", log_dir=sys.argv[1], log_every=1, system=False, resume=True, flush_interval=60)
    for step in range(int(sys.argv[2]), int(sys.argv[3])):
        log.log_step(step, train_loss=1 / (step + 1))
    print("acknowledged", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run_and_kill(log_dir, first, behind):
    done = run_python(
        ["-c", textwrap.dedent(KILLED), str(log_dir), str(first), str(behind)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("acknowledged\n"), done.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs a signal that kills")
def test_a_run_that_is_killed_twice_and_resumed_twice_is_whole(tmp_path, make):
    run_and_kill(tmp_path / "logs", 0, 40)
    run_and_kill(tmp_path / "logs", 40, 80)
    with make(log_every=1, resume=True) as log:
        for step in range(80, 100):
            log.log_step(step, train_loss=1 / (step + 1))
    found = records(log.run_folder)
    frame = table(log.run_folder)

    assert os.listdir(tmp_path / "logs") == ["r"]
    assert [record["global_step"] for record in found if record["event"] == "step"] == list(range(100))
    assert [record["seq"] for record in found] == list(range(len(found)))
    assert sorted({record["session"] for record in found}) == [1, 2, 3]
    assert [session.status for session in read_manifest(log.run_folder).sessions] == [
        "lost",
        "lost",
        "finished",
    ]
    assert frame["seq"].tolist() == [record["seq"] for record in with_rows(log.run_folder, found)]
    assert without_padding(log.run_folder / "metrics.csv") == rebuilt(log.run_folder)


@pytest.mark.skipif(os.name != "posix", reason="needs a signal that kills")
def test_a_run_that_was_killed_is_known_as_lost_and_made_whole_by_repair(tmp_path):
    run_and_kill(tmp_path, 0, 40)
    folder = tmp_path / "r"

    assert work_out_status(read_manifest(folder), time.time()).name == "lost"

    repair_run(folder)

    assert [record["global_step"] for record in records(folder) if record["event"] == "step"] == list(
        range(40)
    )
    assert table(folder)["train_loss"].dropna().tolist() == [1 / (step + 1) for step in range(40)]


def test_a_folder_that_was_copied_elsewhere_opens_there(make, tmp_path):
    with make(log_every=1) as log:
        log.log_step(1, train_loss=0.5)
    shutil.copytree(log.run_folder, tmp_path / "copy")

    assert records(tmp_path / "copy") == records(log.run_folder)
    assert len(table(tmp_path / "copy")) == 3


def test_a_table_that_someone_deleted_or_edited_is_rebuilt(make):
    log = make(log_every=1)
    for step in range(10):
        log.log_step(step, train_loss=step / 3)
    log.flush(PATIENCE_S)
    (log.run_folder / "metrics.csv").unlink()
    log.log_step(10, train_loss=10 / 3)
    log.flush(PATIENCE_S)

    assert table(log.run_folder)["global_step"].dropna().tolist() == list(range(11))

    with (log.run_folder / "metrics.csv").open("ab") as file:
        file.write(b"scribbled")
    log.log_step(11, train_loss=11 / 3)
    log.close()

    assert without_padding(log.run_folder / "metrics.csv") == rebuilt(log.run_folder)


# ---------------------------------------------------------------- the folder


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize(
    ("umask", "share", "folder_mode", "file_mode"),
    [
        (0o000, False, 0o700, 0o600),
        (0o022, False, 0o700, 0o600),
        (0o077, False, 0o700, 0o600),
        (0o000, True, 0o755, 0o644),
        (0o022, True, 0o755, 0o644),
        (0o077, True, 0o700, 0o600),
    ],
)
def test_files_are_private_unless_shared_and_never_wider_than_the_umask_allows(
    make, umask, share, folder_mode, file_mode
):
    before = os.umask(umask)
    try:
        with make(share=share, log_every=1) as log:
            for step in range(5):
                log.log_step(step, train_loss=0.5, **{f"new/{step}": 1})
                log.flush(PATIENCE_S)
    finally:
        os.umask(before)

    assert stat.S_IMODE(log.run_folder.stat().st_mode) == folder_mode
    for name in ("metrics.jsonl", "metrics.csv", "run.json"):
        assert stat.S_IMODE((log.run_folder / name).stat().st_mode) == file_mode, name


def test_a_finished_folder_holds_what_the_contract_names_and_no_more(make):
    with make(log_every=1) as log:
        log.log_step(1, train_loss=0.5)

    printed = ["output.log", "output.times"]
    assert sorted(os.listdir(log.run_folder)) == ["metrics.csv", "metrics.jsonl", *printed, "run.json"]


def test_the_manifest_needs_no_library_to_be_read(make):
    with make("my run", log_every=1, project="p", tags=["t"]) as log:
        log.log_step(3, train_loss=0.5)
    found = json.loads((log.run_folder / "run.json").read_text())

    assert (found["format"], found["run_id"], found["name"]) == (1, log.run_id, "my-run")
    assert (found["display_name"], found["project"], found["tags"]) == ("my run", "p", ["t"])
    assert (found["status"], found["pid"]) == ("finished", os.getpid())
    assert {"host", "boot_id", "sessions", "heartbeat", "control", "summary", "created"} <= found.keys()
