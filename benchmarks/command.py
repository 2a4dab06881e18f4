"""The command line that every benchmark shares."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.contenders import ALL, Contender
from benchmarks.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How thoroughly to measure, and what."""

    quick: bool = False
    """A short run: an order of magnitude, not a figure to quote."""
    only: tuple[str, ...] = ()
    """Names of what to measure; empty means all."""

    @property
    def is_full(self) -> bool:
        """Whether the figures can be quoted: nothing shortened, no contender left out."""
        return not self.quick and not self.only

    def choose(self, contenders: Iterable[Contender]) -> tuple[list[Contender], list[str]]:
        """Return the `contenders` to measure, and a note for each that is not installed."""
        asked = [contender for contender in contenders if not self.only or contender.name in self.only]
        present = [contender for contender in asked if not contender.missing]
        absent = [
            f"{contender.title}: not measured, {' and '.join(contender.missing)} not installed"
            for contender in asked
            if contender.missing
        ]
        return present, absent


def parse(names: Iterable[str] = ALL) -> Options:
    """Parse the command line; `names` are what can be measured alone."""
    parser = argparse.ArgumentParser(description="Measure the logger and its peers in one session.")
    parser.add_argument("--quick", action="store_true", help="a short run with few repeats")
    parser.add_argument("--only", nargs="+", default=(), choices=sorted(names), help="measure only these")
    args = parser.parse_args()
    return Options(quick=args.quick, only=tuple(args.only))


def run_alone(build: Callable[[Options], Report], names: Iterable[str] = ALL) -> None:
    """Run one benchmark: print its results and write its JSON."""
    options = parse(names)
    # If terminated, still stop servers and browsers, and remove the folders.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = build(options)
    report.show()
    report.save(quotable=options.is_full)


def say(text: str) -> None:
    """Print what is being measured."""
    print(f"  … {text}", file=sys.stderr, flush=True)
