"""What every command's tests use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from toolkit.telemetry.cli.main import main


@pytest.fixture
def telemetry(capsys) -> Callable[..., tuple[int, str, str]]:
    """Run a command and return its exit code, what it printed, and what it said on stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*map(str, arguments)])
        return code, *capsys.readouterr()

    return call
