"""What leaves the machine in which mode."""

from __future__ import annotations

import pytest

from tests.records import read_records, with_event
from tests.telemetry.logged import make_logger
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.options import OptionsError, TelemetryOptions

SENDS = {
    "otlp": "http://collector.example:4318/v1/traces",
    "messages": [{"to": "slack", "url_env": "SLACK_WEBHOOK"}],
    "usage_reports": {"host": "https://eu.i.posthog.com"},
}


def test_offline_sends_nothing_and_says_once_what_it_does_not(tmp_path, capsys):
    log = TelemetryLogger("run", log_dir=tmp_path, mode="offline", system=False, close_timeout=60.0, **SENDS)
    log.log_step(0, train_loss=1.0)
    log.close()

    assert capsys.readouterr().err.splitlines() == [
        "[telemetry] mode is offline: telemetry.messages, telemetry.usage_reports, telemetry.otlp will not be sent"
    ]
    records = read_records(tmp_path / "run")
    assert not with_event(records, "message")
    assert not with_event(records, "error")
    assert not [name for name in log.guard.counts if "otlp" in name]


@pytest.mark.parametrize(
    ("given", "taken"), [(None, "offline"), ("online", "offline"), ("disabled", "disabled")]
)
def test_offline_keeps_the_wandb_mirror_on_the_machine(given, taken):
    assert TelemetryOptions(mode="offline", wandb=True, wandb_mode=given).wandb_mode == taken


@pytest.mark.parametrize(
    "address", ["http://localhost:4318/v1/traces", "http://127.0.0.1:1/", "http://[::1]:1/"]
)
def test_offline_still_speaks_to_this_machine(address):
    assert TelemetryOptions(mode="offline", otlp=address).not_sent == []


@pytest.mark.parametrize("host", ["127.example.org", "localhost.example.org", "10.0.0.1", "collector"])
def test_offline_is_not_fooled_by_a_name_that_looks_like_this_machine(host):
    assert TelemetryOptions(mode="offline", otlp=f"http://{host}:4318/v1/traces").not_sent == ["otlp"]


# ---------------------------------------------------------------- the environment, and what is printed


@pytest.mark.parametrize(
    ("mode", "given", "is_live", "may_send"),
    [
        ("disabled", "local", False, False),
        ("offline", "local", True, False),
        ("local", "offline", True, False),
        ("local", "disabled", False, False),
        ("", "local", True, True),
    ],
)
def test_the_mode_of_the_environment_can_only_restrict(tmp_path, monkeypatch, mode, given, is_live, may_send):
    monkeypatch.setenv("TELEMETRY_MODE", mode)
    with make_logger(tmp_path, mode=given) as log:
        assert (log.is_live, log._options.may_send) == (is_live, may_send)


def test_the_log_directory_of_the_environment_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("TELEMETRY_LOG_DIR", str(tmp_path / "there"))
    with TelemetryLogger("r", system=False) as log, TelemetryLogger("r", tmp_path, system=False) as other:
        assert (log.run_folder, other.run_folder) == (tmp_path / "there" / "r", tmp_path / "r")


@pytest.mark.parametrize("off", ["off", "OFF", "0", "false", "no", "none", "disable"])
def test_a_mode_that_says_off_is_disabled(tmp_path, monkeypatch, off):
    assert not make_logger(tmp_path, mode=False).is_live
    monkeypatch.setenv("TELEMETRY_MODE", off)

    assert not make_logger(tmp_path, mode=True).is_live


@pytest.mark.parametrize(("name", "value"), [("MODE", "cloud"), ("QUIET", "maybe"), ("SHARE", "all")])
def test_a_wrong_variable_is_refused_by_its_name(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(f"TELEMETRY_{name}", value)
    with pytest.raises(OptionsError, match=f"TELEMETRY_{name} is '{value}'; it must be one of"):
        make_logger(tmp_path)


@pytest.mark.parametrize(("variable", "option"), [("1", False), ("", True), ("0", False)])
def test_a_quiet_run_prints_nothing_but_mistakes(tmp_path, monkeypatch, capsys, caplog, variable, option):
    monkeypatch.setenv("TELEMETRY_QUIET", variable)
    with make_logger(tmp_path, quiet=option) as log:
        log.log_step(-1)
    printed = capsys.readouterr()

    assert ("run_name=r" in printed.out) == (variable == "0")
    assert printed.err == ""
    assert "step -1 is negative" in caplog.text
