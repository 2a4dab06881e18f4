"""`telemetry import` makes run folders that have every point of the source, once."""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
import subprocess
import sys
import time

import orjson
import pytest

from tests.exchange.commands import files_in, only_import, telemetry
from tests.importers import samples
from tests.lengths import in_make_faults
from tests.records import read_records
from toolkit.cli.main import main
from toolkit.exchange.imported_folder import PENDING, STATE, ImportedFolder
from toolkit.importers.detect import find_sources
from toolkit.runfolder.journal.repair import build_table
from toolkit.runfolder.layout import METRICS_CSV, METRICS_JSONL
from toolkit.runfolder.manifest import read_manifest
from toolkit.runfolder.metrics import NOT_METRICS

FEW = (
    "tensorboard/tensorboardx_2_6_everything",
    "wandb/offline_0_31",
    "hf_trainer_state/nan_and_resume_5_22",
)


def sources_of(root, name):
    if not name.startswith("text_logs/"):
        return [root / name]
    return [*(root / name / run["file"] for run in samples.expected(root, name)["runs"]), "--format", "text"]


def import_sample(capsys, root, name, log_dir):
    """Import a sample, look at what came out, and import it again."""
    before = samples.fingerprint(root / name)
    arguments = sources_of(root, name)
    shown = [
        run
        for source in arguments
        if source not in ("--format", "text")
        for run in telemetry(
            capsys, "show", source, *arguments[len(arguments) - 2 :][: 2 * ("text" in arguments)]
        )["runs"]
    ]
    done = telemetry(capsys, "import", *arguments, "--to", log_dir, "--deleted")
    assert {run["source_id"] for run in done["runs"]} == {run["source_id"] for run in shown}
    by_id = {run["source_id"]: run for run in shown}
    series = sum(compare(capsys, by_id[run["source_id"]], run) for run in done["runs"])
    written = files_in(log_dir)
    again = telemetry(capsys, "import", *arguments, "--to", log_dir, "--deleted")
    assert {run["state"] for run in again["runs"]} <= {"unchanged"}
    assert files_in(log_dir) == written
    assert samples.fingerprint(root / name) == before
    return series


def compare(capsys, source, imported):
    """Assert that an imported run has the series of its source; return how many."""
    records = read_records(samples.Path(imported["folder"]), of_any_type=True)
    assert [record["seq"] for record in records] == list(range(len(records)))
    (ours,) = telemetry(capsys, "show", imported["folder"])["runs"]
    found = {**ours["metrics"], **ours["system"]}
    theirs = {**source["metrics"], **source["system"]}
    for name, series in theirs.items():
        if name in NOT_METRICS:
            continue
        same = found.get(name) or found.get(f"epoch/{name}") or found[f"x_{name}"]
        for part in ("count", "min", "max", "nan", "inf", "neg_inf"):
            assert same[part] == series[part], name
        for part in ("first", "last"):
            assert same[part]["step"] == series[part]["step"], name
            assert same[part]["value"] == series[part]["value"], name
            times = [end[part].get("time", math.nan) for end in (same, series)]
            assert math.isclose(*times, abs_tol=0.001, rel_tol=0) or all(map(math.isnan, times)), name
    return len(theirs)


@pytest.mark.parametrize("name", FEW)
def test_a_sample_is_imported_whole_and_once(name, tmp_path, capsys):
    assert import_sample(capsys, samples.ours(), name, tmp_path)


def test_images_tables_and_histograms_come_along(tmp_path, capsys):
    source = samples.ours() / "wandb" / "offline_0_31"
    runs = telemetry(capsys, "import", source, "--to", tmp_path)["runs"]
    folder = samples.Path(next(run["folder"] for run in runs if run["name"] == "again"))
    samples_of_run = read_records(folder, "sample", of_any_type=True)
    assert all((folder / record["path"]).read_bytes().startswith(b"\x89PNG") for record in samples_of_run)
    tables = read_records(folder, "table", of_any_type=True)
    assert [record["columns"] for record in tables] == [["a", "b"]] * len(tables)
    assert (folder / tables[0]["path"]).read_text().startswith("a,b\n")
    histogram = read_records(folder, "histogram", of_any_type=True)[0]
    assert len(histogram["bins"]) == len(histogram["values"]) + 1
    assert samples_of_run


@in_make_faults
@pytest.mark.parametrize("name", samples.names(samples.ours()))
def test_every_sample_is_imported_whole_and_once(name, tmp_path, capsys):
    assert import_sample(capsys, samples.ours(), name, tmp_path)


