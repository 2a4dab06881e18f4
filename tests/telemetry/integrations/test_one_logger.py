"""Jobs that use the real OneLogger: what its own file exporter writes is compared with what is in the run folder."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.fork_server import A_RUN, run_python, start_python
from tests.records import read_records

pytest.importorskip("nv_one_logger.training_telemetry.api.callbacks")

ONE_LOGGER = (
    *A_RUN,
    "nv_one_logger.exporter.file_exporter",
    "nv_one_logger.training_telemetry.api.training_telemetry_provider",
)

PROLOGUE = """
    import sys, time
    from pathlib import Path
    from nv_one_logger.api.config import OneLoggerConfig
    from nv_one_logger.api.timed_span import get_recorder, timed_span
    from nv_one_logger.core.attributes import Attributes
    from nv_one_logger.core.event import Event
    from nv_one_logger.exporter.file_exporter import FileExporter
    from nv_one_logger.recorder.default_recorder import ExportCustomizationMode
    from nv_one_logger.training_telemetry.api import callbacks, context
    from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig
    from nv_one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider
    from strenum import StrEnum

    class Mine(StrEnum):
        ENCODE = "encode"

    quiet = {"system": False, "csv": False, "control": False, "close_timeout": 60.0}
    training = TrainingTelemetryConfig(
        perf_tag_or_fn=["vit", "h100"],
        global_batch_size_or_fn=8,
        log_every_n_train_iterations=3,
        flops_per_sample_or_fn=100,
        is_log_throughput_enabled_or_fn=True,
        train_iterations_target_or_fn=9,
        train_samples_target_or_fn=72,
    )
    config = OneLoggerConfig(
        application_name="greyjacket", world_size_or_fn=1, session_tag_or_fn="night 7", telemetry_config=training
    )
    provider = TrainingTelemetryProvider.instance().with_base_config(config)
"""

# Callbacks, which cannot nest, with OneLogger's default filter; the exporter made from its configuration file.
BY_CALLBACKS = """
    provider.with_exporter(FileExporter(Path("theirs.jsonl"))).with_export_config()
    provider.configure_provider()
    began = time.time() * 1000
    callbacks.on_app_start(start_time_msec=began - 5000)
    callbacks.on_distributed_init_start(start_time_msec=began - 4000)
    callbacks.on_distributed_init_end(finish_time_msec=began - 3000)
    callbacks.on_model_init_start()
    callbacks.on_model_init_end()
    callbacks.on_train_start(train_iterations_start=0)
    for step in range(6):
        callbacks.on_training_single_iteration_start()
        if step == 1:
            # Its parent is a span that OneLogger does not export.
            with timed_span(Mine.ENCODE, Attributes({"images": 4})):
                pass
        callbacks.on_training_single_iteration_end()
    callbacks.on_save_checkpoint_start(global_step=5)
    callbacks.on_save_checkpoint_success(global_step=5)
    callbacks.on_save_checkpoint_end()
    callbacks.on_validation_start()
    callbacks.on_validation_end()
    callbacks.on_train_end()
    get_recorder().telemetry_data_error("something is missing")
    callbacks.on_app_end()
"""

# Context managers, with every span exported into the logger that the script has anyway, and a job that fails.
BY_CONTEXTS = """
    from toolkit.telemetry import TelemetryLogger
    from toolkit.telemetry.integrations.one_logger import RunFolderExporter

    log = TelemetryLogger("own", log_dir="logs", spans="all", log_every=1, **quiet)
    provider.with_exporter(FileExporter(Path("theirs.jsonl"))).with_exporter(RunFolderExporter(log, log_steps=False))
    provider.with_export_customization(ExportCustomizationMode.BLACKLIST_SPANS, ["nothing"])
    provider.configure_provider()
    Names = sys.modules["nv_one_logger.training_telemetry.api.spans"].StandardTrainingJobSpanName
    try:
        with context.application():
            with context.training_loop(train_iterations_start=0):
                for step in range(3):
                    with context.training_iteration():
                        with timed_span(Names.DATA_LOADING):
                            pass
                        with timed_span(Names.MODEL_FORWARD) as forward:
                            get_recorder().event(forward, Event.create("cache_miss", Attributes({"key": "a"})))
                        log.log_step(step, train_loss=1.0 / (step + 1))
                try:
                    raise KeyError("handled")
                except KeyError:
                    with context.validation_loop(), context.validation_iteration():
                        pass
                with timed_span(Mine.ENCODE):
                    raise ValueError("boom")
    except ValueError:
        pass
    log.log_step(3, train_loss=0.2)
    log.close()
