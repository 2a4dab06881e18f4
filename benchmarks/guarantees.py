"""Put the latest figures of the fault, attack, load and fuzz tests into the documents.

`python -m benchmarks.guarantees REPORT.xml` reads a pytest report (--junitxml) from `make faults`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.child import ROOT

DOCUMENTS = (ROOT / "docs" / "guarantees.md", ROOT / "docs" / "threats.md")

_PROOF = re.compile(r"^- `(?P<test>tests/\S+\.py::\w+)`(?:: (?P<figure>.*))?$")

_RUN_AS_A_WHOLE = ("tests/faults/", "tests/attacks/", "tests/load/")
"""Folders that `make faults` runs completely; of the others it runs only the tests named in the documents."""


def counted_in(report: Path) -> dict[str, list[str]]:
    """Return what the cases of each test function in a report measured, by its pytest name.

    A case says it by `record_property("measured", …)`; the text is empty for a case that measured nothing.

    Raises:
        ValueError: a test failed, so the figures prove nothing.
    """
    tests: dict[str, list[str]] = {}
    # Written by our own pytest, so the XML is trusted.
    for case in ElementTree.parse(report).iter("testcase"):
        # A module skipped as a whole is a case without a test.
        if not case.get("classname"):
            continue
        name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name'].partition('[')[0]}"
        if case.find("failure") is not None or case.find("error") is not None:
            raise ValueError(f"{name} failed")
        # A test that needs another machine (a GPU) keeps the figure from there.
        if case.find("skipped") is None:
            said = [one.attrib["value"] for one in case.iter("property") if one.attrib["name"] == "measured"]
            tests.setdefault(name, []).extend(said or [""])
    return tests


def figure_of(measured: Sequence[str]) -> str:
    """Return the figure shown after a test's name."""
    phrases = [phrase for phrase in dict.fromkeys(measured) if phrase]
    if not phrases:
        return f"{len(measured):,} {'case' if len(measured) == 1 else 'cases'}"
    return phrases[0] + (f"; and {len(phrases) - 1} more" if len(phrases) > 1 else "")


def tests_in(document: str) -> set[str]:
    """Return the tests that a document names."""
    return {match["test"] for line in document.splitlines() if (match := _PROOF.match(line))}


def with_figures(document: str, tests: Mapping[str, Sequence[str]]) -> str:
    """Return the document with the latest figures, where it shows one; a test that was not run keeps its figure."""

    def line_for(line: str) -> str:
        match = _PROOF.match(line)
        if match is None or not match["figure"] or match["test"] not in tests:
            return line
        return f"- `{match['test']}`: {figure_of(tests[match['test']])}"

    return "\n".join(line_for(line) for line in document.split("\n"))


def _named() -> set[str]:
    return {name for path in DOCUMENTS for name in tests_in(path.read_text("utf-8"))}


def main(argv: Sequence[str]) -> int:
    """Write the figures of one or more reports into the documents."""
    if argv == ["--other-tests"]:
        print(*sorted(name for name in _named() if not name.startswith(_RUN_AS_A_WHOLE)))
        return 0
    tests: dict[str, list[str]] = {}
    for report in argv:
        try:
            tests |= counted_in(Path(report))
        except ValueError as error:
            print(f"{report}: {error}; its figures are not used", file=sys.stderr)
            return 1
    for path in DOCUMENTS:
        path.write_text(with_figures(path.read_text("utf-8"), tests), encoding="utf-8")
    named = _named()
    print(f"{len(named & tests.keys())} of the {len(named)} tests that the documents name were run")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
