"""The command line that every benchmark shares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.contenders import ALL, Contender
from benchmarks.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How thoroughly to measure, and whom."""

    quick: bool = False
    """A short look: the order of magnitude, not a figure to quote."""
    only: tuple[str, ...] = ()
    """Names of the contenders to measure; empty means all."""

    @property
    def is_full(self) -> bool:
        """Whether the figures are fit to quote: nothing shortened, nobody left out."""
        return not self.quick and not self.only

    def choose(self, contenders: Iterable[Contender]) -> tuple[list[Contender], list[str]]:
        """Return those of `contenders` that take part, and a sentence for each that is not installed."""
        asked = [contender for contender in contenders if not self.only or contender.name in self.only]
        present = [contender for contender in asked if not contender.missing]
        absent = [
            f"{contender.title}: not measured, {' and '.join(contender.missing)} not installed"
            for contender in asked
            if contender.missing
        ]
        return present, absent


def parse(argv: Sequence[str] | None = None) -> Options:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure the logger beside its peers, in one sitting.")
    parser.add_argument("--quick", action="store_true", help="a short look, with few repeats")
    parser.add_argument("--only", nargs="+", default=(), choices=sorted(ALL), help="measure these only")
    args = parser.parse_args(argv)
    return Options(quick=args.quick, only=tuple(args.only))


def run_alone(build: Callable[[Options], Report]) -> None:
    """Run one benchmark by itself: print what it found and leave its JSON."""
    options = parse()
    report = build(options)
    report.show()
    report.save(quotable=options.is_full)


def say(text: str) -> None:
    """Tell whoever waits what is being measured now."""
    print(f"  … {text}", file=sys.stderr, flush=True)
