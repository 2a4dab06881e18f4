"""The `telemetry` command: its list of subcommands, their help, and the generated document."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys

import pytest

from tests.project.markdown import ROOT
from toolkit.cli import commands
from toolkit.cli.document import document
from toolkit.cli.main import SUBCOMMANDS, main


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
    monkeypatch.setattr("toolkit.cli.commands.dashboard.find_spec", lambda _name: None)

    assert main(["dashboard", "--help"]) == 2
    assert capsys.readouterr().err.strip().endswith("pip install 'ai-toolkit-telemetry[dashboard]'")


def test_an_unknown_subcommand_is_rejected(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["shwo"])

    assert ended.value.code == 2
    assert "'shwo'" in capsys.readouterr().err


def test_the_version_is_the_installed_one(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])

    assert capsys.readouterr().out.startswith("telemetry ")


def test_one_subcommand_does_not_import_another():
    code = (
        "import sys; from toolkit.cli.main import main\n"
        "try: main(['repair', '--help'])\n"
        "except SystemExit: pass\n"
        "print('toolkit.cli.commands.show' in sys.modules, 'pandas' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert finished.stdout.splitlines()[-1] == "False False"


def test_every_file_in_commands_is_a_listed_subcommand():
    modules = pkgutil.iter_modules(commands.__path__)
    assert sorted(SUBCOMMANDS) == sorted(module.name.removesuffix("_") for module in modules)


def test_docs_cli_md_is_up_to_date():
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")

    assert written == document(), "run `make docs`"


def test_every_argument_is_documented():
    text = document()
    for name in SUBCOMMANDS:
        section = text.split(f"\n## telemetry {name}\n")[1].split("\n## ")[0]
        for row in section.splitlines():
            if row.startswith("| `"):
                assert not row.endswith("|  |"), f"{name} has an argument without help: {row}"


def test_the_form_of_every_json_is_documented():
    for section in document().split("\n## telemetry ")[1:]:
        assert ("| `--json` |" in section) == ("\n`--json` prints " in section), section


def test_colours_are_turned_off_before_or_behind_the_command(monkeypatch, capsys):
    for arguments in (["--no-color", "formats"], ["formats", "--no-color"]):
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
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    monkeypatch.setitem(SUBCOMMANDS, "toy", "print a word")

    try:
        assert main(["toy", "--word", "hello"]) == 0
        assert capsys.readouterr().out == "hello\n"
        assert "| [`toy`](#telemetry-toy) | print a word |" in document()
        assert "| `--word WORD` | the word to print |" in document()
    finally:
        sys.modules.pop("toolkit.cli.commands.toy", None)

    contracts = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'modules = ["toolkit.cli.commands.*"]' in contracts
