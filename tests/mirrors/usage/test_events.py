from __future__ import annotations

import itertools

import pytest

from toolkit.telemetry.mirrors.usage.allowed import EVENTS, RUN_END, RUN_PROGRESS, allowed
from toolkit.telemetry.mirrors.usage.events import (
    OF_THE_SERVICE,
    UsageEventReader,
    _Progress,
    about_machine,
    public_stack,
    public_type,
)

MACHINE = {"os": "Linux-6.1.0-x86_64-with-glibc2.36", "python": "3.11.9"}


class Run:
    """Records of a session, as they come one by one."""

    def __init__(self, session=1):
        self.session = session
        self.story = UsageEventReader(session)
        self._seq = itertools.count()
        self.events = []

    def tell(self, event, elapsed, **fields):
        record = {
            "event": event, "time": 1_700_000_000.0 + elapsed, "elapsed": elapsed, "seq": next(self._seq),
            "session": self.session, **fields,
        }  # fmt: skip
        self.events += self.story.take(record)
        return record

    @property
    def names(self):
        return [event.name for event in self.events]


def test_a_run_is_reported_from_start_to_end():
    run = Run()
    run.tell("start", 0.0, **MACHINE, batch_size=4)
    run.tell("step", 1.0, global_step=1, train_loss=0.5)
    run.tell("step", 70.0, global_step=50, train_loss=0.4)
    run.tell("end", 80.0, status="finished", seconds=80.0, global_step=50, records_lost=0, telemetry_errors=0)

    assert run.names == ["run-start", "run-progress", "run-end"]
    start, progress, end = (event.properties for event in run.events)
    assert (start["os"], start["batch_size"], start["is_resumed"]) == ("linux", 4, False)
    assert (progress["step"], progress["train_loss"]) == (50, 0.4)
    assert (end["status"], end["total_steps"], end["steps_per_second"]) == ("finished", 50, 0.625)
    assert [event.time for event in run.events] == [1_700_000_001.0, 1_700_000_070.0, 1_700_000_080.0]


def test_every_event_has_what_keeps_the_service_from_adding_to_it_and_nothing_else_beyond_the_list():
    run = Run()
    run.tell("start", 0.0, **MACHINE, run_name="orchid", run_id="abc", host="janes-gpu-box", seed=5)
    run.tell("step", 100.0, global_step=1, train_loss=0.5, orchid_metric=3.0)
    run.tell("step", 500.0, global_step=1, train_loss=0.5, orchid_metric=3.0)
    run.tell("end", 501.0, status="finished", reason="orchid")

    assert len(run.events) == 3
    for event in run.events:
        assert set(event.properties) <= {*EVENTS[event.name], *OF_THE_SERVICE}
        assert set(OF_THE_SERVICE) <= set(event.properties)


def test_the_start_waits_for_a_machine_that_is_described_late_and_for_what_is_trained():
    run = Run()
    run.tell("start", 0.0)
    run.tell("step", 0.5, global_step=1)
    run.tell("start", 0.6, batch_size=4)
    assert run.events == []

    run.tell("environment", 3.0, **MACHINE)

    assert run.names == ["run-start"]
    assert run.events[0].properties["batch_size"] == 4
    assert run.events[0].properties["python_version"] == "3.11.9"


def test_a_machine_that_is_never_described_does_not_hold_the_start_up_for_long():
    run = Run()
    run.tell("start", 0.0, batch_size=4)
    run.tell("system", 29.0)
    assert run.events == []
    run.tell("system", 30.0)

    assert run.names == ["run-start"]
    assert "os" not in run.events[0].properties


def test_progress_is_reported_ever_more_seldom():
    run = Run()
    run.tell("start", 0.0, **MACHINE)
    month = 30 * 24 * 3600
    for number in range(0, month, 60):
        run.tell("step", float(number), global_step=number)
    reported = [event for event in run.events if event.name == "run-progress"]

    assert len(reported) < 100
    gaps = [later.time - earlier.time for earlier, later in itertools.pairwise(reported)]
    assert min(gaps) >= 300
    assert gaps == sorted(gaps)
    assert gaps[-1] > 10_000


def test_a_record_that_is_read_twice_is_looked_at_once():
    run = Run()
    first = run.tell("start", 0.0, **MACHINE)
    second = run.tell("step", 1.0, global_step=1)
    last = run.tell("end", 2.0, status="finished")
    for record in (first, second, last):
        assert run.story.take(record) == []

    assert run.events[-1].properties["total_steps"] == 1