"""


def play(folder: Path, script: str) -> str:
    """Run a job in a process of its own, since OneLogger keeps one state for the whole of it."""
    root = Path(__file__).resolve().parents[3]
    done = run_python(
        ["-c", textwrap.dedent(PROLOGUE) + textwrap.dedent(script)],
        ONE_LOGGER,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


class Job:
    """What one job left: OneLogger's lines and our records."""

    def __init__(self, folder: Path, run: str) -> None:
        self.lines = [json.loads(line) for line in (folder / "theirs.jsonl").read_text().splitlines()]
        self.folder = folder / "logs" / run
        self.records = read_records(self.folder / "metrics.jsonl")
        self.spans = self.of("span")
        self.by_id = {span["id"]: span for span in self.spans}

    def of(self, event: str) -> list[dict]:
        return [record for record in self.records if record["event"] == event]

    def named(self, name: str) -> dict:
        (found,) = [span for span in self.spans if span["name"] == name]
        return found

    def path(self, span: dict) -> list[str]:
        """Return the names from the root down to `span`."""
        above = self.path(self.by_id[span["parent_id"]]) if "parent_id" in span else []
        return [*above, span["name"]]


@pytest.fixture(scope="module")
def by_callbacks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("callbacks")
    exporter = {
        "class_name": "toolkit.telemetry.integrations.one_logger.RunFolderExporter",
        "config": {"log_dir": "logs", "system": False, "csv": False, "control": False, "close_timeout": 60.0},
    }
    (folder / "one_logger_exporters_config.yaml").write_text(json.dumps({"exporters": [exporter]}))
    said = play(folder, BY_CALLBACKS)
    assert "ailed" not in said
    return Job(folder, "greyjacket")


@pytest.fixture(scope="module")
def by_contexts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contexts")
    play(folder, BY_CONTEXTS)
    return Job(folder, "own")


OURS = {
    "distributed_code_initialization": "dist_init",
    "model_initialization": "model_init",
    "training_single_iteration": "training_iteration",
    "model_forward": "forward",
    "validation_single_iteration": "validation_iteration",
}


@pytest.mark.parametrize("job", ["by_callbacks", "by_contexts"])
def test_every_span_is_there_with_its_name_times_and_attributes(job, request):
    job = request.getfixturevalue(job)
    ended = [line for line in job.lines if line["type"] in ("stop", "complete")]
    starts = {line["id"]: line["start_event"]["attributes"] for line in job.lines if "start_event" in line}

    assert [OURS.get(line["name"], line["name"]) for line in ended] == [span["name"] for span in job.spans]
    for line, span in zip(ended, job.spans, strict=True):
        attributes = dict(line["attributes"])
        assert span["duration"] == pytest.approx(attributes.pop("duration_msec") / 1000, abs=0.0011)
        assert span["start"] == pytest.approx(starts[line["id"]]["timestamp_msec"] / 1000, abs=0.0011)
        assert span.get("attributes", {}) == attributes
        assert span["clock"] == "host"


@pytest.mark.parametrize("job", ["by_callbacks", "by_contexts"])
def test_every_event_is_there_with_its_time_and_attributes(job, request):
    job = request.getfixturevalue(job)
    theirs = [line for line in job.lines if line["type"] in ("event", "application_error")]
    ours = job.of("span_event")

    assert [line["event"]["name"] for line in theirs] == [event["name"] for event in ours]
    assert ours
    names = {line["id"]: line["name"] for line in job.lines if "id" in line}
    for line, event in zip(theirs, ours, strict=True):
        attributes = dict(line["event"]["attributes"])
        assert event["time"] == pytest.approx(attributes.pop("timestamp_msec") / 1000, abs=0.0011)
        assert event.get("attributes", {}) == attributes
        span = names[line["span_id"]]
        assert event["span"] == OURS.get(span, span)
        assert job.by_id[event["span_id"]]["name"] == event["span"]


