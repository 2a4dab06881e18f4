"""What a shared bundle contains and what was replaced in it, for the person who gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

REDACTIONS: Final = "redactions.json"
README: Final = "README.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a bundle."""

    folder: str
    """The folder that it unpacks to."""
    records: Mapping[str, int]
    """How many records each of its record files has."""
    members: tuple[str, ...]
    replaced: Mapping[str, int]
    """How often something of each kind was replaced."""
    places: tuple[tuple[str, str, int], ...]
    """Kind, field and number of what was replaced."""
    lines_left_out: int
    """Invalid lines, which could not be redacted."""
    left_out: tuple[str, ...]
    texts: tuple[tuple[str, str], ...]
    """Some texts that were kept and are not plain words, with their fields: a person should review them."""


def list_of_redactions(contents: Contents) -> bytes:
    """Return what was replaced as JSON: kinds, fields and numbers, never the values."""
    listed = {
        "replaced": dict(contents.replaced),
        "where": [{"kind": kind, "field": field, "count": count} for kind, field, count in contents.places],
        "lines_left_out": contents.lines_left_out,
        "left_out": list(contents.left_out),
    }
    return orjson.dumps(listed, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def readme(contents: Contents) -> str:
    """Return the README of the bundle."""
    replaced = [f"  {kind:8} {count:>7,}" for kind, count in contents.replaced.items()]
    return "\n".join(
        [
            "A training run, redacted so that it can be posted.",
            "",
            "metrics.jsonl    every record of the run, one JSON object a line",
            "metrics.csv      the same as one wide table: pandas.read_csv opens it",
            "run.json         what the run is, and how it ended",
            "redactions.json  what was replaced, how often, in which field",
            "",
            "Put this folder into a folder of runs, and the dashboard shows it:",
            "  telemetry doctor .",
            "  python run_dashboard.py --log-dir <the folder above this one>",
            "",
            "The same private text has the same placeholder everywhere: <path-1> is always the same path.",
            "Secrets read ***. Replaced, by kind:" if replaced else "Nothing had to be replaced.",
            *replaced,
            "",
            f"Left out: {', '.join(contents.left_out)}." if contents.left_out else "No file was left out.",
            f"Invalid lines, left out: {contents.lines_left_out:,}.",
            "",
        ]
    )
