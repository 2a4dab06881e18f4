"""What is found below a folder, and what a run and its sessions are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.importers.reading import cold, only_run, points_in
from tests.importers.samples import fingerprint, names, ours
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.importers import detect
from toolkit.telemetry.importers.detect import FORMATS, find_sources
from toolkit.telemetry.importers.folders import Found
from toolkit.telemetry.importers.source import read_all
from toolkit.telemetry.importers.summary import summarise


def formats_in(path):
    return sorted({source.info.format for source in find_sources(path).runs})


def shown(path):
    return summarise(only_run(path), 0.0)


def test_one_folder_may_hold_every_format(tmp_path):
    for name in names(ours()):
        shutil.copytree(ours() / name, tmp_path / name.replace("/", "_"), symlinks=True)
    for name in ("torchtitan", "rollouts"):
        shutil.copytree(Path(__file__).with_name(name), tmp_path / name)
    (tmp_path / "version_0").mkdir()
    (tmp_path / "version_0" / "metrics.csv").write_text("epoch,step,train_loss\n0,9,0.5\n")
    before = fingerprint(tmp_path)

    found = find_sources(tmp_path)

    expected = {entry.name for entry in FORMATS} - {"aim", "ai-toolkit-fork", "text"}
    assert {source.info.format for source in found.runs} == expected
    assert found.notes == []
    assert len({source.info.source_id for source in found.runs}) == len(found.runs)
    # Two runs of Trackio are there as a database and as Parquet.
    assert (
        sum("the same run is also in trackio_" in " ".join(source.info.notes) for source in found.runs) == 2
    )
    assert fingerprint(tmp_path) == before


def test_links_are_not_followed(tmp_path):
    shutil.copytree(ours() / "neptune", tmp_path / "outside")
    (tmp_path / "root").mkdir()
    os.symlink(tmp_path / "outside", tmp_path / "root" / "link")

    assert find_sources(tmp_path / "root").runs == []


def test_a_folder_deeper_than_the_limit_is_not_entered(tmp_path):
    deep = tmp_path.joinpath(*"abcdefghij")
    deep.mkdir(parents=True)
    (deep / "metrics.csv").write_text("step,loss\n1,2\n")

    assert find_sources(tmp_path).runs == []
    assert formats_in(deep.parent) == ["table"]


def test_a_walk_that_takes_too_long_ends_with_a_note(tmp_path):
    found = find_sources(tmp_path, limit_s=-1)

    assert found.notes == [f"not all of {tmp_path} was looked at: that took too long; name a folder in it"]


def test_the_folder_of_the_fork_is_read_with_its_sessions(tmp_path):
    path = tmp_path / "greyjacket" / "metrics.jsonl"
    path.parent.mkdir()
    lines = []
    for start in (0, 5):
        lines.append({"event": "start", "time": 100.0 + start, "lora_rank": 16})
        for step in range(start, start + 10):
            loss = float("nan") if step == 7 else 1.0 / (step + 1)
            lines.append({"event": "step", "time": 100.0 + step, "global_step": step, "train_loss": loss})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path.parent / "metrics.csv").write_text("event,global_step,train_loss\nstep,1,1\n")

    run = shown(tmp_path)

    assert (run["format"], run["name"], run["config"]["lora_rank"]) == ("ai-toolkit-fork", "greyjacket", 16)
    assert run["metrics"]["train_loss"]["count"] == 20
    assert run["metrics"]["train_loss"]["nan"] == 2
    assert [(s["first_step"], s["last_step"], s["abandoned_from"]) for s in run["sessions"]] == [
        (0, 9, 5),
        (5, 14, None),
    ]


def test_states_of_a_resumed_training_are_one_run_with_two_sessions():
    run = shown(ours() / "hf_trainer_state" / "nan_and_resume_5_22")

    loss = run["metrics"]["loss"]
    # 10 rows to step 100, then 51 to 200 again: the first 50 steps are shared.
    assert (loss["count"], loss["steps_back"]) == (25, 1)
    assert [(s["first_step"], s["last_step"], s["abandoned_from"]) for s in run["sessions"]] == [
        (10, 100, 60),
        (60, 200, None),
    ]


def test_files_of_one_wandb_id_are_sessions_and_the_axis_is_kept():
    runs = {
        source.info.run_id: summarise(source, 0.0)
        for source in find_sources(ours() / "wandb" / "offline_0_31").runs
    }

    assert sorted(runs) == ["again", "first"]
    assert [piece["path"].split("/")[1] for piece in runs["again"]["pieces"]] == [
        "offline-run-20261116_032632-again",
        "offline-run-20261116_032633-again",
    ]
    assert [(s["first_step"], s["last_step"], s["abandoned_from"]) for s in runs["again"]["sessions"]] == [
        (0, 39, 0),
        (0, 29, None),
    ]
    assert runs["first"]["axes"] == {"eval/*": "trainer/global_step"}
    assert runs["first"]["status"]["state"] == "finished"
    assert runs["first"]["events"] == {
        "histogram": 5,
        "image": 5,
        "table": 5,
        "text": 5,
    }


def test_images_are_read_where_they_are_and_never_outside():
    source = next(s for s in find_sources(ours() / "wandb" / "offline_0_31").runs if s.info.run_id == "first")
    images = [event for batch in read_all(source) for event in batch.events if event.kind == "image"]
    tensorboard = find_sources(ours() / "tensorboard").runs[0]
    images_inside = [
        event for batch in read_all(tensorboard) for event in batch.events if event.kind == "image"
    ]

    assert {source.blob(event.blob)[:4] for event in images} == {b"\x89PNG"}
    assert {tensorboard.blob(event.blob)[:4] for event in images_inside} == {b"\x89PNG"}
    for path in ("../x", "/etc/passwd", "a/../../x", "latest-run/x"):
        with pytest.raises(OSError):
            source.blob(type(images[0].blob)(path=path))


def test_a_git_lfs_pointer_is_named(tmp_path, capsys):
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    (tmp_path / "events.out.tfevents.1581933911.host1").write_text(text)

    run = shown(tmp_path)

    assert run["metrics"] == {}
    assert "is a Git LFS pointer" in run["notes"][0]
    assert main(["ls", str(tmp_path)]) == 0
    assert "not read: 1 Git LFS pointers" in "".join(capsys.readouterr())


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_is_read_as_it_grows(delimiter, tmp_path):
    path = tmp_path / "results.csv"
    header = delimiter.join(["                  epoch", " train/box_loss", "note"])
    path.write_text(f"{header}\n" + delimiter.join(["0", " 0.5", '"two\nlines"']) + "\n1" + delimiter)
    source = only_run(tmp_path)
    first = source.read(None)
    with path.open("a") as file:
        file.write(delimiter.join(["nan", "x"]) + "\n")
    second = source.read(first.cursor)

    found = points_in([first, second])
    assert [(step, value) for step, _, value in found[0, 0, "train/box_loss"]] == [(0, "0.5"), (1, "nan")]
    assert found == cold(tmp_path)
    assert source.info.name == tmp_path.name
    with path.open("a") as file:
        file.write(delimiter.join(["2", "0.25", "no newline"]))
    assert len(cold(tmp_path)[0, 0, "train/box_loss"]) == 2, "the number may get more digits"
    os.utime(path, (1, 1))
    assert cold(tmp_path)[0, 0, "train/box_loss"][2][2] == "0.25"


def test_the_steps_of_dvclive_are_no_metric_and_a_metric_may_be_called_timestamp(tmp_path):
    for layout in ("dvclive/plots/metrics/train", "flat"):
        (tmp_path / layout).mkdir(parents=True)
        # As DVCLive writes them: the value has the place of the column.
        (tmp_path / layout / "step.tsv").write_text("step\n7\n9\n")
        (tmp_path / layout / "timestamp.tsv").write_text("step\ttimestamp\n0\t0.5\n")

    found = {source.info.name: points_in(read_all(source)) for source in find_sources(tmp_path).runs}
    for run, below in (("flat", ""), (tmp_path.name, "train/")):
        assert found[run] == {(0, 0, f"{below}timestamp"): [(0, "nan", "0.5")]}


def test_settings_in_the_folder_of_a_log_are_its_config(tmp_path):
    for name, log, settings in (
        ("lightning", "metrics.csv", "hparams.yaml"),
        ("yolo", "results.csv", "args.yaml"),
        ("tb", "events.out.tfevents.1700000000.host", "hparams.yaml"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / log).write_text("step,loss\n0,1\n" if log.endswith("csv") else "")
        (tmp_path / name / settings).write_text("lr: 0.1\noptim:\n  name: adamw\n")

    for source in find_sources(tmp_path).runs:
        config = {"lr": 0.1, "optim.name": "adamw"}
        source.read(None)
        assert source.info.config == config, source.info.name
        assert summarise(source, 0.0)["config"] == config
    assert len(find_sources(tmp_path).runs) == 3


def test_a_file_without_steps_is_read_only_if_it_is_named(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("a,b\n1,2\n3,4\n")

    assert find_sources(tmp_path).runs == []
    assert [step for step, _, _ in cold(path)[0, 0, "b"]] == [0, 1]


@pytest.mark.parametrize(
    ("line", "metric", "step", "value"),
    [
        ("12 train 10.934416", "train", 12, 10.934416),
        ("step:3/20 train_loss:6.25 lr=1e-4", "train_loss", 3, 6.25),
        ("Step 7 | loss: 0.5 | norm: nan", "loss", 7, 0.5),
        ("s:0 trl:10.9", "trl", 0, 10.9),
        ("step:10/9536 train_loss:7.5 train_time:168ms step_avg:nanms", "train_time", 10, 168.0),
        ("step 3 mfu=41.5% speed: 12.5tok/s", "mfu", 3, 41.5),
        ("{'loss': 1.5, 'learning_rate': 2e-05, 'epoch': 0.1}", "loss", 0, 1.5),
        (" 45%|####      | 9/20 [00:01<00:01, loss=0.25]", "loss", 9, 0.25),
    ],
)
def test_a_line_of_a_text_log(line, metric, step, value, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(f"starting\n{line}\n{line.replace(str(step), str(step + 1), 1)}\n")

    assert find_sources(tmp_path).runs == []
    batch = only_run(path).read(None)
    column = next(column for column in batch.columns if column.metric == metric)
    assert (column.steps[0], column.values[0]) == (step, value)
    assert batch.passed_over == {(0, "lines that match no rule"): 1}


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ("steps: 1000 batch_size: 32 lr: 0.1 seed: nan", "step {0} loss: 0.{0} lr: 0.1"),
        ("{{'batch_size': 32, 'lr': 0.1}}", "{{'loss': 0.{0}, 'lr': 0.1}}"),
    ],
)
def test_what_only_the_first_lines_of_a_text_log_have_is_a_setting_and_no_metric(settings, line, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(settings.format() + "\n")
    run = only_run(path)
    first = run.read(None)
    with path.open("a") as file:
        file.writelines(line.format(step) + "\n" for step in (1, 2, 3))
    found = points_in([first, run.read(first.cursor)])

    assert {metric for _, _, metric in found} == {"loss", "lr"}
    assert [value for _, _, value in found[0, 0, "loss"]] == ["0.1", "0.2", "0.3"]
    assert len(found[0, 0, "lr"]) == 4


def test_a_session_of_clearml_is_named_as_not_supported(tmp_path):
    (tmp_path / "offline-1").mkdir()
    (tmp_path / "offline-1" / "task.json").write_text("{}")
    (tmp_path / "offline-1" / "metrics.jsonl").write_text('[{"iter": 1, "metric": "loss", "value": 1}]\n')
    (tmp_path / "offline-1.zip").write_bytes(b"PK")

    for path in (tmp_path, tmp_path / "offline-1", tmp_path / "offline-1.zip"):
        found = find_sources(path)
        assert found.runs == []
        assert "an offline session of ClearML, which is not supported" in found.notes[0]


def test_formats_are_listed(capsys):
    assert main(["ls", "--formats", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["formats"]
    assert [entry["format"] for entry in listed] == [entry.name for entry in FORMATS]
    assert main(["ls", "--formats"]) == 0
    assert "TensorBoard event files (*tfevents*)" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["events.out.tfevents.1.host", "run-x.wandb", "metrics.csv", "loss_log.db"])
def test_a_file_that_is_mostly_a_hole_is_not_read_to_its_end(name, tmp_path):
    path = tmp_path / name
    starts = {
        "run-x.wandb": b":W&B" + bytes([0xE1, 0xBE, 0]),
        "metrics.csv": b"step,loss\n1,2\n",
        "loss_log.db": b"SQLite format 3\0",
    }
    path.write_bytes(starts.get(name, b""))
    try:
        os.truncate(path, 2**35)
    except OSError:
        pytest.skip("this file system has no large files with holes")

    batches = [batch for source in find_sources(tmp_path).runs for batch in read_all(source)]

    assert sum(batch.bytes_read for batch in batches) <= 200 * 1024**2


def test_versions_of_lightning_are_named_with_their_experiment(tmp_path):
    for name in ("a/lightning_logs/version_0", "b/csv/version_0", "plain"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.csv").write_text("step,loss\n0,1\n")

    assert {source.info.name for source in find_sources(tmp_path).runs} == {
        "a/version_0",
        "csv/version_0",
        "plain",
    }


def test_names_and_end_of_a_local_run_of_swanlab_need_no_database(tmp_path):
    shutil.copytree(ours() / "swanlab" / "local_current", tmp_path / "copy")
    with_names = {source.info.run_id: summarise(source, 0.0) for source in find_sources(tmp_path).runs}
    os.remove(tmp_path / "copy" / "swanlog" / "runs.swanlab")

    for source in find_sources(tmp_path).runs:
        run = summarise(source, 0.0)
        before = with_names[source.info.run_id]
        assert {key: run[key] for key in ("name", "status", "metrics")} == {
            key: before[key] for key in ("name", "status", "metrics")
        }
        assert not any(name.isdecimal() for name in run["metrics"])
        assert run["name"] != run["run_id"]


def test_a_repository_that_aim_up_never_opened_is_read_with_its_settings(tmp_path):
    pytest.importorskip("aim")
    program = """
import sys
from aim import Run
run = Run(repo=sys.argv[1], system_tracking_interval=None)
run.name, run["hparams"], run["seed"] = "first", {"lr": 0.1}, 3
for step in range(3):
    run.track(1 / (step + 1), name="loss", step=step)
run.close()
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True)

    run = shown(tmp_path)
    assert run["config"] == {"lr": 0.1, "seed": 3}
    assert run["metrics"]["loss"]["count"] == 3
    assert (run["name"], run["status"]["state"]) == ("first", "finished")


def test_a_folder_that_is_slow_to_look_at_hides_no_other(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text("step,loss\n0,1.0\n")
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

    def slow(folder):
        # Longer than all may take together.
        clock.now += 20.0 if folder.relative == "a" else 0.0
        return Found()

    monkeypatch.setattr(detect, "time", clock)
    monkeypatch.setattr(detect, "FORMATS", (detect.Format("slow", "", "", (slow,)), *FORMATS))

    assert len(find_sources(tmp_path, limit_s=10.0).runs) == 3