def test_the_tree_is_rebuilt_across_spans_that_are_not_exported(by_callbacks):
    paths = {span["name"]: by_callbacks.path(span)[:-1] for span in by_callbacks.spans}

    assert paths == {
        "dist_init": ["application"],
        "model_init": ["application"],
        "encode": ["application", "training_loop"],
        "checkpoint_save_sync": ["application", "training_loop"],
        "validation_loop": ["application", "training_loop"],
        "training_loop": ["application"],
        "application": [],
    }


def test_updates_become_steps_with_the_times_of_their_own_iterations(by_callbacks):
    updates = [event for event in by_callbacks.of("span_event") if event["name"] == "training_metrics_update"]
    steps = by_callbacks.of("step")

    assert [step["global_step"] for step in steps] == [2, 5]
    first, second = (event["attributes"]["total_iteration_time_sec"] for event in updates)
    assert steps[0]["sec_per_step"] == pytest.approx(first / 3)
    assert steps[1]["sec_per_step"] == pytest.approx((second - first) / 3)
    assert steps[1]["samples_per_sec"] == pytest.approx(24 / (second - first))
    assert steps[1]["train_throughput_per_gpu"] > 0


def test_the_run_ends_with_the_application_and_carries_its_tags(by_callbacks):
    (session,) = json.loads((by_callbacks.folder / "run.json").read_text())["sessions"]

    assert by_callbacks.of("end")[0]["status"] == "finished"
    assert (session["status"], session["perf_tag"], session["session_tag"]) == (
        "finished",
        "vit,h100",
        "night 7",
    )
    (error,) = by_callbacks.of("error")
    assert (error["source"], error["type"]) == ("telemetry", "incomplete_telemetry_data")
    assert error["message"] == "something is missing"


def test_an_exception_is_on_every_span_that_it_left_and_on_no_other(by_contexts):
    failed = {span["name"]: span["error"]["type"] for span in by_contexts.spans if "error" in span}

    assert failed == {"encode": "ValueError", "training_loop": "ValueError", "application": "ValueError"}
    assert "boom" in by_contexts.named("encode")["error"]["message"]


def test_a_logger_that_was_given_stays_open_and_its_steps_are_its_own(by_contexts):
    assert [step["global_step"] for step in by_contexts.of("step")] == [0, 1, 2, 3]
    assert [step.get("train_loss") for step in by_contexts.of("step")] == [1.0, 0.5, 1 / 3, 0.2]
    assert by_contexts.of("end")[0]["status"] == "finished"


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """Every span is exported, and ours are kept as they are by default; the job fails."""
    script = """
        from toolkit.telemetry.integrations.one_logger import RunFolderExporter

        exporter = RunFolderExporter(run_name="broken", log_dir="logs", spans={"around": 0}, **quiet)
        provider.with_exporter(FileExporter(Path("theirs.jsonl"))).with_exporter(exporter)
        provider.with_export_customization(ExportCustomizationMode.BLACKLIST_SPANS, ["nothing"])
        provider.configure_provider()
        try:
            with context.application(), context.training_loop(train_iterations_start=0):
                for _ in range(3):
                    with context.training_iteration():
                        time.sleep(0.001)
                raise RuntimeError("out of memory")
        except RuntimeError:
            pass
    """
    folder = tmp_path_factory.mktemp("failed")
    play(folder, script)
    return Job(folder, "broken")


def test_a_job_that_fails_is_a_run_that_failed(failed):
    (end,) = failed.of("end")

    assert (end["status"], end["reason"]) == ("failed", "failed")
    assert [span["error"]["type"] for span in failed.spans] == ["RuntimeError"] * 2


def test_wrong_options_are_rejected_at_once(tmp_path):
    from toolkit.telemetry.integrations.one_logger import RunFolderExporter
    from toolkit.telemetry.logger.options import OptionsError

    with pytest.raises(OptionsError, match="log_dri"):
        RunFolderExporter(log_dri=str(tmp_path))


