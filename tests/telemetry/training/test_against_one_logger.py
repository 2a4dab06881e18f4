"""One script of calls into the real OneLogger and into ours: the same spans, the same tree, the same events and values.

Where the two differ, OneLogger is wrong by its own description; each such difference is asserted here to be there.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.telemetry.logged import make_logger, records_of
from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.timing.names import ONE_LOGGER_NAMES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nv_one_logger") is None, reason="nv-one-logger is not installed"
)

BASE = {
    "application_name": "greyjacket",
    "world_size_or_fn": 2,
    "session_tag_or_fn": "night",
    "is_baseline_run_or_fn": True,
    "custom_metadata": {"branch": "main"},
}
CONFIG = {
    "perf_tag_or_fn": ["a100", "bf16"],
    "global_batch_size_or_fn": 4,
    "micro_batch_size_or_fn": 2,
    "seq_length_or_fn": 8,
    "flops_per_sample_or_fn": 10**12,
    "train_iterations_target_or_fn": 100,
    "train_samples_target_or_fn": 400,
    "log_every_n_train_iterations": 5,
    "is_log_throughput_enabled_or_fn": True,
    "custom_metadata": {"node": "big"},
}
ITERATIONS_S = (1.0, 2.0, 4.0, 1.5, 1.5, 3.0, 0.5, 2.0, 2.5, 1.0, 5.0, 0.75)
# OneLogger has two clocks, and estimates one from the other again for every call.
NEAR_S = 0.05
ABOUT = 0.03


class Script:
    """Calls, one after the other, in a past that OneLogger still accepts."""

    def __init__(self):
        self.now = time.time() - 400.0
        self.calls = []

    def call(self, name, **arguments):
        self.calls.append((name, arguments))

    def start(self, name, **arguments):
        self.now += 0.25
        self.call(f"{name}_start", **arguments, start_time_msec=self.now * 1000)

    def end(self, name, seconds):
        self.now += seconds
        self.call(f"{name}_end", finish_time_msec=self.now * 1000)

    def part(self, name, seconds):
        self.start(name)
        self.end(name, seconds)


def whole_job(*, strategy="sync"):
    """Return a job with all that OneLogger has callbacks for."""
    script = Script()
    script.start("on_app")
    script.call("configure", **CONFIG, save_checkpoint_strategy=strategy)
    for name in ("distributed_init", "model_init", "dataloader_init", "load_checkpoint", "optimizer_init"):
        script.part(f"on_{name}", 0.5)
    script.start("on_train", train_iterations_start=10, train_samples_target_or_fn=500)
    for done, seconds in enumerate(ITERATIONS_S, 1):
        script.part("on_training_single_iteration", seconds)
        if done % 4 == 0:
            script.start("on_validation")
            for part in (1, 2):
                script.part("on_validation_single_iteration", 0.5 * part * done / 4)
            script.end("on_validation", 0.25)
            checkpoint(script, 10 + done, strategy, done)
    script.end("on_train", 0.5)
    script.start("on_testing")
    script.end("on_testing", 1.0)
    script.end("on_app", 0.5)
    return script


def checkpoint(script, global_step, strategy, seconds):
    script.start("on_save_checkpoint", global_step=global_step)
    if strategy == "sync":
        script.now += seconds / 8
        succeed(script, global_step)
        script.end("on_save_checkpoint", seconds / 8)
    else:
        script.end("on_save_checkpoint", seconds / 4)
        succeed(script, global_step)


def succeed(script, global_step):
    script.call("on_save_checkpoint_success", global_step=global_step, time_msec=script.now * 1000)


def without_targets():
    """Return a job like that of OneLogger's own introduction: it asks for throughput and says nothing of targets."""
    script = Script()
    script.start("on_app")
    said = {name: value for name, value in CONFIG.items() if not name.endswith("target_or_fn")}
    script.call("configure", **said)
    script.start("on_train", train_iterations_start=0)
    return script


