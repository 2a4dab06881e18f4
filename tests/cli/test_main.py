"""The `telemetry` command: its list of subcommands, their help, and the generated document."""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.cli.pseudo_terminal import PseudoTerminal
from tests.cli.runs import main_as, write_run
from tests.project.command_docs import document
from tests.project.markdown import ROOT
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.commands import look
from toolkit.telemetry.cli.main import (
    GROUPS,
    RENAMED,
    SUBCOMMANDS,
    grouped,
    main,
    parser_of,
    parser_of_all,
)
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.runfolder.labels import Labels, write_labels


def test_without_a_subcommand_the_help_lists_all_of_them(capsys):
    code = main([])

    assert code == 2
    printed = capsys.readouterr().out
    for name, summary in SUBCOMMANDS.items():
        assert name in printed
        assert summary.split()[0] in printed


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_has_a_help_page(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])

    assert ended.value.code == 0
    assert f"telemetry {name}" in capsys.readouterr().out


def test_the_dashboard_gets_its_options_as_they_are(capsys):
    assert main(["dashboard", "--store", "http://127.0.0.1", "--no-browser"]) == 2
    assert "telemetry dashboard: --store: the address must have the form" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["dashboard", "--no-such-option"])
    assert ended.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err


def test_without_the_dashboard_its_command_says_how_to_install_it(capsys, monkeypatch):
    monkeypatch.setattr("toolkit.telemetry.cli.commands.look.dashboard.find_spec", lambda _name: None)

    assert main(["dashboard", "--help"]) == 2
    assert capsys.readouterr().err.strip().endswith(install_extra("dashboard"))