@pytest.mark.parametrize("how", ["switched off", "another rank"])
def test_where_nothing_is_to_be_written_nothing_is(tmp_path, monkeypatch, how):
    from nv_one_logger.core.span import Span

    from toolkit.telemetry.integrations.one_logger import RunFolderExporter

    if how == "another rank":
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
    exporter = RunFolderExporter(run_name="r", log_dir=str(tmp_path), enabled=how != "switched off")
    exporter.initialize()
    span = Span.create("training_loop")
    exporter.export_start(span)
    span.stop()
    exporter.export_stop(span)
    guard = exporter.log.guard
    exporter.close()

    assert list(tmp_path.iterdir()) == []
    assert guard.total == 0


ON_A_RANK = """
    import os
    from toolkit.telemetry.integrations.one_logger import RunFolderExporter

    chosen = sys.argv[1]
    if chosen != "as it comes":
        config.enable_for_current_rank = os.environ["RANK"] in chosen.split()
    provider.with_base_config(config).with_exporter(RunFolderExporter(log_dir="logs", **quiet))
    provider.with_export_customization(ExportCustomizationMode.BLACKLIST_SPANS, ["nothing"])
    provider.configure_provider()
    callbacks.on_app_start()
    callbacks.on_train_start(train_iterations_start=0)
    for step in range(6):
        callbacks.on_training_single_iteration_start()
        callbacks.on_training_single_iteration_end()
    print("has begun", flush=True)
    sys.stdin.readline()
    callbacks.on_train_end()
    callbacks.on_app_end()
"""


@pytest.mark.parametrize(
    ("chosen", "started", "recorded_by"),
    [
        pytest.param("2", [0, 1, 2], 2, id="the last rank alone, as Megatron has it"),
        pytest.param("0 2", [2, 0, 1], 2, id="the first and the last, and the last comes first"),
        pytest.param("as it comes", [1, 0, 2], 0, id="every rank"),
    ],
)
def test_one_rank_records_of_those_on_which_one_logger_is_on(tmp_path, chosen, started, recorded_by):
    root = Path(__file__).resolve().parents[3]
    prologue = textwrap.dedent(PROLOGUE).rpartition("provider =")[0]
    script = prologue + "provider = TrainingTelemetryProvider.instance()\n" + textwrap.dedent(ON_A_RANK)
    launch = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "PYTHONPATH": str(root)}
    jobs = {}
    try:
        for rank in started:
            jobs[rank] = start_python(
                ["-c", script, chosen],
                ONE_LOGGER,
                cwd=tmp_path,
                env={**os.environ, **launch, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            # One after another, and all of them at the same time.
            while "has begun" not in (line := jobs[rank].stdout.readline()):
                assert line, jobs[rank].communicate()
        for job in jobs.values():
            said = job.communicate("", timeout=200)
            assert job.returncode == 0, said
    finally:
        for job in jobs.values():
            job.kill()
            job.communicate()

    (run,) = (tmp_path / "logs").iterdir()
    records = read_records(run / "metrics.jsonl")
    assert json.loads((run / "run.json").read_text())["pid"] == jobs[recorded_by].pid
    assert sum(record["event"] == "span" for record in records) >= 2
    assert [record["global_step"] for record in records if record["event"] == "step"] == [2, 5]


def test_nothing_raises_into_one_logger_and_nothing_is_made_before_it_begins(tmp_path):
    from nv_one_logger.core.event import Event
    from nv_one_logger.core.span import Span

    from toolkit.telemetry.integrations.one_logger import RunFolderExporter

    exporter = RunFolderExporter(run_name="r", log_dir=str(tmp_path), system=False, csv=False, control=False)
    span = Span.create("training_loop")
    exporter.export_start(span)
    assert list(tmp_path.iterdir()) == []

    exporter.initialize()
    exporter.export_stop(span)
    exporter.export_event(Event.create("training_metrics_update"), span)
    exporter.export_start(None)
    exporter.export_error(None, span)
    log = exporter.log
    exporter.close()
    exporter.export_start(span)
    exporter.close()

    assert not log.is_live
    assert log.guard.total == 3