def configured_twice():
    """Return a job that learns of its batch only later."""
    script = Script()
    script.start("on_app")
    script.call("configure", **CONFIG)
    script.call("configure", **CONFIG)
    return script


def long_ago():
    """Return a job that began longer ago than ten minutes."""
    script = Script()
    script.now -= 1000.0
    script.start("on_app")
    return script


SCRIPTS = {
    "sync": whole_job,
    "async": partial(whole_job, strategy="async"),
    "configured twice": configured_twice,
    "without targets": without_targets,
    "long ago": long_ago,
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """The scripts, and what the real OneLogger makes of each; all in one go, because it takes long to import."""
    scripts = {name: make() for name, make in SCRIPTS.items()}
    folder = tmp_path_factory.mktemp("one_logger")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("one_logger_oracle.py"))],
        input=json.dumps([{"base": BASE, "calls": script.calls} for script in scripts.values()]),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # OneLogger's own libraries may print empty lines as they end.
    played = json.loads([line for line in done.stdout.splitlines() if line][-1])
    return {name: (scripts[name], made) for name, made in zip(scripts, played, strict=True)}


def ours(script, folder):
    """Return what we make of it, in the same form."""
    log = make_logger(folder, spans="all", clock=ManualClock(time.time()))
    training = log.training
    training.configure(**BASE)
    for name, arguments in script.calls:
        if name == "configure":
            training.configure(**arguments)
        else:
            getattr(training, name)(**arguments)
    finished = {span["id"]: span for span in records_of(log, "span")}
    spans = [
        {
            "id": span["id"],
            "name": ONE_LOGGER_NAMES[span["name"]],
            "parent": span.get("parent_id"),
            "start_msec": span["start"] * 1000,
            "attributes": {**span.get("attributes", {}), "duration_msec": span["duration"] * 1000},
        }
        for span in sorted(finished.values(), key=lambda span: (span["start"], -span["duration"]))
    ]
    events = [
        {"span": event.get("span_id"), "name": event["name"], "attributes": event["attributes"]}
        for event in records_of(log, "span_event")
    ]
    assert log.guard.counts == {}
    log.close()
    return {"spans": spans, "events": events}


@pytest.fixture
def both(theirs, tmp_path):
    def play(name):
        script, made = theirs[name]
        return made, ours(script, tmp_path / "ours")

    return play


def tree(played):
    """Return the name of each span under the name of its parent, in the order in which they began."""
    names = {span["id"]: span["name"] for span in played["spans"]}
    return [(span["name"], names.get(span["parent"])) for span in played["spans"]]


def named(played, event):
    """Return the name of the span, and the attributes, of each event of a name."""
    names = {span["id"]: span["name"] for span in played["spans"]}
    return [
        (names.get(found["span"]), found["attributes"])
        for found in played["events"]
        if found["name"] == event
    ]


def assert_same(theirs, ours, *, but=()):
    """Assert that each field that OneLogger fills has the same value here."""
    for name in set(theirs) - {*but, "timestamp_msec"}:
        assert name in ours, name
        if isinstance(theirs[name], float):
            assert ours[name] == pytest.approx(theirs[name], rel=ABOUT, abs=NEAR_S), name
        else:
            assert ours[name] == theirs[name], name


