"""`telemetry setup usage`: what it prints is what is sent, and it sends nothing itself."""

from __future__ import annotations

import json
import re
import textwrap
from functools import partial

import pytest

from tests.mirrors.messages.local_receivers import receiving
from tests.mirrors.usage.posthog_server import KEY, KEY_ENV, arrived
from tests.project.markdown import ROOT, blocks
from tests.telemetry.logged import make_logger
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.mirrors.usage.events import EVENTS, OF_THE_SERVICE

DOCUMENT = ROOT / "docs" / "privacy.md"
NO_KEY = "TELEMETRY_USAGE_KEY, the variable of telemetry.usage_reports.key_env, holds no project key"


@pytest.fixture(autouse=True)
def _tracking_allowed(monkeypatch):
    for name in ("DO_NOT_TRACK", "TELEMETRY_DO_NOT_TRACK", "AXOLOTL_DO_NOT_TRACK", "TELEMETRY_USAGE_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv(KEY_ENV, KEY)


@pytest.fixture
def usage(telemetry):
    return partial(telemetry, "setup", "usage")


def config_for(url, folder):
    return {
        "config": {
            "name": "greyjacket",
            "process": [
                {
                    "train": {
                        "batch_size": 4,
                        "steps": 3,
                        "lr": "2e-3",
                        "optimizer": "adamw8bit",
                        "dtype": "bf16",
                    },
                    "network": {"type": "lora", "linear": 16, "linear_alpha": 16},
                    "model": {"name_or_path": "black-forest-labs/FLUX.1-dev", "arch": "flux"},
                    "telemetry": {
                        "log_dir": str(folder),
                        "log_every": 1,
                        "system": False,
                        "close_timeout": 60.0,
                        "usage_reports": {"host": url, "key_env": KEY_ENV},
                    },
                }
            ],
        }
    }


def train(config):
    with TelemetryLogger.from_config(config) as log:
        # On a slow machine that may take longer than a start record waits for it.
        log._run._probe.is_done(60.0)
        log.log_start()
        for step in range(1, 4):
            log.log_step(step, train_loss=1.0 / step)
        log.log_epoch(1)
    return log


# ------------------------------------------------------------ what is printed is what is sent


def test_what_is_shown_of_a_run_is_what_was_sent(tmp_path, usage):
    with receiving() as server:
        log = train(config_for(server.url, tmp_path / "logs"))
        sent = arrived(server)
        code, out, err = usage(log.run_folder)

    assert code == 0
    shown = json.loads(out)
    assert [event["event"] for event in shown] == ["run-start", "run-end"]
    for one, other in zip(sent, shown, strict=True):
        assert json.dumps(one["properties"]) == json.dumps(other["properties"])
        assert (one["event"], one["timestamp"]) == (other["event"], other["timestamp"])
        assert one["distinct_id"] not in out
    assert set(sent[0]) == {*shown[0], "uuid"}
    assert err == f"Usage reports are sent to {server.url}.\n"
    assert KEY not in out + err


def test_what_is_shown_of_a_yaml_is_how_a_run_by_it_begins(tmp_path, usage):
    with receiving() as server:
        config = config_for(server.url, tmp_path / "logs")
        path = tmp_path / "train.yaml"
        path.write_text(json.dumps(config))
        code, out, _ = usage(path)
        assert server.got == []
        train(config)
        sent = arrived(server)[0]

    assert code == 0
    [shown] = json.loads(out)
    assert shown["properties"] == sent["properties"]
    assert shown["properties"]["model_name_or_path"] == "black-forest-labs/FLUX.1-dev"
    assert shown["properties"]["learning_rate"] == 0.002


# ------------------------------------------------------------ whether they are sent


@pytest.mark.parametrize(
    ("block", "environ", "said"),
    [
        ("{}", {}, "Usage reports are off: telemetry.usage_reports is not enabled."),
        (
            "{usage_reports: {host: 'https://a.example', key_env: MY_KEY}}",
            {"MY_KEY": "phc_x"},
            "Usage reports are sent to https://a.example.",
        ),
        (
            "{usage_reports: {host: 'https://a.example', key_env: MY_KEY}}",
            {"MY_KEY": "phc_x", "DO_NOT_TRACK": "yes"},
            "Usage reports are off: DO_NOT_TRACK is set.",
        ),
        (
            "{mode: offline, usage_reports: {host: 'https://a.example', key_env: MY_KEY}}",
            {"MY_KEY": "phc_x"},
            "Usage reports are off: telemetry.mode is offline.",
        ),
        (
            "{usage_reports: {host: 'https://a.example'}}",
            {},
            f"Usage reports are off: {NO_KEY}.",
        ),
    ],
)
def test_it_says_whether_they_are_sent_and_why_not(tmp_path, usage, monkeypatch, block, environ, said):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "train.yaml"
    path.write_text(f"telemetry: {block}\n")

    code, out, err = usage(path)
    assert (code, err) == (0, f"{said}\n")
    assert [event["event"] for event in json.loads(out)] == ["run-start"]


def test_a_run_is_spoken_of_as_it_was_started_whatever_the_environment_says_today(
    tmp_path, usage, monkeypatch
):
    options = {"usage_reports": {"host": "https://a.example", "key_env": "MY_KEY"}, "mode": "local"}
    monkeypatch.setenv("MY_KEY", "phc_x")
    monkeypatch.setenv("DO_NOT_TRACK", "1")
    with make_logger(tmp_path, "off", **options) as off:
        off.log_step(1, train_loss=0.5)
    monkeypatch.delenv("DO_NOT_TRACK")
    with make_logger(tmp_path, "offline", **{**options, "mode": "offline"}) as offline:
        offline.log_start(config={"telemetry": {"messages": [{"to": "slack", "url": "***"}]}})

    code, out, err = usage(off.run_folder)
    assert (code, err) == (0, "Usage reports are off: DO_NOT_TRACK is set.\n")
    assert [event["event"] for event in json.loads(out)] == ["run-start", "run-end"]
    assert usage(offline.run_folder)[2] == "Usage reports are off: telemetry.mode is offline.\n"


def test_sessions_that_differ_are_all_named(tmp_path, usage, monkeypatch):
    options = {"usage_reports": {"host": "https://a.example", "key_env": "MY_KEY"}, "resume": True}
    for session in (1, 2, 3):
        if session == 2:
            monkeypatch.setenv("AXOLOTL_DO_NOT_TRACK", "1")
        with make_logger(tmp_path, "r", **options) as log:
            log.log_step(session, train_loss=0.5)

    assert usage(log.run_folder)[2] == (
        f"Usage reports are off: {NO_KEY.replace('TELEMETRY_USAGE_KEY', 'MY_KEY')}; "
        "then off: AXOLOTL_DO_NOT_TRACK is set.\n"
    )


# ------------------------------------------------------------ the document


@pytest.mark.parametrize("event", EVENTS)
def test_the_document_names_every_property_that_can_be_sent(event):
    named = set(re.findall(r"`([$a-z_]+)`", DOCUMENT.read_text(encoding="utf-8")))

    assert {*EVENTS[event], *OF_THE_SERVICE} <= named


def test_the_yaml_of_the_document_is_a_block_that_the_logger_takes(tmp_path, usage, monkeypatch):
    monkeypatch.setenv("TELEMETRY_USAGE_KEY", "phc_x")
    [block] = blocks(DOCUMENT, "yaml")
    path = tmp_path / "train.yaml"
    path.write_text(textwrap.dedent(block.text))

    assert usage(path)[2] == "Usage reports are sent to https://eu.i.posthog.com.\n"
