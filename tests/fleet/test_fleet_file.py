"""fleet.toml and its variables: every command takes its options from there, and a wrong key or value is named."""

from __future__ import annotations

import os
import stat
import sys

import pytest

from dashboard.launcher import parse_options
from tests.fleet.engines import ROOT
from tests.fleet.shipped_runs import id_of, log_run
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.fleet.options import COMMANDS, KEYS, VARIABLE

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no tomllib")


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No file and no variable but those of the test."""
    for name in os.environ:
        if name.startswith(VARIABLE):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_every_command_of_a_fleet_takes_its_options_from_one_file(engine, tmp_path, capsys):
    folder = log_run(tmp_path / "logs", "by-file")
    (tmp_path / "ca.pem").touch()
    (tmp_path / "fleet.toml").write_text(
        f'engine = "{engine.address()}"\nfolders = ["logs"]\nobjects = "none"\n'
        '[ship]\ndeliver-requests = true\n[dashboard]\nca = "ca.pem"\n'
    )

    for command in (["ship", "--once"], ["ship", "--status"], ["copy", id_of(folder), "--to", "back"]):
        assert main(command) == 0, capsys.readouterr().err
        assert f"options from {tmp_path / 'fleet.toml'}\n" in capsys.readouterr().err
    (tmp_path / "shared").mkdir()
    assert main(["copy", "--to", (tmp_path / "shared").as_uri()]) == 0

    [pulled] = (tmp_path / "back").iterdir()
    assert (pulled / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    assert (tmp_path / "shared" / folder.name / "run.json").exists()
    shown = parse_options([]).settings.engines[0]
    assert (shown.url, shown.ca) == (str(engine.address()), tmp_path / "ca.pem")
    assert parse_options(["--log-dir", "logs"]).settings.engines == ()


def test_set_up_of_a_team_writes_the_options_of_every_command(engine, tmp_path, monkeypatch, capsys):
    folder = log_run(tmp_path / "logs", "of-the-team")
    address = str(engine.address()).removesuffix("/telemetry")
    options = tmp_path / "secrets" / "fleet.toml"

    assert main(["ship", "--set-up", "--team", "lab", "--secrets", "secrets", "--to", address]) == 1
    options.write_text(f'folders = ["{tmp_path / "logs"}"]\n{options.read_text()}')
    monkeypatch.setenv(VARIABLE, str(options))
    for command in (["ship", "--once"], ["ship", "--status"], ["copy", "of-the-team", "--to", "back"]):
        assert main(command) == 0, capsys.readouterr().err

    [pulled] = (tmp_path / "back").iterdir()
    assert (pulled / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    assert stat.S_IMODE(options.stat().st_mode) == 0o600
    [shown] = parse_options([]).settings.engines
    assert shown.url.startswith("clickhouse://lab_page@")
    assert shown.password_file == tmp_path / "secrets" / "lab_page.password"


def test_a_flag_is_taken_before_a_variable_and_a_variable_before_the_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "logs").mkdir()

    def said(*arguments):
        assert main(["ship", *arguments]) == 2
        return capsys.readouterr().err

    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing.toml"))
    assert f"{tmp_path / 'missing.toml'}: No such file" in said("--once")
    assert "options from" not in said("--once", "--config", "also-missing.toml")
    monkeypatch.delenv(VARIABLE)
    (tmp_path / "fleet.toml").write_text(
        'engine = "clickhouse://in-file.invalid"\n[status]\nengine = "clickhouse://in-table.invalid"\n'
    )
    assert "in-file.invalid" in said("--once")
    assert "in-table.invalid" in said("--status")
    monkeypatch.setenv(f"{VARIABLE}_ENGINE", "clickhouse://in-variable.invalid")
    assert "in-variable.invalid" in said("--status")
    assert "in-flag.invalid" in said("--status", "--to", "clickhouse://in-flag.invalid")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('pasword-file = "x"', "there is no 'pasword-file'; keys: folders, engine, objects,"),
        ('[shipp]\nca = "x"', "there is no 'shipp'; keys: folders,"),
        ('[copy]\nkeep = "x"', "fleet.toml, [copy]: there is no 'keep'; keys: folders,"),
        ("engine = 5", "engine must be a text, got 5"),
        ('keep-days = "30"', "keep-days must be a whole number above 0, got '30'"),
        ("drain-timeout = true", "drain-timeout must be a whole number above 0, got True"),
        ('folders = "logs"', "folders must be a list of paths, got 'logs'"),
        ('deliver-requests = "x"', "deliver-requests must be true or false, got 'x'"),
        ('password-file = ""', "password-file must be a path, got ''"),
        ("engine = clickhouse", "fleet.toml: Invalid value (at line 1, column 10)"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_is_allowed(tmp_path, capsys, text, said):
    (tmp_path / "fleet.toml").write_text(text)

    assert main(["ship", "--once"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    with pytest.raises(SystemExit) as stopped:
        parse_options([])
    assert stopped.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PASWORD_FILE", "x", "TELEMETRY_FLEET_PASWORD_FILE: there is no 'pasword-file'"),
        (
            "KEEP_DAYS",
            "many",
            "TELEMETRY_FLEET_KEEP_DAYS: keep-days must be a whole number above 0, got 'many'",
        ),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch, capsys, name, value, said):
    monkeypatch.setenv(f"{VARIABLE}_{name}", value)

    assert main(["copy", "run"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_a_file_that_others_can_change_is_used_only_if_it_is_named(tmp_path, capsys):
    path = tmp_path / "fleet.toml"
    path.write_text('engine = "clickhouse://elsewhere.invalid"')
    path.chmod(0o666)

    assert main(["copy", "run"]) == 2
    assert (
        f"others can change {tmp_path / 'fleet.toml'}; if you trust it: --config fleet.toml"
        in capsys.readouterr().err
    )
    assert main(["copy", "run", "--config", "fleet.toml"]) == 2
    assert "elsewhere.invalid" in capsys.readouterr().err


def test_the_document_names_every_key_and_table():
    text = (ROOT / "docs" / "fleet.md").read_text("utf-8")

    assert [name for name in (*KEYS, *(f"[{name}]" for name in COMMANDS)) if f"`{name}`" not in text] == []