@in_make_faults
@pytest.mark.skipif(
    not samples.OTHERS.is_dir(), reason="needs ../shared/foreign, logs from public repositories"
)
@pytest.mark.parametrize("name", samples.names(samples.OTHERS))
def test_logs_from_public_repositories_are_imported_whole_and_once(name, tmp_path, capsys):
    if name.startswith("aim/"):
        pytest.importorskip("aim")
    import_sample(capsys, samples.OTHERS, name, tmp_path)


def write_rows(path, steps, *, value=lambda step: step / 7, mode="a"):
    with path.open(mode) as file:
        file.writelines(json.dumps({"step": step, "loss": value(step), "lr": 0.1}) + "\n" for step in steps)


def losses(folder):
    return [
        (r["session"], r["global_step"], r.get("loss"))
        for r in read_records(folder, "step", of_any_type=True)
    ]


@pytest.fixture
def table(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    path = folder / "train.jsonl"
    write_rows(path, range(50))
    return path


def test_a_source_that_grew_adds_what_is_new(table, tmp_path, capsys):
    logs = tmp_path / "logs"
    first = only_import(capsys, table, logs)
    assert (first["state"], first["points"]) == ("new", 100)
    write_rows(table, range(50, 60))
    second = only_import(capsys, table, logs)
    assert (second["state"], second["points"], second["folder"]) == ("continued", 20, first["folder"])
    folder = logs / "train"
    assert losses(folder) == [(1, step, step / 7) for step in range(60)]
    # pages, doctor, repair: an ordinary run folder
    assert build_table(folder / METRICS_JSONL, tmp_path / "again.csv", form="short")[1] == 0
    assert (tmp_path / "again.csv").read_bytes() == (folder / METRICS_CSV).read_bytes()
    assert main(["repair", str(folder)]) == 0
    assert main(["doctor", str(folder)]) in (0, 1)
    manifest = read_manifest(folder)
    assert manifest.heartbeat.global_step == 59
    assert manifest.other["imported_from"]["format"] == "table"
    assert str(tmp_path) not in (folder / "run.json").read_text()


def test_an_import_that_was_killed_at_any_byte_of_a_batch_is_completed(table, tmp_path, capsys):
    logs = tmp_path / "logs"
    folder = logs / "train"
    only_import(capsys, table, logs)
    before = files_in(folder)
    write_rows(table, range(50, 60))
    only_import(capsys, table, logs)
    after = files_in(folder)
    data = after[METRICS_JSONL][len(before[METRICS_JSONL]) :]
    head = {"base": len(before[METRICS_JSONL]), "size": len(data), "state": orjson.loads(after[STATE])}
    pending = orjson.dumps(head) + b"\n" + data
    states = [(cut, before[STATE]) for cut in (0, 1, 70, len(data) - 1, len(data))] + [
        (len(data), after[STATE])
    ]
    for cut, state in states:
        shutil.rmtree(folder)
        folder.mkdir()
        cut_off = {
            **before,
            METRICS_JSONL: before[METRICS_JSONL] + data[:cut],
            STATE: state,
            PENDING: pending,
        }
        for name, content in cut_off.items():
            (folder / name).write_bytes(content)
        only_import(capsys, table, logs)
        assert files_in(folder) == after


def test_a_lost_state_is_found_again_from_the_records(table, tmp_path, capsys):
    logs = tmp_path / "logs"
    only_import(capsys, table, logs)
    (logs / "train" / STATE).write_bytes(b"{")
    write_rows(table, range(50, 53))
    assert only_import(capsys, table, logs)["points"] == 6
    assert losses(logs / "train") == [(1, step, step / 7) for step in range(53)]


def test_a_source_that_was_rewritten_gets_a_new_folder_if_asked(table, tmp_path, capsys):
    logs = tmp_path / "logs"
    only_import(capsys, table, logs)
    kept = files_in(logs / "train")
    write_rows(table, range(50), value=lambda step: step / 3, mode="w")
    refused = only_import(capsys, table, logs, code=2)
    assert (refused["state"], refused["records"]) == ("replaced", 0)
    assert "--again" in refused["reason"]
    again = only_import(capsys, table, logs, "--again")
    assert (again["state"], again["folder"]) == ("new", str(logs / "train-2"))
    write_rows(table, range(50, 51))
    assert only_import(capsys, table, logs)["folder"] == str(logs / "train-2")
    assert files_in(logs / "train") == kept


def test_a_source_that_is_rewritten_whole_adds_only_new_points(tmp_path, capsys):
    source = tmp_path / "out"
    source.mkdir()

    def save(steps):
        history = [{"step": step, "loss": step / 3, "epoch": step / 10} for step in range(1, steps)]
        (source / "trainer_state.json").write_text(json.dumps({"log_history": history, "global_step": steps}))

    save(10)
    assert only_import(capsys, source, tmp_path / "logs")["state"] == "new"
    save(14)
    found = only_import(capsys, source, tmp_path / "logs")
    assert (found["state"], found["records"]) == ("continued", 4)
    assert [row[1] for row in losses(samples.Path(found["folder"]))] == list(range(1, 14))


def test_a_dry_run_writes_nothing(table, tmp_path, capsys):
    logs = tmp_path / "logs"
    assert only_import(capsys, table, logs, "--dry-run")["points"] == 100
    assert not logs.exists()
    only_import(capsys, table, logs)
    before = files_in(logs)
    write_rows(table, range(50, 51))
    assert only_import(capsys, table, logs, "--dry-run")["points"] == 2
    assert files_in(logs) == before


def test_two_imports_do_not_write_one_folder(table, tmp_path, capsys):
    logs = tmp_path / "logs"
    only_import(capsys, table, logs)
    with ImportedFolder(logs / "train"):
        refused = only_import(capsys, table, logs, code=2)
    assert "another process" in refused["reason"]


def test_what_cannot_be_imported_is_said(tmp_path, capsys):
    assert main(["import", str(tmp_path / "nothing")]) == 2
    (tmp_path / "empty").mkdir()
    assert main(["import", str(tmp_path / "empty"), "--to", str(tmp_path / "logs")]) == 2
    assert "no run of another tool" in capsys.readouterr().err


def test_names_of_ours_and_secrets_are_kept_apart(tmp_path, capsys):
    source = tmp_path / "mlruns" / "0"
    run = source / ("a" * 32)
    for name in ("metrics", "params", "tags"):
        (run / name).mkdir(parents=True)
    (source / "meta.yaml").write_text("experiment_id: '0'\nartifact_location: x\nname: Default\n")
    (run / "meta.yaml").write_text(
        f"run_id: {'a' * 32}\nrun_uuid: {'a' * 32}\nexperiment_id: '0'\nstatus: 3\nstart_time: 1\n"
    )
    (run / "metrics" / "time").write_text("1700000000000 5 0\n1700000000000 nan 1\n")
    (run / "params" / "api_key").write_text("sk-verysecret0123456789verysecret")
    found = only_import(capsys, tmp_path / "mlruns", tmp_path / "logs", "--follow", "--quiet", "5")
    folder = samples.Path(found["folder"])
    records = read_records(folder, of_any_type=True)
    assert [r["event"] for r in records] == ["start", "step", "step", "end"]
    assert records[1]["x_time"] == 5
    assert records[2]["non_finite"] == {"x_time": "NaN"}
    assert b"verysecret" not in b"".join(files_in(tmp_path / "logs").values())


@in_make_faults
def test_an_import_that_follows_a_live_log_and_is_killed_often_has_every_point_once(tmp_path, capsys):
    pytest.importorskip("tensorboardX")
    source, logs = tmp_path / "runs", tmp_path / "logs"
    steps = 3_000
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(source), str(steps)])
    chance = random.Random(5)
    kills = 0
    try:
        while writer.poll() is None or kills < 50:
            if not source.exists():
                time.sleep(0.01)
                continue
            command = [sys.executable, "-m", "toolkit.cli", "import", str(source), "--to", str(logs)]
            child = subprocess.Popen([*command, "--follow", "--interval", "0.01"], stdout=subprocess.DEVNULL)
            time.sleep(0.3 + chance.random())
            child.send_signal(signal.SIGKILL)
            child.wait()
            kills += 1
    finally:
        writer.kill()
        writer.wait()
    only_import(capsys, source, logs)
    (folder,) = (path for path in logs.iterdir() if not path.name.startswith("."))
    for metric in ("loss", "lr"):
        rows = [r for r in read_records(folder, "step", of_any_type=True) if metric in r]
        assert [row["global_step"] for row in rows] == list(range(steps))
    assert build_table(folder / METRICS_JSONL, tmp_path / "again.csv", form="short")[1] == 0
    assert (tmp_path / "again.csv").read_bytes() == (folder / METRICS_CSV).read_bytes()
    assert find_sources(source).runs
    assert not list(logs.glob(".importing*"))


_WRITER = """
import sys, time
from tensorboardX import SummaryWriter
writer = SummaryWriter(sys.argv[1], flush_secs=1)
for step in range(int(sys.argv[2])):
    writer.add_scalar("loss", step / 7, step)
    writer.add_scalar("lr", 0.1, step)
    if step % 20 == 0:
        writer.flush()
    time.sleep(0.01)
writer.close()
"""
