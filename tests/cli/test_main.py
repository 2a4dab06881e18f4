from __future__ import annotations

import subprocess
import sys

import pytest

from toolkit.cli.main import SUBCOMMANDS, main


def test_without_a_subcommand_the_help_lists_them_all(capsys):
    code = main([])

    assert code == 2
    printed = capsys.readouterr().out
    for name, summary in SUBCOMMANDS.items():
        assert name in printed
        assert summary.split()[0] in printed


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])

    assert ended.value.code == 0
    assert f"telemetry {name}" in capsys.readouterr().out


def test_an_unknown_subcommand_is_refused_with_the_known_ones(capsys):
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
        "print('toolkit.cli.show' in sys.modules, 'pandas' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert finished.stdout.splitlines()[-1] == "False False"
