"""Records of a run, and the events that they become: what is listed, as its check says, and nothing else."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from toolkit.telemetry.mirrors.usage.events import EVENTS, OF_THE_SERVICE, events_of

MACHINE = {"os": "Linux-6.1.0-x86_64-with-glibc2.36", "python": "3.11.9"}
BEGAN = 1_700_000_000.0


def events(*given_records, session=1):
    """Return the events of a session with these records, each an event, its second and its fields."""
    return [*events_of(
        {"event": event, "time": BEGAN + elapsed, "elapsed": elapsed, "seq": seq, "session": session, **fields}
        for seq, (event, elapsed, fields) in enumerate(given_records)
    )]  # fmt: skip


def names_of(found):
    return [event["event"] for event in found]


def sent_of(event, **fields):
    """Return the properties that a record of a short run with these fields leads to."""
    start, end = ({**fields}, {}) if event == "start" else ({}, {**fields})
    given_records = [("start", 0.0, start), ("end", 1.0, end)]
    if event not in ("start", "end"):
        given_records.insert(1, (event, 0.5, fields))
        given_records[-1][2].clear()
    run_start, run_end = (found["properties"] for found in events(*given_records))
    properties = run_start if event == "start" else run_end
    return {name: value for name, value in properties.items() if name not in OF_THE_SERVICE}


def test_the_start_waits_for_a_machine_that_is_described_late():
    waiting = [("start", 0.0, {}), ("step", 0.5, {"global_step": 1}), ("start", 0.6, {"batch_size": 4})]
    assert events(*waiting) == []

    [start] = events(*waiting, ("environment", 3.0, MACHINE))

    assert (start["properties"]["batch_size"], start["properties"]["python"]) == (4, "3.11.9")


def test_progress_is_reported_ever_more_seldom():
    month = 30 * 24 * 3600
    steps = [("step", float(second), {"global_step": second}) for second in range(0, month, 60)]
    reported = [
        event for event in events(("start", 0.0, MACHINE), *steps) if event["event"] == "run-progress"
    ]
    gaps = [
        later["properties"]["elapsed"] - earlier["properties"]["elapsed"]
        for earlier, later in itertools.pairwise(reported)
    ]

    assert len(reported) < 110
    assert min(gaps) == 60
    assert gaps == sorted(gaps)
    assert gaps[-1] > 10_000


def test_a_record_that_is_read_twice_counts_once_and_damaged_ones_not_at_all():
    start = {"event": "start", "time": BEGAN, "elapsed": 0.0, "seq": 0, "session": 1, **MACHINE}
    end = {**start, "event": "end", "seq": 1, "elapsed": None, "time": 1e300}
    damaged = [{}, {**end, "session": None}, {**end, "seq": None}]

    assert names_of(events_of([*damaged, start, start, end, end, start])) == ["run-start", "run-end"]


def test_each_session_is_reported_by_itself():
    records = [
        {"event": event, "time": BEGAN, "elapsed": 1.0, "seq": seq, "session": session, "python": "3.11.9"}
        for session in (1, 2)
        for seq, event in enumerate(("start", "end"))
    ]
    found = list(events_of(records))

    assert names_of(found) == ["run-start", "run-end"] * 2
    assert [event["properties"]["session"] for event in found[::2]] == [1, 2]


# ------------------------------------------------------------ the list of what may be sent


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = [*{name: None for properties in EVENTS.values() for name in properties}, "note", "run_name", "type"]
records = st.dictionaries(st.sampled_from([name for name in FIELDS if name != "session"]), anything)


@settings(max_examples=longer(20, 100), deadline=None)
@given(start=records, step=records, error=records, end=records)
def test_whatever_a_run_records_only_listed_properties_are_sent_and_they_are_strict_json(
    start, step, error, end
):
    found = events(("start", 0.0, start), ("step", 90.0, step), ("error", 91.0, error), ("end", 92.0, end))

    assert names_of(found)[-1] == "run-end"
    for event in found:
        properties = event["properties"]
        assert set(OF_THE_SERVICE) <= set(properties) <= {*EVENTS[event["event"]], *OF_THE_SERVICE}
        assert None not in properties.values()
        assert json.loads(json.dumps(event, allow_nan=False)) == event


@settings(max_examples=longer(20, 100), deadline=None)
@given(secret=st.text(min_size=1, max_size=30))
def test_a_word_that_is_not_publicly_known_is_not_sent(secret):
    word = f"acme {secret}"
    start = dict.fromkeys(EVENTS["run-start"], word) | {
        "session": 1,
        "packages": {"torch": word, word: "1.0"},
        "accelerators": [{"name": word, "kind": word}],
    }
    del start["session"]

    assert set(texts_in(sent_of("start", **start))) <= {"other"}


def texts_in(value):
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(inner)


@pytest.mark.parametrize(
    ("name", "value", "sent"),
    [
        ("os", "Linux-5.15.0-1052.acme-orchid-aarch64-with-glibc2.35", "Linux-5.15"),
        ("os", "macOS-14.4-arm64-arm-64bit", "macOS-14.4"),
        ("os", "janes-gpu-box", None),
        ("optimizer", "AdamW", "AdamW"),
        ("optimizer", "paged_adamw_8bit", "paged_adamw_8bit"),
        ("optimizer", "orchid_merger_adam", "other"),
        ("optimizer", "", None),
        ("scheduler", "cosine_with_restarts", "cosine_with_restarts"),
        ("architecture", "Qwen2MoeForCausalLM", "Qwen2MoeForCausalLM"),
        ("model_name_or_path", "google/gemma-2b", "google/gemma-2b"),
        ("model_name_or_path", "/home/jane/model", None),
        ("model_name", ["google/gemma-2b"], None),
        ("learning_rate", float("nan"), None),
        ("learning_rate", True, None),
        ("max_steps", 500, 500),
        ("max_steps", 10**40, None),
        ("model_total_params", 11_901_408_320, 12_000_000_000),
        ("memory_gb", 503.59, 500),
        ("cpu", {"logical": 64, "physical": 32, "model": "Xeon of jane"}, {"logical": 64}),
        ("gradient_checkpointing", "yes", None),
        ("gradient_checkpointing", False, False),
        (
            "accelerators",
            [
                {"index": 0, "name": "NVIDIA H100 80GB HBM3", "memory_gb": 79.65, "kind": "cuda"},
                {"name": "orchid"},
            ],
            [{"kind": "cuda", "name": "NVIDIA H100 80GB HBM3", "memory_gb": 80}, {"name": "other"}],
        ),
        ("packages", {"torch": "2.13.0+cu128", "acme": "1.0"}, {"torch": "2.13.0+cu128"}),
        ("packages", {"torch": "2.5.0a0+orchid.internal"}, {"torch": "other"}),
        ("packages", "torch 2.5", None),
    ],
)
def test_each_property_is_sent_as_its_check_says(name, value, sent):
    assert sent_of("start", **{name: value}) == {"session": 1, **({} if sent is None else {name: sent})}


# ------------------------------------------------------------ runtime metrics


def test_what_is_not_known_is_absent_and_never_zero():
    assert sent_of("end") == {}


def test_memory_is_reported_by_its_peak():
    sample = {"cpu_mem_rss_mb": 300.0, "gpu/0/mem_allocated_gb": 3.0, "gpu/0/mem_used_gb": 79.0}
    _, end = events(
        ("start", 0.0, {}),
        ("system", 1.0, sample),
        ("end", 2.0, {"cpu_mem_peak_mb": 900.0, "gpu/0/mem_peak_gb": 12.0, "gpu/1/mem_peak_gb": 20.0}),
    )

    assert end["properties"]["peak_cpu_memory_mb"] == 900.0
    assert end["properties"]["peak_gpu_memory_gb"] == 20.0


@pytest.mark.parametrize("odd", ["much", None, float("inf"), float("nan"), [1]])
def test_memory_that_is_no_number_is_not_known(odd):
    assert sent_of("system", cpu_mem_rss_mb=odd, gpu_mem_peak=odd) == {}


# ------------------------------------------------------------ errors without personal data


@pytest.mark.parametrize(
    ("name", "module", "reported"),
    [
        ("ValueError", "builtins", "ValueError"),
        ("KeyError", None, "KeyError"),
        ("OutOfMemoryError", "torch", "torch.OutOfMemoryError"),
        ("HfHubHTTPError", "huggingface_hub.errors", "huggingface_hub.HfHubHTTPError"),
        ("JSONDecodeError", "json.decoder", "json.JSONDecodeError"),
        ("SIGTERM", "signal", "signal.SIGTERM"),
        ("OrchidMergerError", "__main__", "(script)"),
        ("OrchidMergerError", "acme.training", "(script)"),
        ("OrchidMergerError", "builtins", "(script)"),
        ("a b", "torch", "(script)"),
        (None, None, "(script)"),
        ("KeyError", 5, "(script)"),
    ],
)
def test_exceptions_of_python_and_of_public_packages_are_named_and_others_are_not(name, module, reported):
    [error] = sent_of("error", type=name, module=module, message="orchid")["errors"]

    assert error == {"type": reported}


def test_of_a_stack_public_code_is_reported_and_the_script_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "peft").mkdir()
    private = [
        "train_orchid_merger.py:12 in main",
        "~/orchid/loop.py:99 in step_for_jane",
        "/opt/orchid/x.py:3 in f",
        "/usr/lib/python3.11/site-packages/orchid.py:1 in f",
        "acme_private/model.py:1 in forward",
        "peft/a_package_in_the_folder_of_the_script.py:1 in forward",
        "torch/../acme/model.py:1 in forward",
        "/home/jane/torch/secret.py:1 in forward",
        "torch/nn/functional.py:1 in a function named by someone",
        "nonsense",
        5,
    ]
    public = [
        "… 12 frames …",
        "transformers/trainer.py:2240 in train",
        "torch/nn/modules/__init__.py:7 in <module>",
        "/usr/lib/python3.11/threading.py:982 in run",
        "/home/jane/.pyenv/lib/python3.12/json/decoder.py:355 in raw_decode",
        "C:\\Python311\\Lib\\json\\decoder.py:355 in raw_decode",
    ]
    [error] = sent_of("error", type="ValueError", stack=[*private, *public])["errors"]

    assert error["stack"] == ["(script)"] * len(private) + [
        "… 12 frames …",
        "transformers.trainer:2240 in train",
        "torch.nn.modules.__init__:7 in <module>",
        "threading:982 in run",
        "json.decoder:355 in raw_decode",
        "json.decoder:355 in raw_decode",
    ]


def test_ten_distinct_errors_are_reported_and_none_of_telemetry_itself():
    errors = [("error", 0.0, {"type": "ValueError", "stack": ["(script)"] * 500})] * 100
    own = ("error", 0.0, {"type": "OSError", "source": "telemetry"})
    _, end = events(
        ("start", 0.0, {}), own, *errors, ("end", 1.0, {"errors_total": 113, "errors": [{"x": 1}]})
    )

    assert end["properties"]["errors"] == [{"type": "ValueError", "stack": ["(script)"] * 31}] * 10
    assert end["properties"]["errors_total"] == 113
