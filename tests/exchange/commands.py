"""Runs `telemetry` commands that print JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolkit.telemetry.cli.main import main


def telemetry(capsys, *arguments, code=0):
    """Return what a command prints as JSON."""
    capsys.readouterr()
    found = main([*map(str, arguments), "--json"])
    printed = capsys.readouterr()
    assert found == code, printed
    return json.loads(printed.out, parse_constant=pytest.fail)


def files_in(folder):
    """Return the content of every file below `folder`."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }
