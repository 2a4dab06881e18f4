from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from toolkit.telemetry.mirrors.usage import allowed as vocabulary
from toolkit.telemetry.mirrors.usage.allowed import EVENTS, RUN_END, RUN_START, allowed

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def texts_in(value):
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(inner)


@pytest.mark.parametrize("event", EVENTS)
@settings(max_examples=longer(20, 60), deadline=None)
@given(data=st.data())
def test_whatever_is_found_only_the_listed_properties_are_sent_and_they_are_strict_json(event, data):
    fields = {field for name, (_, *fields) in EVENTS[event].items() for field in fields or [name]}
    found = data.draw(st.dictionaries(st.sampled_from([*sorted(fields), "note", "run_name"]), anything))

    sent = allowed(event, found)

    assert set(sent) <= set(EVENTS[event])
    assert json.loads(json.dumps(sent, allow_nan=False)) == sent
    assert None not in sent.values()


@settings(max_examples=longer(20, 100), deadline=None)
@given(secret=st.text(min_size=1, max_size=30))
def test_a_word_that_is_not_on_a_list_is_not_sent(secret):
    word = f"acme {secret}"
    fields = {field for name, (_, *fields) in EVENTS[RUN_START].items() for field in fields or [name]}
    found = dict.fromkeys(fields, word) | {
        "packages": {"torch": word, word: "1.0"},
        "accelerator_models": [word],
    }

    assert set(texts_in(allowed(RUN_START, found))) <= {"other"}


@pytest.mark.parametrize(
    ("name", "value", "sent"),
    [
        ("optimizer", "AdamW", "adamw"),
        ("optimizer", "orchid_merger_adam", "other"),
        ("optimizer", "", None),
        ("learning_rate", "2e-3", 0.002),
        ("learning_rate", float("nan"), None),
        ("learning_rate", True, None),
        ("max_steps", 500, 500),
        ("max_steps", 0, None),
        ("max_steps", 10**40, None),
        ("model_total_params", 11_901_408_320, 12_000_000_000),
        ("gradient_checkpointing", "yes", None),
        ("gradient_checkpointing", False, False),
        ("accelerator_models", ["NVIDIA H100 80GB HBM3", "orchid chip"], ["NVIDIA H100 80GB HBM3", "other"]),
        ("packages", {"torch": "2.13.0+cu128", "acme": "1.0"}, {"torch": "2.13.0+cu128"}),
        ("packages", {"torch": "2.5.0a0+orchid.internal"}, {"torch": "other"}),
        ("packages", {"torch": "2.6.0.dev20241112+cu121"}, {"torch": "2.6.0.dev20241112+cu121"}),
        ("packages", "torch 2.5", None),
    ],
)
def test_each_property_is_sent_as_its_check_says(name, value, sent):
    assert list(allowed(RUN_START, {name: value}).values()) == ([] if sent is None else [sent])


def test_lists_are_bounded():
    error = {"type": "ValueError", "count": 1, "stack": ["(script)"] * 500}
    sent = allowed(
        RUN_END,
        {
            "errors": [error] * 500,
            "epoch_times": {"epoch_1_seconds": 1.0, "my_secret": 2.0, "epoch_x_seconds": 1.0},
        },
    )

    assert len(sent["errors"]) == 10
    assert len(sent["errors"][0]["stack"]) == 31
    assert sent["epoch_times"] == {"epoch_1_seconds": 1.0}


def test_no_vocabulary_has_a_word_that_its_own_check_would_refuse():
    words = vocabulary.OPTIMIZERS | vocabulary.SCHEDULERS | vocabulary.ARCHITECTURES | vocabulary.TRAINERS

    assert all(word == word.lower() for word in words | vocabulary.DTYPES | vocabulary.LORA_TYPES)