def test_records_of_other_sessions_and_torn_ones_are_passed_over():
    story = UsageEventReader(2)
    whole = {"event": "end", "time": 5.0, "elapsed": 1.0, "seq": 9, "session": 2, "status": "finished"}

    for torn in ({**whole, "session": 1}, {**whole, "seq": None}, {**whole, "time": "x"}, {}):
        assert story.take(torn) == []
    assert [event.name for event in story.take({**whole, "elapsed": None})] == ["run-start", "run-end"]


# ------------------------------------------------------------ figures


MIB, GIB = 1024**2, 1024**3


def metrics_of(*records, is_resumed=False):
    metrics = _Progress(is_resumed=is_resumed)
    for elapsed, event, fields in records:
        metrics.take({"event": event, "elapsed": elapsed, **fields})
    return metrics


def totals_of(*records, end=None, **options):
    """Return what is sent of the totals, after the allow-list."""
    return allowed(RUN_END, metrics_of(*records, **options).totals(end or {}))


def steps(*numbers, start=1.0):
    return [
        (start + i, "step", {"global_step": number, "train_loss": 0.5}) for i, number in enumerate(numbers)
    ]


# ------------------------------------------------------------ what is not known


def test_what_is_not_known_is_absent_and_never_zero():
    assert totals_of((5.0, "start", {})) == {"total_time_seconds": 5.0}
    assert allowed(RUN_PROGRESS, metrics_of((5.0, "start", {})).since_last_report()) == {
        "elapsed_seconds": 5.0,
        "seconds_since_last_report": 5.0,
    }


# ------------------------------------------------------------ steps


def test_the_figures_are_those_of_the_last_step_whatever_came_after_it():
    last = {"global_step": 7, "train_loss": 0.25, "lr": 1e-4, "grad_norm": 1.5, "epoch": 0.7}
    sent = totals_of(
        (1.0, "step", last),
        (2.0, "eval", {"global_step": 7, "train_loss": 9.0, "val_loss": 9.0, "epoch": 9}),
        (3.0, "train_summary", {"global_step": 7, "train_loss": 0.0, "summary": {"train_runtime": 1.0}}),
        (4.0, "system", {"global_step": 7, "train_loss": 8.0}),
    )

    assert (sent["train_loss"], sent["learning_rate"], sent["grad_norm"]) == (0.25, 1e-4, 1.5)
    assert (sent["step"], sent["epoch"], sent["total_steps"]) == (7, 0.7, 1)


@pytest.mark.parametrize(
    ("records", "count"),
    [
        (steps(1, 2, 3), 3),
        (steps(10, 20, 30), 21),
        ([(1.0, "step", {"global_step": 10, "steps_folded": 9}), *steps(20, start=2.0)], 20),
        (steps(5, 5, 5), 1),
        # A loop that went back after a reload trains those steps again.
        (steps(8, 9, 5, 6), 4),
        (steps(1000, 1001), 2),
        ([(1.0, "step", {"global_step": "x"}), (1.0, "step", {"global_step": True})], None),
    ],
)
def test_steps_are_counted_as_they_were_trained_in_this_session(records, count):
    assert totals_of(*records).get("total_steps") == count


def test_steps_behind_the_last_record_are_counted_by_the_end():
    sent = totals_of(*steps(1, 2), end={"global_step": 9, "seconds": 30.0})

    assert (sent["total_steps"], sent["step"], sent["steps_per_second"]) == (9, 9, 0.3)


def test_the_pace_of_a_report_is_that_since_the_last_one():
    metrics = metrics_of(*steps(1, 2))
    metrics.since_last_report()
    for record in steps(3, 4, 5, 6, start=10.0):
        metrics.take({"event": "step", "elapsed": record[0], **record[2]})
    progress = metrics.since_last_report()

    assert progress["seconds_since_last_report"] == 11.0
    assert progress["steps_per_second"] == pytest.approx(4 / 11)


def test_how_far_it_is_needs_a_goal():
    assert "progress" not in totals_of(*steps(5))
    assert totals_of((0.0, "start", {"max_steps": 10}), *steps(5))["progress"] == 0.5
    assert totals_of((0.0, "start", {"max_steps": 10}), *steps(50))["progress"] == 1.0
    assert totals_of((0.0, "start", {"max_steps": 10}), *steps(0))["progress"] == 0.1
    assert totals_of((0.0, "start", {"max_steps": 10}), *steps(0, 9))["progress"] == 1.0


