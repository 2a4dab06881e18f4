"""Everything private, planted wherever a run takes texts: none of it may be sent."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest

from tests.mirrors.messages.local_receivers import receiving
from tests.mirrors.usage.posthog_server import all_bytes, arrived, reporting_to
from tests.privacy.planted import ENVIRON, HARMLESS, PLANTED, leaks_in
from tests.telemetry.logged import make_logger
from toolkit.telemetry.mirrors.usage.events import events_of
from toolkit.telemetry.privacy.redaction import Redactor

VALUES = [value for _, value in PLANTED]
TEXT_FIELDS = (
    *("optimizer", "scheduler", "dtype", "trainer", "framework", "device", "strategy", "noise_scheduler"),
    *("perf", "note", "process_type", "save_root", "batch_size", "max_steps", "learning_rate", "world_size"),
)
IN_ONE_RUN = 40


@pytest.fixture
def machine(tmp_path, monkeypatch):
    # The folder first: pytest calls the one around all of them after the user.
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)


def raise_with(texts):
    """Raise an exception whose class, function, file, message, notes and cause are all made of `texts`."""
    name = "".join(letter if letter.isalnum() else "_" for letter in texts[0])
    kind = type(f"E_{name}", (Exception,), {})
    code = compile("def function():\n    raise error", texts[1 % len(texts)].replace("\0", ""), "exec")
    space = {"error": kind(*texts)}
    exec(code, space)
    try:
        raise ValueError(" ".join(texts))
    except ValueError:
        space["function"]()


def train_with(folder, url, texts, number):
    """Log a run that has `texts` wherever a text can be given, and fails with them."""
    turn = itertools.cycle(texts)
    with make_logger(folder, f"run-{number}", log_every=1, close_timeout=60.0, **reporting_to(url)) as log:
        log.log_start(
            config={text: {"name": text, "list": texts, "telemetry": text} for text in texts},
            lora={"rank": next(turn), "type": next(turn), next(turn): 1, "target_modules": texts},
            model={
                "name": next(turn),
                "name_or_path": next(turn),
                "architecture": next(turn),
                "dtype": next(turn),
            },
            training={name: next(turn) for name in TEXT_FIELDS},
            packages={"torch": next(turn), next(turn): "1.0"},
            os=f"Linux-6.1-{next(turn)}",
            accelerators=[{"name": f"NVIDIA {next(turn)}", "kind": next(turn), "memory_gb": next(turn)}],
        )
        for text in texts:
            log.log_step(1, train_loss=0.5, **{f"metric {text}": 1.0, "epoch": text, "lr": text})
            log.log_epoch(text, seconds=1.0, note=text)
            log.log_eval(1, val_loss=1.0, **{f"eval {text}": text})
            log.log_event("note", text=text)
            log.log_event("error", type=text, module=text, message=text, stack=[f"{text}:1 in {text}", text])
        raise_with(texts)


@pytest.mark.usefixtures("machine")
def test_no_planted_value_is_in_any_event_that_arrives(tmp_path):
    with receiving() as server:
        for number in range(0, len(VALUES), IN_ONE_RUN):
            with suppress(Exception):
                train_with(tmp_path, server.url, VALUES[number : number + IN_ONE_RUN], number)

    events = arrived(server)
    assert len(VALUES) >= 200
    assert len(events) == 2 * -(-len(VALUES) // IN_ONE_RUN)
    assert {event["properties"]["status"] for event in events if event["event"] == "run-end"} == {"failed"}
    assert leaks_in(all_bytes(server)) == []


def test_public_models_and_ordinary_settings_are_still_reported():
    models = [text for text in HARMLESS if text.count("/") == 1 and text[0].isalpha() and "-" in text]
    models = [text for text in models if " " not in text]
    assert len(models) >= 8
    settings = {"optimizer": "AdamW", "scheduler": "cosine_with_restarts", "dtype": "bf16"}
    for model in models:
        start = {"event": "start", "time": 1.7e9, "seq": 0, "session": 1, "python": "3.11.9"}
        records = ({**start, "model_name": model, **settings}, {**start, "event": "end", "seq": 1})
        event, _ = events_of(map(Redactor().redact, records))

        assert event["properties"].items() >= {"model_name": model, **settings}.items()
