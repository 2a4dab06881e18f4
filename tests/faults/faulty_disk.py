"""A disk that fails on request: a user-space file system of ours, mounted for one test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.fault_rules import Rule, set_rules
from tests.waiting import wait_until


class FaultyDisk:
    """A folder that is shown through a file system that follows rules."""

    def __init__(self, folder: Path) -> None:
        self.shown = folder / "shown"
        self.mounted = folder / "mounted"
        self.switch = folder / "rules"
        self._server: subprocess.Popen[str] | None = None
        for place in (self.shown, self.mounted):
            place.mkdir()

    def mount(self) -> None:
        """Begin to show the folder; skips the test where that cannot be done."""
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            pytest.skip("there is no /dev/fuse that this user may open")
        self._server = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("faulty_file_system.py")]
            + [str(path) for path in (self.shown, self.mounted, self.switch)],
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: self.mounted.is_mount() or self._server.poll() is not None)
        if self._server.poll() is not None:
            said = self._server.communicate()[1].strip().splitlines()[-1:]
            pytest.skip(f"no user-space file system can be mounted here, only root may: {said}")

    def fail(self, *rules: Rule) -> None:
        """Follow these rules from now on."""
        set_rules(self.switch, *rules)

    def heal(self) -> None:
        """Follow none."""
        self.switch.unlink(missing_ok=True)

    @property
    def hits(self) -> int:
        """How many calls a rule was followed for."""
        counted = Path(f"{self.switch}.hits")
        return int(counted.read_text() or 0) if counted.exists() else 0

    def die(self) -> None:
        """End as a crashed file server does: whoever has files open finds them dead."""
        server, self._server = self._server, None
        if server is not None:
            server.kill()
            server.communicate()

    def unmount(self) -> None:
        """Take it away."""
        self.heal()
        subprocess.run(["umount", "-l", str(self.mounted)], capture_output=True)
        self.die()
