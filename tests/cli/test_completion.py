"""`telemetry completion`: the scripts, tried in the shells that are installed."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from toolkit.cli.main import SUBCOMMANDS, main

PROBE = """
COMP_WORDS=({words}); COMP_CWORD={last}; _telemetry; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def bash(capsys, tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    main(["completion", "bash"])
    script = capsys.readouterr().out
    (tmp_path / "a run").mkdir()

    def complete(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        done = subprocess.run(
            ["bash", "--norc", "-c", script + PROBE.format(words=quoted, last=len(words) - 1)],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    return complete


def test_bash_completes_commands_options_values_and_paths(bash):
    assert bash("telemetry", "comp") == ["compare", "completion", "completions"]
    assert set(SUBCOMMANDS) <= set(bash("telemetry", ""))
    assert bash("telemetry", "ls", "--de") == ["--deleted"]
    assert bash("telemetry", "--no-color", "ls", "--no") == ["--no-color"]
    assert bash("telemetry", "compare", "--to", "") == ["text", "md", "csv"]
    assert bash("telemetry", "completion", "f") == ["fish"]
    assert bash("telemetry", "show", "a") == ["a run"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_name_every_command_and_their_script_is_valid(shell, capsys, tmp_path):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in SUBCOMMANDS:
        assert name in script
    if shutil.which(shell) is not None:
        path = tmp_path / "script"
        path.write_text(script)
        assert subprocess.run([shell, "-n", str(path)], capture_output=True, text=True).stderr == ""


def test_an_unknown_shell_is_refused():
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2