def test_no_name_controls_the_terminal_whatever_prints_it(tmp_path, capsys):
    nasty = "a\x1b[31mb\x1b]0;t\x07\x9b2J\u202e"
    place = tmp_path / nasty
    config = {nasty: 1}
    run = write_run(place, "run", [0.5, math.nan], config=config)
    write_run(place, "other", [0.4], config={nasty: 2})
    write_labels(run, Labels(display_name=nasty))
    with TelemetryLogger("more", log_dir=place, log_every=1, system=False, output=True) as log:
        print(nasty)
        log.log_step(1, train_loss=0.5, **{nasty: 1.0})
    more, gone = str(log.run_folder), str(place / nasty)
    capsys.readouterr()

    for command in (
        *(["ls", str(place), *columns] for columns in ([], ["--columns", f"= {nasty}"], ["--sort", nasty])),
        *([name, str(run)] for name in ("doctor", "status", "tail", "why", "rm")),
        *([name, more] for name in ("show", "logs", "time")),
        *([name, gone] for name in ("show", "ls", "doctor", "export", "logs", "repair", "gc")),
        ["show", more, "--metrics", "*"],
        ["show", str(run), "--errors"],
        ["compare", str(place)],
        ["sql", f"select 1 as \"{nasty}\", '{nasty}' as b, * from steps", str(place)],
        ["sql", f"select {nasty}", str(place)],
        ["sql", "select 1", "--parquet", f"{gone}/x", str(place)],
        [nasty],
        ["ls", f"--{nasty}"],
    ):
        with suppress(SystemExit):
            main(command)
        said = "".join(capsys.readouterr())
        assert said, command
        assert set(said) & set("\x1b\x07\x9b\u202e") == set(), command


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["shw"], "there is no command 'shw'; did you mean show?"),
        (["ls", "--limt", "3"], "unknown: --limt; did you mean --limit?"),
        (["tail", "-n", "9" * 20], f"--rows: '{'9' * 20}' is not a whole number from 1 to 1,000,000,000"),
        (["ls", "--limit", "x"], "--limit: 'x' is not a whole number"),
        (["ask", "--timeout", "soon"], "--timeout: 'soon' is not a number of seconds above 0"),
    ],
)
def test_a_mistake_in_the_command_line_is_refused_with_what_is_allowed(arguments, hint, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert hint in capsys.readouterr().err


def test_every_subcommand_is_in_one_group_of_the_help_and_list_means_ls(tmp_path, capsys):
    assert sorted(name for names in grouped().values() for name in names) == sorted(SUBCOMMANDS)
    assert main(["list", str(tmp_path)]) == main(["ls", str(tmp_path)]) == 2


def test_any_text_is_printed_and_a_reader_that_is_gone_is_no_failure(tmp_path):
    run = write_run(tmp_path, "run", [0.5] * 3000)
    write_labels(run, Labels(display_name="näme"))
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "toolkit.telemetry.cli"]
    listed = subprocess.run([*command, "ls", tmp_path], env=environ, capture_output=True, check=True)
    assert "näme".encode("ascii", "backslashreplace") in listed.stdout

    closed = f"{sys.executable} -m toolkit.telemetry.cli ls {tmp_path} >&- 2>&-"
    assert subprocess.run(["bash", "-c", closed], env=environ).returncode == 0

    with subprocess.Popen(
        [*command, "tail", run, "-n", "3000"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as tail:
        assert b"step" in tail.stdout.readline()
        tail.stdout.close()
        assert (tail.wait(), tail.stderr.read()) == (0, b"")


def test_a_table_may_be_as_wide_as_the_terminal():
    script = "from toolkit.telemetry.cli.terminal import *; write_any_text(); print('wide', terminal_width())"
    terminal = PseudoTerminal([sys.executable, "-c", script], columns=132)
    try:
        assert terminal.wait_for_end() == 0
        assert b"wide 132" in terminal.seen
    finally:
        terminal.close()


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    "arguments",
    [["show", "RUN"], ["show", "RUN", "--json"], ["report", "RUN", "--html", "NO"], ["ls", "RUN"]],
)
def test_what_may_not_be_read_or_written_is_said_in_a_sentence(tmp_path, arguments):
    os.chmod(tmp_path, 0o755)
    run = write_run(tmp_path, "run", [0.5])
    names = {"RUN": str(run), "NO": str(tmp_path / "no" / "report.html")}
    code, said = main_as(65534, *(names.get(word, word) for word in arguments))

    assert code in (1, 2)
    assert "Traceback" not in said
    assert "ermission denied" in said


@pytest.mark.parametrize(
    "command",
    [
        *("ask", "compare", "doctor", "export --to csv", "forecast", "logs", "ls", "report", "setup usage"),
        *("show", "show --completions", "show --errors", "status", "tail", "time", "why", "repair"),
    ],
)
def test_where_there_is_no_run_the_reason_is_one_sentence(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for path, reason in (
        ([str(tmp_path)], f"no run found in {tmp_path}"),
        ([], "no run found in logs (it does not"),
    ):
        assert main([*command.split(), *path]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert reason in err
        assert err.count("\n") == 1


def test_the_version_is_the_installed_one(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])

    assert capsys.readouterr().out.startswith("telemetry ")


def test_docs_cli_md_is_up_to_date():
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")

    assert written == document(), "run `make docs`"


def test_every_argument_is_described_by_the_help():
    def undescribed(parser):
        for action in parser._actions:
            for form in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
                yield from undescribed(form)
            if not action.help and not isinstance(action, argparse._SubParsersAction):
                yield parser.prog, action.dest

    assert [*undescribed(parser_of_all())] == []


@pytest.mark.parametrize("old", RENAMED)
def test_an_earlier_name_says_the_new_one_which_there_is(old, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*old.split(), "run"])

    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"`telemetry {old}` is `{RENAMED[old]}` now\n")
    program, name, *rest = RENAMED[old].split()
    if program == "python":
        assert (ROOT / name).is_file()
        return
    forms = parser_of(name).format_help()
    assert [word for word in rest[:1] if word not in forms] == []


def test_colours_are_turned_off_before_or_after_the_command(monkeypatch, capsys):
    for arguments in (["--no-color", "ls", "--formats"], ["ls", "--formats", "--no-color"]):
        monkeypatch.setenv("NO_COLOR", "")
        assert main(arguments) == 0
        assert os.environ["NO_COLOR"] == "1"
    capsys.readouterr()


TOY = '''
"""`telemetry toy`: print a word."""


def add_arguments(parser):
    parser.add_argument("--word", metavar="WORD", default="toy", help="the word to print")


def run(args):
    print(args.word)
    return 0
'''


def test_a_subcommand_is_added_with_one_file_and_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(look, "__path__", [*look.__path__, str(tmp_path)])
    monkeypatch.setitem(GROUPS, "look", (GROUPS["look"][0], f"{GROUPS['look'][1]} toy"))
    monkeypatch.setitem(SUBCOMMANDS, "toy", "print a word")

    try:
        assert main(["toy", "--word", "hello"]) == 0
        assert capsys.readouterr().out == "hello\n"
        assert "- `toy`: print a word" in document()
    finally:
        sys.modules.pop("toolkit.telemetry.cli.commands.look.toy", None)

    contracts = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'modules = ["toolkit.telemetry.cli.commands.*.*"]' in contracts
