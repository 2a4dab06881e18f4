"""Which call on which file goes wrong, and how: read from a file that a test changes while a run writes.

A rule is a JSON object: `op` (open, write, fsync, rename or any), `do` (hang, slow, short, or the name of an error
such as EIO), and where wanted `path` (only files whose path contains it), `calls` (only so many), and `old` (only files
that were open before the rule came: what a file server that lost its handles does).
"""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

SLOW_S = 0.05

Rule = dict[str, object]


def set_rules(switch: Path, *rules: Rule) -> None:
    """Have these rules, and no others, from now on."""
    new = switch.with_suffix(".new")
    new.write_text(json.dumps(rules))
    os.replace(new, switch)


class Rules:
    """The rules of one file, and how often each was followed."""

    def __init__(self, switch: Path | str) -> None:
        self.hits = 0
        self._switch = str(switch)
        self._known: tuple[int, int] | None = None
        self._rules: list[Rule] = []
        self._left: list[float] = []
        self.since = 0.0

    def meet(self, op: str, path: str, opened: float = 0.0) -> bool:
        """Do what a rule says of this call: wait, raise its error, or return whether only a part is to be taken."""
        while (rule := self._rule_for(op, path, opened)) is not None:
            self.hits += 1
            what = str(rule["do"])
            if what == "hang":
                time.sleep(0.02)
                continue
            if what == "slow":
                time.sleep(SLOW_S)
                return False
            if what == "short":
                return True
            number = getattr(errno, what)
            raise OSError(number, os.strerror(number))
        return False

    def _rule_for(self, op: str, path: str, opened: float) -> Rule | None:
        self._read_rules()
        for number, rule in enumerate(self._rules):
            if rule["op"] not in (op, "any") or str(rule.get("path", "")) not in path:
                continue
            if rule.get("old") and opened > self.since:
                continue
            if self._left[number] > 0:
                self._left[number] -= rule["do"] != "hang"
                return rule
        return None

    def _read_rules(self) -> None:
        try:
            status = os.stat(self._switch)
            version = (status.st_mtime_ns, status.st_ino)
            if version == self._known:
                return
            with open(self._switch) as file:
                rules = json.load(file)
        except FileNotFoundError:
            self._known, self._rules = None, []
            return
        self._left = [float(rule.get("calls", "inf")) for rule in rules]
        self._rules, self._known, self.since = rules, version, time.monotonic()