@pytest.mark.parametrize("strategy", ["sync", "async"])
def test_a_whole_job_is_recorded_alike(both, strategy):
    them, us = both(strategy)

    assert tree(us) == tree(them)
    for their_span, our_span in zip(them["spans"], us["spans"], strict=True):
        is_checkpoint = our_span["name"].startswith("checkpoint_save")
        assert_same(their_span["attributes"], our_span["attributes"], but=("duration_msec",))
        if is_checkpoint:
            # Theirs starts when it is reported, not when it began; its length is then the time since, negative.
            assert their_span["attributes"]["duration_msec"] < 0
            assert their_span["start_msec"] > our_span["start_msec"] + 100_000
        else:
            assert our_span["start_msec"] == pytest.approx(their_span["start_msec"], abs=2.0)
            assert our_span["attributes"]["duration_msec"] == pytest.approx(
                their_span["attributes"]["duration_msec"], abs=1000 * NEAR_S
            )

    [(where, initialization)] = named(them, "one_logger_initialization")
    assert named(us, "one_logger_initialization")[0][0] == where == "application"
    recorded = named(us, "one_logger_initialization")[0][1]
    # Each says which version of which package wrote it.
    assert_same(initialization, recorded, but=("one_logger_training_telemetry_version",))

    [(where, configuration)] = named(them, "update_training_telemetry_config")
    # Ours also has events for the base configuration, before the application began and at its start.
    last = named(us, "update_training_telemetry_config")[-1]
    assert last[0] == where == "application"
    assert_same(configuration, last[1])

    for event in ("validation_metrics_update", "testing_metrics_update", "sync_checkpoint_metrics_update"):
        their_events, our_events = named(them, event), named(us, event)
        assert [where for where, _ in our_events] == [where for where, _ in their_events] != []
        for (_, they), (_, we) in zip(their_events, our_events, strict=True):
            assert_same(they, we)

    their_successes, our_successes = (
        named(them, "save_checkpoint_success"),
        named(us, "save_checkpoint_success"),
    )
    where_it_is = "checkpoint_save_sync" if strategy == "sync" else "application"
    assert {where for where, _ in (*their_successes, *our_successes)} == {where_it_is}
    assert len(their_successes) == 3
    for (_, they), (_, we) in zip(their_successes, our_successes, strict=True):
        assert_same(they, we)
        assert we["latest_successful_save_checkpoint_timestamp_sec"] == pytest.approx(
            they["latest_successful_save_checkpoint_timestamp_sec"], abs=0.001
        )


EXTREMES = ("train_throughput_per_gpu_max", "train_throughput_per_gpu_min")


def test_training_metrics_are_alike_except_the_extremes_and_the_rest(both):
    them, us = both("sync")

    their_updates, our_updates = named(them, "training_metrics_update"), named(us, "training_metrics_update")
    for (their_span, they), (our_span, we) in zip(their_updates, our_updates, strict=False):
        assert their_span == our_span == "training_loop"
        assert_same(they, we, but=EXTREMES)
        assert we["train_throughput_per_gpu"] == pytest.approx(they["train_throughput_per_gpu"], rel=ABOUT)

    # Explained: OneLogger never reports the iterations after the last multiple of the interval.
    assert [update["num_iterations"] for _, update in their_updates] == [5, 10]
    assert [update["num_iterations"] for _, update in our_updates] == [5, 10, 12]

    # Explained: theirs are extremes of the average so far, although both describe them as those of single iterations.
    a_second = [4.0 / seconds / 2 for seconds in ITERATIONS_S[:10]]
    so_far = [4.0 * done / sum(ITERATIONS_S[:done]) / 2 for done in range(1, 11)]
    they, we = their_updates[1][1], our_updates[1][1]
    assert they["train_throughput_per_gpu_max"] == pytest.approx(max(so_far), rel=ABOUT)
    assert they["train_throughput_per_gpu_min"] == pytest.approx(min(so_far), rel=ABOUT)
    assert we["train_throughput_per_gpu_max"] == pytest.approx(max(a_second), rel=ABOUT)
    assert we["train_throughput_per_gpu_min"] == pytest.approx(min(a_second), rel=ABOUT)

    # Explained: fields that OneLogger declares and never fills.
    never = {"avg_tflops", "avg_tokens_per_second", "avg_batch_size"}
    assert never.isdisjoint(they)
    assert never <= set(we)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("without targets", "target is required"),
        ("long ago", "too old"),
        ("configured twice", "already been set"),
    ],
)
def test_what_one_logger_refuses_works_here(both, name, says):
    them, us = both(name)

    assert says in them["refused"]
    assert us["events"] != []
