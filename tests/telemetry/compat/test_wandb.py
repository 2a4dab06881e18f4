"""Scripts written for W&B, run through our door, and through W&B itself where the two can be compared."""

from __future__ import annotations

import argparse
import copy
import csv
import inspect
import io
import json
import math
import multiprocessing
import pickle
import textwrap
import threading
from copy import deepcopy
from pathlib import Path

import pytest

import toolkit.telemetry.compat.wandb as wandb
from tests.lengths import in_make_faults
from tests.mirrors.exporters.test_wandb import config as config_kept_by_wandb
from tests.mirrors.exporters.test_wandb import kept_by_wandb, rows
from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S, run_program

# The import is the only line in which a script for W&B differs.
OUR_IMPORT = "import toolkit.telemetry.compat.wandb as wandb"
PROGRAMS = Path(__file__).with_name("programs")
SCRIPT = PROGRAMS / "typical_wandb_script.py"


def run_script(folder, line, script=SCRIPT, **environment):
    assert OUR_IMPORT in script.read_text()
    text = script.read_text().replace(OUR_IMPORT, line)
    return run_program(folder, "-c", text, **environment)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same script through the real W&B, offline, and through ours: what each of them kept."""
    theirs, ours = tmp_path_factory.mktemp("theirs"), tmp_path_factory.mktemp("ours")
    finished = run_script(theirs, "import wandb", WANDB_MODE="offline", WANDB_SILENT="true")
    mine = run_script(ours, OUR_IMPORT)
    assert mine.stdout.splitlines()[-1] == finished.stdout.splitlines()[-1] == "STEP 43"
    # It watches itself: the script logs a NaN.
    assert [line.split(" from")[0] for line in mine.stderr.splitlines()] == [
        "[telemetry] warning: after is NaN or infinite"
    ]
    return kept_by_wandb(theirs), ours / "logs/typical"


def by_step(kept):
    merged = {}
    for step, values in kept:
        merged.setdefault(step, {}).update(values)
    return merged


@in_make_faults
def test_a_typical_script_leaves_the_values_that_wandb_keeps(both):
    messages, folder = both
    theirs = by_step(
        (row["_step"], {name.replace("optim.lr", "optim/lr"): value for name, value in row.items()})
        for row in rows(messages)
    )
    ours = by_step(
        (record["global_step"], record) for record in read_records(folder / "metrics.jsonl", "step")
    )
    names = {"train/loss", "optim/lr", "epoch", "val/loss", "val/acc", "late", "later", "latest"}

    def chosen(kept):
        return {
            step: found
            for step, row in kept.items()
            if (found := {name: value for name, value in row.items() if name in names})
        }

    assert chosen(ours) == chosen(theirs)
    assert len(chosen(ours)) == 3 * (4 + 1) + 1
    assert math.isnan(theirs[41]["after"])
    assert ours[41]["after"] is None
    assert ours[41]["non_finite"] == {"after": "NaN"}


def test_a_typical_script_leaves_the_summary_that_wandb_keeps(both):
    messages, folder = both
    theirs = {}
    for message in messages:
        if message.WhichOneof("record_type") == "summary":
            for item in message.summary.update:
                theirs["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    (ours,) = read_records(folder / "metrics.jsonl", "summary")

    for name in ("train/loss", "epoch", "late", "best"):
        assert ours[name] == theirs[name]
    values = [row for row in rows(messages) if "val/loss" in row]
    assert ours["val/loss/min"] == min(row["val/loss"] for row in values)
    assert ours["val/acc/max"] == max(row["val/acc"] for row in values)


def test_a_typical_script_records_its_configuration_and_description(both):
    messages, folder = both
    # On a slow machine a record of another thread may come first, with a start record of what was known by then.
    *_, start = read_records(folder / "metrics.jsonl", "start")
    manifest = json.loads((folder / "run.json").read_text())
    kept = config_kept_by_wandb(messages)

    assert start["config"] == {"lr": 0.1, "epochs": 3, "batch_size": 4}
    assert start["config"] == {name: kept[name] for name in start["config"]}
    assert start["learning_rate"] == 0.1
    assert (start["group"], start["job_type"], start["notes"]) == ("g1", "train", "a typical script")
    assert (manifest["project"], manifest["tags"]) == ("greyjacket", ["baseline"])
    assert manifest["sessions"][0]["status"] == "finished"


def test_a_typical_script_leaves_its_table_histograms_and_alert(both):
    _, folder = both
    (table,) = read_records(folder / "metrics.jsonl", "table")
    histograms = read_records(folder / "metrics.jsonl", "histogram")
    (alert,) = read_records(folder / "metrics.jsonl", "alert")
    with (folder / table["path"]).open(newline="") as file:
        _, *rows = csv.reader(file)

    assert (table["name"], table["rows"], table["columns"]) == ("predictions", 3, ["epoch", "guess", "truth"])
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert [(histogram["name"], sum(histogram["values"])) for histogram in histograms] == [("weights", 3)] * 3
    assert len(histograms[0]["bins"]) == len(histograms[0]["values"]) + 1
    assert (alert["title"], alert["text"], alert["level"]) == ("Low accuracy", "it is low", "WARN")


# Each line that it prints is one that W&B itself prints.
ASKING = PROGRAMS / "ask_wandb.py"


@in_make_faults
@pytest.mark.timeout(500)
def test_a_script_is_answered_what_wandb_answers(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    real()
    theirs = run_script(
        tmp_path / "theirs", "import wandb", ASKING, WANDB_MODE="offline", WANDB_SILENT="true"
    )
    ours = run_script(tmp_path / "ours", OUR_IMPORT, ASKING)
    lines = [line for line in ours.stdout.splitlines() if not line.startswith("[telemetry]")]

    assert lines == theirs.stdout.splitlines()
    assert "Traceback" not in ours.stderr
    # The child ended without `finish`, and not as scripts end.
    child = but_for_the_machine(read_records(tmp_path / "ours/logs/child/metrics.jsonl"))
    assert [record["event"] for record in child] == ["start", "step", "summary", "end"]


# The rest is about our door alone.


def but_for_the_machine(records):
    """Return the records without those about the machine, which come with time: a run may take half a second."""
    return [record for record in records if record["event"] not in ("environment", "system")]


def records(run, event=None):
    run.telemetry.flush(PATIENCE_S)
    return read_records(run.telemetry.run_folder / "metrics.jsonl", event)


def real():
    return pytest.importorskip("wandb")


@pytest.mark.parametrize(
    "name",
    [
        *("init", "finish", "log", "define_metric", "alert"),
        *("teardown", "Table", "Image", "Histogram"),
        *("Audio", "Html", "Video"),
        *("Run.log", "Run.finish", "Run.define_metric", "Run.alert"),
        "Table.add_data",
        *("Config.update", "Config.setdefaults", "Config.get"),
    ],
)
def test_whatever_wandb_takes_is_taken_here_too(name):
    def parameters(module):
        found = module
        for part in name.split("."):
            found = getattr(found, part)
        return [parameter for parameter in inspect.signature(found).parameters if parameter != "self"]

    theirs, ours = parameters(real()), parameters(wandb)

    if name == "Config.get":  # theirs takes anything
        theirs = ["key", "default"]
    assert [parameter for parameter in ours if parameter in theirs] == theirs


def test_the_run_has_what_a_run_of_wandbs_has(begin, caplog):
    run = begin()
    theirs = [name for name, kind in vars(real().Run).items() if isinstance(kind, property)]
    for name in theirs:
        if not name.startswith("_"):
            getattr(run, name)

    here = threading.get_ident()
    said = {record.getMessage().split()[1] for record in caplog.records if record.thread == here}
    assert said == {
        *("run.config_static", "run.project_url", "run.settings"),
        *("run.sweep_id", "run.sweep_url", "run.sync_dir"),
    }


def test_steps_are_counted_as_wandb_counts_them(begin):
    run = begin()
    seen = [run.step]
    for data, given in (
        ({"a": 1}, {}),
        ({"a": 2}, {"commit": False}),
        ({"b": 3}, {}),
        ({"c": 4}, {"step": 5}),
        ({"d": 5}, {"step": 5}),
        ({"e": 6}, {}),
        ({"f": 7}, {"step": 10, "commit": True}),
        ({"g": 8}, {"step": 3}),
        ({"h": 9}, {"step": 20, "commit": False}),
    ):
        run.log(data, **given)
        seen.append(run.step)
    wandb.finish()
    steps = read_records(run.telemetry.run_folder / "metrics.jsonl", "step")

    assert seen == [0, 1, 1, 2, 5, 5, 6, 11, 11, 20]
    assert [
        (step["global_step"], {name: step[name] for name in "abcdefgh" if name in step}) for step in steps
    ] == [
        *((0, {"a": 1}), (1, {"a": 2, "b": 3}), (5, {"c": 4}), (5, {"d": 5}), (5, {"e": 6}), (10, {"f": 7})),
        (20, {"h": 9}),
    ]


def test_a_metric_that_is_the_step_of_all_others_becomes_the_runs_step(begin):
    run = begin()
    wandb.define_metric("train/global_step")
    wandb.define_metric("*", step_metric="train/global_step", step_sync=True)
    wandb.log({"loss": 1.0, "train/global_step": 100})
    wandb.log({"loss": 0.5, "train/global_step": 200})
    wandb.log({"eval/loss": 0.7})

    assert [step["global_step"] for step in records(run, "step")] == [100, 200, 200]
    assert run.step == 3


def test_a_step_metric_that_is_no_whole_number_is_not_the_runs_step(begin, caplog):
    run = begin()
    wandb.define_metric("*", step_metric="epoch")
    for epoch in (math.nan, 0, 0.5, 1.0, 1.5):
        wandb.log({"loss": 1.0, "epoch": epoch})

    assert [step["global_step"] for step in records(run, "step")] == [0, 0, 2, 3, 4]
    assert run.guard.total == 0
    assert caplog.text.count("step_metric='epoch') has no effect here: 0.5") == 1


def test_what_a_script_calls_its_run_later_changes_nothing_and_that_is_said(begin, caplog):
    run = begin()
    run.name = "better"
    run.tags += ("late",)
    wandb.config.lr = 0.1
    wandb.log({"loss": 1.0})
    kept = but_for_the_machine(records(run))

    assert [record["event"] for record in kept] == ["start", "step"]
    assert (kept[0]["config"], run.name, run.tags) == ({"lr": 0.1}, "better", ("late",))
    assert "run.name = … changes nothing in the run folder" in caplog.text


def test_a_value_named_like_a_field_of_ours_is_kept_under_another_name(begin):
    run = begin()
    wandb.log({"global_step": 70, "event": "x", "time": 3.0, "self": 4.0, 5: 6.0})
    (step,) = records(run, "step")

    assert step["global_step"] == 0
    assert (step["x_global_step"], step["x_event"], step["x_time"]) == (70, "x", 3.0)
    assert (step["self"], step["5"]) == (4.0, 6.0)


def test_tensors_and_arrays_are_values(begin):
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    run = begin()
    weight = torch.ones(1, requires_grad=True)
    wandb.log({"loss": (weight * 0.5).sum(), "acc": numpy.float32(0.25), "n": numpy.int64(3)})
    (step,) = records(run, "step")

    assert (step["loss"], step["acc"], step["n"]) == (0.5, 0.25, 3)
    assert run.summary["loss"] == 0.5
    assert dict(run.summary) == {"loss": 0.5, "acc": 0.25, "n": 3}


def test_images_and_figures_become_samples(begin, tmp_path):
    numpy, pil = pytest.importorskip("numpy"), pytest.importorskip("PIL.Image")
    (tmp_path / "red.jpg").write_bytes(b"a picture")

    class Figure:
        def savefig(self, buffer, **given):
            buffer.write(b"drawn as " + given["format"].encode())

    class Axes:
        figure = Figure()

    Axes.__module__ = "matplotlib.axes"
    run = begin()
    wandb.log(
        {
            "path": wandb.Image(tmp_path / "red.jpg", caption="a path"),
            "many": [
                wandb.Image(numpy.full((3, 4), 0.5)),
                wandb.Image(numpy.zeros((3, 4, 4), dtype="uint8")),
            ],
            "chart": Figure(),
            "axes": wandb.Image(Axes(), file_type="jpg"),
            "loss": 1.0,
        },
        step=7,
    )
    samples = {(sample["name"], sample["index"]): sample for sample in records(run, "sample")}
    kept = {key: (run.telemetry.run_folder / sample["path"]).read_bytes() for key, sample in samples.items()}

    assert {sample["global_step"] for sample in samples.values()} == {7}
    assert (samples["path", 0]["prompt"], samples["many", 0]["prompt"]) == ("a path", "many")
    assert kept["path", 0] == b"a picture"
    grey, clear = (pil.open(io.BytesIO(kept["many", index])) for index in (0, 1))
    assert (grey.mode, grey.size, grey.getpixel((0, 0))) == ("L", (4, 3), 128)
    assert (clear.mode, clear.getpixel((0, 0))) == ("RGBA", (0, 0, 0, 0))
    assert (kept["chart", 0], kept["axes", 0]) == (b"drawn as png", b"drawn as jpg")
    assert records(run, "step")[0]["loss"] == 1.0


def test_many_values_are_a_histogram_and_a_frame_is_a_table(begin):
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    pandas = pytest.importorskip("pandas")
    run = begin()
    weights = torch.linspace(0, 1, 100, requires_grad=True)
    wandb.log({"array": numpy.array([math.nan, *range(99)]), "weights": weights, "few": numpy.arange(3)})
    wandb.log({"frame": pandas.DataFrame({"a": [1, 2]})})
    histograms = records(run, "histogram")

    assert [(kept["name"], sum(kept["values"]), len(kept["values"])) for kept in histograms] == [
        ("array", 99, 32),
        ("weights", 100, 32),
    ]
    assert [step["few"] for step in records(run, "step")] == [[0, 1, 2]]
    assert [(table["name"], table["columns"], table["rows"]) for table in records(run, "table")] == [
        ("frame", ["a"], 2)
    ]


def test_a_table_may_hold_images_and_come_from_a_data_frame(begin):
    pandas, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    run = begin()
    table = wandb.Table(columns=["image", "label"], data=[[wandb.Image(numpy.zeros((2, 2))), "cat"]])
    frame = wandb.Table(dataframe=pandas.DataFrame({"a": [1, 2], "b": [0.5, math.nan]}))
    wandb.log({"seen": table, "frame": frame})
    folder = run.telemetry.run_folder
    seen, kept = records(run, "table")

    assert (folder / pandas.read_csv(folder / seen["path"])["image"][0]).exists()
    assert (folder / kept["path"]).read_text().splitlines() == ["a,b", "1.0,0.5", "2.0,nan"]


def test_summaries_are_the_last_lowest_highest_first_or_mean(begin):
    run = begin()
    wandb.define_metric("loss", summary="min,last")
    wandb.define_metric("acc/*", summary="max")
    wandb.define_metric("seen", summary="none")
    wandb.define_metric("mean", summary="mean,first")
    for value in (2.0, 1.0, math.nan, 3.0):
        wandb.log({"loss": value, "acc/top1": value, "seen": value, "mean": value, "plain": value})

    assert wandb.summary["loss"] == {"min": 1.0, "last": 3.0}
    assert wandb.summary["acc/top1"] == {"max": 3.0}
    assert wandb.summary["mean"] == {"mean": 2.0, "first": 2.0}
    assert wandb.summary.plain == 3.0
    assert "seen" not in wandb.summary
    run.summary.update({"best": 0.1})
    run.summary.done = True
    run.finish()
    (summary,) = read_records(run.telemetry.run_folder / "metrics.jsonl", "summary")
    assert (summary["loss/min"], summary["best"], summary["done"]) == (1.0, 0.1, True)


def test_the_configuration_is_read_and_changed_by_item_and_attribute(begin):
    run = begin(config=argparse.Namespace(lr=0.1))
    wandb.config.seed = 7
    wandb.config["nested"] = {"a": 1}
    wandb.config.setdefaults({"lr": 5, "batch_size": 8})
    wandb.config.update({"api_key": "hf_" + "a1B2c3D4e5" * 3}, allow_val_change=True)

    assert (run.config.lr, run.config["seed"], run.config.get("missing", 3)) == (0.1, 7, 3)
    assert not hasattr(wandb.config, "missing")
    wandb.log({"loss": 1.0})
    wandb.config.lr = 0.01
    (start,) = records(run, "start")
    (change,) = records(run, "config_change")
    assert start["config"] == {"lr": 0.1, "seed": 7, "nested": {"a": 1}, "batch_size": 8, "api_key": "***"}
    assert change["changed/lr"] == 0.01
    # A step of W&B's need not be one of the optimizer's, so no samples a second are made up from it.
    assert "batch_size" not in start


def test_a_run_resumes_by_its_id_at_its_last_step(begin):
    first = begin(id="abc123")
    for loss in (3.0, 2.0, 1.0):
        wandb.log({"loss": loss})
    wandb.finish()
    second = begin(id="abc123", resume="must")
    wandb.log({"loss": 0.5})

    assert (first.id, first.resumed, second.id, second.resumed) == ("abc123", False, "abc123", True)
    assert second.telemetry.run_folder == first.telemetry.run_folder
    assert (second.starting_step, second.step) == (3, 4)
    assert [step["global_step"] for step in records(second, "step")] == [0, 1, 2, 3]
    assert records(second, "start")[-1]["resumed_from_step"] == 2


def test_without_an_id_only_an_unfinished_run_is_resumed(begin):
    def folder_of(resume, exit_code):
        run = begin(resume=resume)
        wandb.log({"loss": 1.0})
        wandb.finish(exit_code)
        return run.telemetry.run_folder.name

    assert [folder_of("allow", 0), folder_of("allow", 0)] == ["r", "r-2"]
    assert [folder_of("auto", 1), folder_of("auto", 0), folder_of(True, 0)] == ["r-3", "r-3", "r-4"]


def test_a_second_init_returns_the_first_run_unless_reinit(begin):
    first = begin()
    assert begin(name="other") is first
    other = begin(name="other-2", reinit="create_new")
    assert wandb.run is first
    second = begin(name="second", reinit=True)

    assert wandb.run is second is not first
    assert not first.telemetry.is_live
    assert other.telemetry.is_live
    other.finish()


def test_settings_and_variables_say_what_the_call_does_not(tmp_path, begin, monkeypatch):
    monkeypatch.setenv("WANDB_NAME", "from-the-variable")
    monkeypatch.setenv("WANDB_TAGS", "a,b")
    run = begin(name=None, settings=wandb.Settings(run_group="g", mode="offline", anything=1))

    assert (run.name, run.tags, run.group) == ("from-the-variable", ("a", "b"), "g")
    assert run.url == (tmp_path / "logs/from-the-variable").as_uri()


@pytest.mark.parametrize("how", ["mode", "WANDB_MODE", "WANDB_DISABLED", "telemetry"])
def test_a_run_that_is_switched_off_writes_nothing(tmp_path, begin, monkeypatch, how):
    given = {}
    if how == "mode":
        given["mode"] = "disabled"
    elif how == "telemetry":
        given["telemetry"] = {"enabled": False}
    else:
        monkeypatch.setenv(how, "disabled" if how == "WANDB_MODE" else "true")
    run = begin(**given)
    wandb.log({"loss": 1.0, "image": wandb.Image(tmp_path / "missing.png")})
    wandb.config.lr = 0.1
    wandb.alert("a", "b")
    Path(run.dir, "model.pt").write_bytes(b"x")
    wandb.finish()

    assert run.config.lr == 0.1
    assert list(tmp_path.iterdir()) == []
    assert not Path(run.dir).is_relative_to(tmp_path)


def test_an_alert_of_the_same_title_waits(begin):
    run = begin()
    run.alert("low", "first", level="error", wait_duration=60)
    run.alert("low", "second", wait_duration=60)
    run.alert("high", "third")

    assert [(alert["text"], alert["level"]) for alert in records(run, "alert")] == [
        ("first", "ERROR"),
        ("third", "INFO"),
    ]


def test_what_is_not_supported_warns_once_and_never_raises(begin, caplog):
    run = begin()
    for _ in range(2):
        wandb.log({"shape": wandb.Object3D("shape.obj"), "loss": 1.0}, commit=False)
        wandb.log({"shapes": [wandb.Object3D("shape.obj"), wandb.Molecule("shape.pdb")]})
        run.link_artifact(None, "registry")
        artifact = wandb.Artifact("model", type="model")
        artifact.add_file("model.pt")
        assert not run.log_artifact(artifact, aliases=["best"]).wait().version
        assert not wandb.log_model("model.pt")
        assert not wandb.save("*.pt")
        wandb.log({"chart": wandb.plot.line(wandb.Table(columns=["x"]), "x", "y")})
        wandb.watch(object(), log="all")
        wandb.unwatch()
        wandb.init(monitor_gym=True, sync_tensorboard=True)
        with wandb.Api() as api:
            assert list(api.runs("a/b")) == []
        assert not isinstance(3, wandb.Object3D)
        run.name = "other"

    said = [record.getMessage() for record in caplog.records]
    for name in (
        *("wandb.Object3D", "wandb.Molecule", "run.link_artifact", "wandb.Api", "wandb.watch"),
        *("wandb.Artifact", "run.log_artifact", "wandb.log_model", "wandb.save", "wandb.plot"),
    ):
        assert sum(name + " is" in text for text in said) == 1, name
    for name in ("monitor_gym", "sync_tensorboard"):
        assert sum(f"wandb.init({name}=…) is not supported" in text for text in said) == 1
    assert [step["loss"] for step in records(run, "step")] == [1.0, 1.0]
    assert not {"shape", "shapes"} & set(records(run, "step")[0])


def test_null_objects_support_comparison_arithmetic_inheritance_and_hints(begin, caplog):
    class Callback(wandb.keras.WandbCallback):
        def on_epoch_end(self):
            return "called"

    best = wandb.Api().run("a/b/c").summary["acc"]
    hint = wandb.anything.Table | None
    called = []
    wandb.agent(wandb.sweep({"method": "grid"}), function=lambda: called.append(1))

    assert Callback(save_model=False).on_epoch_end() == "called"
    assert [best < 0.5, best >= 3, bool(1 + best * 2)] == [False, False, False]
    assert (math.isnan(float(best)), int(best), f"{best:.3f}") == (True, 0, "<not supported here>")
    assert not isinstance(3, hint)
    assert not called
    assert "wandb.agent is not supported here" in caplog.text


@pytest.mark.parametrize("name", ["CommError", "UsageError", "AuthenticationError", "SomethingNew"])
def test_an_exception_of_the_scripts_own_passes_by_those_of_wandbs(name):
    def script():
        try:
            raise ValueError("mine")
        except getattr(wandb.errors, name):
            pass

    with pytest.raises(ValueError, match="mine"):
        script()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_of_the_configuration_or_the_summary_is_values_alone(begin, copied):
    run = begin(config={"layers": [1, 2]})
    wandb.log({"loss": 1.0})
    config, summary = copied(wandb.config), copied(wandb.summary)
    config.lr = summary["loss"] = 0.5

    assert (config.layers, config.lr) == ([1, 2], 0.5)
    assert (dict(run.config), dict(run.summary)) == ({"layers": [1, 2]}, {"loss": 1.0})
    assert records(run, "config_change") == []


def test_what_cannot_be_saved_warns_once(begin, caplog):
    run = begin()
    child = multiprocessing.get_context("fork").Process(target=_log_in_a_child, args=(run,))
    child.start()
    child.join(60)
    wandb.finish()
    run.log({"late": 1.0})
    run.log({"later": 1.0})

    assert child.exitcode == 0
    assert records(run, "end")[0]["records_lost"] == 1
    assert caplog.text.count("run.log() of a run that is finished does nothing") == 1
    assert read_records(run.telemetry.run_folder / "metrics.jsonl", "step") == []


def _log_in_a_child(run):
    run.log({"loss": 1.0})
    run.define_metric("loss", summary="min")
    run.finish()


def test_a_forked_process_may_begin_a_run_of_its_own(begin):
    run = begin()
    child = multiprocessing.get_context("fork").Process(target=_begin_in_a_child, args=(begin,))
    child.start()
    child.join(60)
    kept = read_records(run.telemetry.run_folder.with_name("of-the-child") / "metrics.jsonl")

    assert child.exitcode == 0
    assert [record["loss"] for record in kept if record["event"] == "step"] == [1.0, 2.0]
    assert [record["loss"] for record in kept if record["event"] == "summary"] == [2.0]
    assert kept[-1]["status"] == "finished"
    assert run.telemetry.is_live


def _begin_in_a_child(begin):
    run = begin(name="of-the-child")
    assert run is wandb.run
    wandb.log({"loss": 1.0})
    wandb.log({"loss": 2.0}, commit=False)


def test_calls_without_a_run_do_nothing(begin, caplog):
    wandb.log({"loss": 1.0})
    wandb.alert("a", "b")
    wandb.define_metric("loss")
    wandb.finish()

    assert wandb.run is None
    assert "wandb.log() without a run" in caplog.text


def test_values_that_make_no_sense_do_not_reach_the_script(begin, caplog):
    numpy = pytest.importorskip("numpy")
    run = begin(config="config.yaml")
    run.log("no dictionary")
    run.log({"loss": object(), "image": wandb.Image(numpy.zeros((2, 2, 7))), "none": None}, step="x")
    run.log({"table": wandb.Table(columns=["a"], data=5), "h": wandb.Histogram("abc"), "fine": 1.0})
    run.define_metric("loss", summary="median")
    run.alert("t", "x", wait_duration="soon")

    assert records(run, "step")[-1]["fine"] == 1.0
    assert run.guard.total > 0


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("boom"), "failed"), (KeyboardInterrupt(), "stopped"), (SystemExit(0), "finished")],
)
def test_an_exception_ends_the_run_and_is_raised(begin, error, status):
    def train():
        with begin():
            wandb.log({"a": 1}, commit=False)
            raise error

    run = begin()
    with pytest.raises(type(error)) as caught:
        train()

    kept = read_records(run.telemetry.run_folder / "metrics.jsonl")
    assert caught.value is error
    assert kept[-1]["status"] == status
    assert [record["a"] for record in kept if record["event"] == "step"] == [1]
    assert wandb.run is None


def test_a_run_that_is_sent_to_another_process_writes_nothing_there(begin):
    run = begin(config={"lr": 0.1})
    copy = pickle.loads(pickle.dumps(run))
    copy.log({"loss": 1.0})

    assert not copy
    assert deepcopy(run) is run
    assert records(run, "step") == []


UNFINISHED = """
    import sys
    import toolkit.telemetry.compat.wandb as wandb

    wandb.init(name="left", telemetry={"system": False, "close_timeout": 60.0})
    wandb.log({"loss": 2.0})
    wandb.log({"loss": 1.0}, commit=False)
    if "raise" in sys.argv:
        raise ValueError("boom")
"""


@pytest.mark.parametrize(("how", "status"), [("end", "finished"), ("raise", "failed")])
def test_a_script_that_forgets_to_finish_loses_nothing(tmp_path, how, status):
    run_program(tmp_path, "-c", textwrap.dedent(UNFINISHED), how, may_fail=True)
    kept = read_records(tmp_path / "logs/left/metrics.jsonl")

    assert [record["loss"] for record in kept if record["event"] == "step"] == [2.0, 1.0]
    assert [record["loss"] for record in kept if record["event"] == "summary"] == [1.0]
    assert kept[-1]["status"] == status


def test_the_compat_module_imports_nothing_heavy(tmp_path):
    heavy = ("numpy", "torch", "wandb", "PIL", "yaml")
    probe = f"import sys, toolkit.telemetry.compat.wandb; print([*filter(sys.modules.get, {heavy})])"

    assert run_program(tmp_path, "-c", probe).stdout.strip() == "[]"