# ------------------------------------------------------------ epochs


def test_epochs_are_timed_from_the_start_of_the_training_and_from_one_another():
    sent = totals_of(
        (1.0, "start", {}),
        (4.0, "step", {"global_step": 1}),
        (11.0, "epoch", {"epoch": 0}),
        (31.0, "epoch", {"epoch": 1}),
    )

    assert sent["epoch_times"] == {"epoch_0_seconds": 10.0, "epoch_1_seconds": 20.0}
    assert sent["average_epoch_time_seconds"] == 15.0
    assert sent["epochs_completed"] == 2


def test_epoch_times_that_the_trainer_reports_are_used():
    sent = totals_of((1.0, "start", {}), (11.0, "epoch", {"epoch": 1, "seconds": 7.5}))

    assert sent["epoch_times"] == {"epoch_1_seconds": 7.5}


@pytest.mark.parametrize(
    ("is_resumed", "start"), [(True, {}), (False, {"resumed_from_step": 500})], ids=["session", "trainer"]
)
def test_the_rest_of_an_epoch_that_began_before_is_not_taken_for_a_whole_one(is_resumed, start):
    sent = totals_of(
        (1.0, "start", start),
        (3.0, "epoch", {"epoch": 4}),
        (13.0, "epoch", {"epoch": 5}),
        is_resumed=is_resumed,
    )

    assert sent["epoch_times"] == {"epoch_5_seconds": 10.0}
    assert (sent["epochs_completed"], sent["average_epoch_time_seconds"]) == (2, 10.0)


# ------------------------------------------------------------ memory


def test_the_counters_at_the_end_reports_a_peak_between_two_samples():
    end = {"cpu_mem_peak_mb": 900.0, "gpu/0/mem_peak_gb": 12.0, "gpu/1/mem_peak_gb": 20.0}
    sent = totals_of(
        (1.0, "system", {"cpu_mem_rss_mb": 300.0, "gpu/0/mem_allocated_gb": 3.0, "gpu/0/mem_used_gb": 79.0}),
        (2.0, "end", end),
        end=end,
    )

    assert sent["peak_cpu_memory_bytes"] == 900 * MIB
    assert sent["peak_gpu_memory_bytes"] == 20 * GIB
    assert sent["gpu_memory"] == {"gpu_0_peak_memory_bytes": 12 * GIB, "gpu_1_peak_memory_bytes": 20 * GIB}


@pytest.mark.parametrize("odd", ["much", None, -1.0, True, float("inf"), [1]])
def test_memory_that_is_no_number_is_not_known(odd):
    sent = totals_of((1.0, "system", {"cpu_mem_rss_mb": odd, "gpu_mem_peak": odd, "gpu/0/mem_peak_gb": odd}))

    assert not any("memory" in name for name in sent)


# ------------------------------------------------------------ machine and training


@pytest.mark.parametrize(
    ("platform", "reported"),
    [
        ("Linux-6.1.0-17-amd64-x86_64-with-glibc2.36", ("Linux", "6.1", "x86_64")),
        ("Linux-5.15.0-1052.acme-orchid-aarch64-with-glibc2.35", ("Linux", "5.15", "aarch64")),
        ("macOS-14.4-arm64-arm-64bit", ("macOS", "14.4", "arm64")),
        ("Windows-10-10.0.19045-SP0", ("Windows", "10", None)),
        (None, (None, None, None)),
        ("janes-gpu-box", (None, None, None)),
    ],
)
def test_of_a_system_only_name_version_and_processor_are_reported(platform, reported):
    machine = about_machine({"os": platform})

    assert (machine["os"], machine["os_version"], machine["machine"]) == reported


def test_the_machine_is_reported_in_coarse_figures():
    machine = about_machine(
        {
            "cpu": {"logical": 64, "physical": 32, "model": "Xeon of jane"},
            "memory_gb": 503.59,
            "accelerators": [
                {"index": 0, "name": "NVIDIA H100 80GB HBM3", "memory_gb": 79.65, "kind": "cuda"},
                {"index": 1, "name": "NVIDIA H100 80GB HBM3", "memory_gb": 79.65, "kind": "cuda"},
            ],
        }
    )

    assert machine == {
        "os": None,
        "os_version": None,
        "machine": None,
        "cpu_count": 64,
        "memory_gb": 504,
        "accelerator_type": "cuda",
        "accelerator_count": 2,
        "accelerator_models": ["NVIDIA H100 80GB HBM3"] * 2,
        "accelerator_memory_gb": [80, 80],
    }


