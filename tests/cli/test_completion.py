"""`telemetry setup completion`: the scripts, tried in the shells that are installed."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from toolkit.telemetry.cli.main import SUBCOMMANDS, main

PROBE = """
COMP_WORDS=({words}); COMP_CWORD={last}; COMP_LINE="{line}"; COMP_POINT=${{#COMP_LINE}}
_shtab_telemetry telemetry "{current}" "{before}"; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def bash(capsys, tmp_path):
    pytest.importorskip("shtab")
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    main(["setup", "completion", "bash"])
    script = capsys.readouterr().out
    (tmp_path / "a_run").mkdir()

    def complete(*words: str) -> list[str]:
        probe = PROBE.format(
            words=" ".join(f"'{word}'" for word in words),
            last=len(words) - 1,
            line=" ".join(words),
            current=words[-1],
            before=words[-2],
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", script + probe], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        return done.stdout.split()

    return complete


def test_bash_completes_commands_options_values_and_paths(bash):
    assert bash("telemetry", "s") == ["setup", "ship", "show", "sql", "status"]
    assert set(SUBCOMMANDS) <= set(bash("telemetry", ""))
    assert bash("telemetry", "ls", "--de") == ["--deleted"]
    assert bash("telemetry", "show", "--format", "ta") == ["table"]
    assert bash("telemetry", "setup", "completion", "f") == ["fish"]
    assert bash("telemetry", "show", "a") == ["a_run"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_name_every_command(shell, capsys):
    pytest.importorskip("shtab")
    assert main(["setup", "completion", shell]) == 0
    script = capsys.readouterr().out
    assert [name for name in SUBCOMMANDS if name not in script] == []


def test_without_shtab_the_command_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)

    assert main(["setup", "completion", "bash"]) == 2
    assert "pip install shtab" in capsys.readouterr().err