@pytest.mark.parametrize(
    ("start", "name", "value"),
    [
        ({"model_name_or_path": "google/gemma-2b"}, "model", "google/gemma-2b"),
        (
            {"model_name_or_path": "/home/jane/model", "model_name": "google/gemma-2b"},
            "model",
            "google/gemma-2b",
        ),
        ({"model_name": ["google/gemma-2b"]}, "model", None),
        ({"axolotl_version": "0.9"}, "trainer", "axolotl"),
        ({"framework": "lightning"}, "trainer", "lightning"),
        ({"architecture": "orchid", "model_architecture": "Flux"}, "architecture", "flux"),
        ({"accelerators": [None]}, "accelerator_count", None),
    ],
)
def test_the_start_says_what_is_trained(start, name, value):
    run = Run()
    run.tell("start", 0.0, **start)
    run.tell("end", 0.1)

    assert run.events[0].properties.get(name) == value


# ------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("name", "module", "reported"),
    [
        ("ValueError", "builtins", "ValueError"),
        ("KeyError", None, "KeyError"),
        ("OutOfMemoryError", "torch", "torch.OutOfMemoryError"),
        ("HfHubHTTPError", "huggingface_hub.errors", "huggingface_hub.HfHubHTTPError"),
        ("JSONDecodeError", "json.decoder", "json.JSONDecodeError"),
        ("SIGTERM", "signal", "SIGTERM"),
        ("OrchidMergerError", "__main__", "an_exception_of_the_script"),
        ("OrchidMergerError", "acme.training", "an_exception_of_the_script"),
        ("OrchidMergerError", "builtins", "an_exception_of_the_script"),
        ("print", "builtins", "an_exception_of_the_script"),
        ("a b", "torch", "an_exception_of_the_script"),
        ("SIGORCHID", "signal", "an_exception_of_the_script"),
        (None, None, "an_exception_of_the_script"),
        ("KeyError", 5, "an_exception_of_the_script"),
    ],
)
def test_types_of_python_and_of_public_packages_are_reported_and_others_are_not(name, module, reported):
    assert public_type(name, module) == reported


def test_of_a_stack_public_code_is_reported_and_the_script_is_not(tmp_path):
    stack = [
        "train_orchid_merger.py:12 in main",
        "~/orchid/loop.py:99 in step_for_jane",
        "/opt/orchid/x.py:3 in f",
        "… 12 frames …",
        "transformers/trainer.py:2240 in train",
        "torch/nn/modules/__init__.py:7 in <module>",
        "/usr/lib/python3.11/threading.py:982 in run",
        "/usr/lib/python3.11/site-packages/orchid.py:1 in f",
        "/home/jane/.pyenv/lib/python3.12/json/decoder.py:355 in raw_decode",
        "C:\\Python311\\Lib\\json\\decoder.py:355 in raw_decode",
        "acme_private/model.py:1 in forward",
        "torch/../acme/model.py:1 in forward",
        "/home/jane/torch/secret.py:1 in forward",
        "torch/nn/functional.py:1 in a function named by someone",
        "nonsense",
        5,
    ]

    assert public_stack(stack, [tmp_path]) == [
        "(script)",
        "(script)",
        "(script)",
        "… 12 frames",
        "transformers.trainer:2240 in train",
        "torch.nn.modules:7 in <module>",
        "threading:982 in run",
        "(script)",
        "json.decoder:355 in raw_decode",
        "json.decoder:355 in raw_decode",
        "(script)",
        "(script)",
        "(script)",
        "torch.nn.functional:1",
        "(script)",
        "(script)",
    ]


def test_a_package_in_the_script_s_folder_is_private(tmp_path):
    (tmp_path / "transformers").mkdir()

    assert public_stack(["transformers/orchid_merger.py:1 in f"], [tmp_path]) == ["(script)"]


def test_each_distinct_error_is_reported_with_its_count_up_to_ten():
    run = Run()
    for number in range(100):
        run.tell("error", 0.0, type="ValueError", fingerprint=str(number), count=1)
    run.tell("error", 0.0, type="OSError", source="telemetry", doing="writing")
    run.tell("end", 1.0, errors=[{"type": "ValueError", "fingerprint": "3", "count": 14}], errors_total=113)

    sent = run.events[-1].properties
    assert [error["count"] for error in sent["errors"]] == [1, 1, 1, 14, 1, 1, 1, 1, 1, 1]
    assert sent["errors_total"] == 113
