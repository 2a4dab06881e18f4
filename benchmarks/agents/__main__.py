"""Ask the MCP server 80 questions about 40 folders and check the sources; `make agents-eval` writes the figures.

Then 30 folders with instructions in their texts: whatever they say must stay inside the fence, and nothing may happen.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio

from benchmarks.agents import checker, folders
from benchmarks.agents.client import Asker, server
from benchmarks.agents.questions import FOREIGN_ASKED, Question, questions, runs_in
from benchmarks.command import say
from benchmarks.figures import APPENDICES, put_between_marks
from tests.importers.samples import fingerprint
from toolkit.telemetry.agents.answer import USUAL_TOKENS, count_tokens

DOCUMENT: Final = APPENDICES / "agents.md"
BEGIN: Final = "<!-- agents: written by make agents-eval -->"
_COMMANDS: Final = {
    "list": ["ls", "{folder}", "--json"],
    "describe": ["show", "{run}", "--json"],
    "compare": ["compare", "{run}", "{other}", "--json"],
    "doctor": ["doctor", "{run}", "--json"],
    "resume": ["resume", "{run}", "--json"],
    "why": ["why", "{run}", "{other}", "--json"],
    "forecast": ["forecast", "{run}", "--json"],
    "logs": ["logs", "{run}", "--json"],
}
"""What prints the same for scripts; a curve has no command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, check, print the figures and write them; a short run writes nothing."""
    parser = argparse.ArgumentParser(description="Ask the MCP server questions with known answers.")
    parser.add_argument("--quick", action="store_true", help="a short run: no figures to quote, none written")
    parser.add_argument(
        "--texts", metavar="FILE", type=Path, help="also write every answer to this JSON file"
    )
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="agents-eval-") as name:
        root = Path(name)
        for part in ("ours", "foreign", "injected"):
            (root / part).mkdir()
        say("making run folders")
        names = folders.make_ours(root / "ours", quick=args.quick)
        official = folders.make_foreign(root / "foreign")
        injected = folders.make_injected(root / "injected")
        found = anyio.run(_measure, root, official, args.quick)
    texts, figures, is_good = found
    if args.texts is not None:
        args.texts.write_text(json.dumps(texts))
    assert (len(names), len(official), len(injected)) == (28, 12, 30)
    print(figures)
    if not args.quick:
        document = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(put_between_marks(document, figures, BEGIN), encoding="utf-8")
        print(f"{DOCUMENT.name}: figures written", file=sys.stderr)
    return 0 if is_good else 1


async def _measure(root: Path, official: dict[str, Any], quick: bool) -> tuple[list[str], str, bool]:
    texts: list[str] = []
    async with server([root / "ours", *sorted((root / "foreign").iterdir())]) as asker:
        say("asking")
        asked = questions(root / "ours", await _keys(asker, official), official, root / "foreign")
        rows, problems = await _ask_all(asker, asked, official, texts)
    say("what the same takes without the server")
    floors = [] if quick else [_floors(question, root) for question, _, _ in rows]
    async with server([root / "injected"], "--allow-requests") as asker:
        say("reading folders with instructions")
        tries = await _ask_injected(asker, root / "injected", texts)
    return texts, *_document(rows, problems, floors, tries)


async def _keys(asker: Asker, official: dict[str, Any]) -> dict[str, str]:
    """Return the key of the run that is meant in each folder of another tool."""
    text, _ = await asker.ask("list", limit=500, max_tokens=20_000, query="-format:telemetry")
    files = (checker.split(text) or ({},))[0]["files"]
    keys = {}
    for folder, (at, _) in FOREIGN_ASKED.items():
        run = runs_in(official[folder])[at]
        own = run.get("run_id") or run.get("file") or run["run"]
        mine = {key: paths for key, paths in files.items() if f"/{folder}" in paths[0]}
        exact = [key for key, paths in mine.items() if any(f"{path}/".find(f"/{own}/") > 0 for path in paths)]
        keys[folder] = (exact or [*mine])[0]
    return keys


Row = tuple[Question, int, bool]
"""A question, the tokens of its answer, and whether that is right."""


async def _ask_all(
    asker: Asker, asked: Sequence[Question], official: dict[str, Any], texts: list[str]
) -> tuple[list[Row], checker.Problems]:
    problems, rows = checker.Problems(), []
    for question in asked:
        text, is_error = await asker.ask(question.tool, **question.arguments)
        texts.append(text)
        parts = checker.split(text)
        is_right = False
        if parts is None or is_error:
            problems.append(f"{question.text}: no answer in the right form: {text[:300]}")
        else:
            checker.check(parts[0], official.get(question.folder, {}), problems, question.text)
            try:
                is_right = question.is_right(parts[0])
            except (KeyError, IndexError, StopIteration, ValueError, TypeError) as error:
                say(f"{question.text} {error!r}")
        if not is_right:
            say(f"wrong: {question.text} {text[:600]}")
        rows.append((question, count_tokens(text), is_right))
    return rows, problems


def _floors(question: Question, root: Path) -> tuple[int, int | None]:
    """Return the tokens of the raw files, and of what the command prints for scripts."""
    raw = 0
    for run in question.runs:
        files = [run / "metrics.jsonl"] if (run / "metrics.jsonl").exists() else [*run.rglob("*")]
        raw += sum(
            count_tokens(path.read_bytes().decode("utf-8", "replace")) for path in files if path.is_file()
        )
    if question.tool not in _COMMANDS:
        return raw, None
    run, other = question.runs[0], question.runs[-1]
    command = [word.format(folder=root / "ours", run=run, other=other) for word in _COMMANDS[question.tool]]
    done = subprocess.run(
        [sys.executable, "-m", "toolkit.telemetry.cli", *command], capture_output=True, check=False
    )
    return raw, count_tokens(done.stdout.decode())


# ------------------------------------------------------------ instructions


def _fingerprints(root: Path) -> dict[str, str]:
    return {path.name: fingerprint(path) for path in root.iterdir()}  # type: ignore[no-untyped-call]


async def _ask_injected(asker: Asker, root: Path, texts: list[str]) -> Counter[str]:
    """Ask every tool about every folder; return how often something went wrong."""
    before = _fingerprints(root)
    counts = Counter[str](answers=0, with_instructions=0, unfenced=0, unasked=0, changed=0)
    text, _ = await asker.ask("list", limit=500, max_tokens=20_000)
    parts = checker.split(text)
    assert parts is not None
    keys = [*parts[0]["files"]]
    for key in keys:
        calls: list[tuple[str, dict[str, Any]]] = [
            (tool, {"run": key}) for tool in ("describe", "doctor", "resume", "forecast", "logs")
        ]
        calls += [("curve", {"run": key, "metric": metric}) for metric in ("train_loss", "no such metric")]
        calls += [("compare", {"runs": [key, keys[0]]}), ("why", {"a": key, "b": keys[0]})]
        calls += [("verdict", {"new": [key], "against": [keys[0]]}), ("describe", {"run": f"{key} x"})]
        calls += [
            ("list", {"limit": 500, "max_tokens": 20_000, "query": "loss<1e9", "metrics": ["train_loss"]})
        ]
        calls += [("sql", {"query": f"select * from {table}"}) for table in ("runs", "settings", "findings")]
        for tool, arguments in calls:
            text, _ = await asker.ask(tool, **arguments)
            texts.append(text)
            counts["answers"] += 1
            counts["with_instructions"] += folders.CANARY in text
            parts = checker.split(text)
            # Our own words never have a text of a run, and nothing invisible is left.
            is_outside = parts is None or folders.CANARY in parts[1]
            is_hidden = any(not one.isprintable() and one != "\n" for one in text)
            counts["unfenced"] += is_outside or is_hidden
            if is_outside or is_hidden:
                say(f"unfenced: {tool} {arguments} {text[:400]!r}")
    counts["unasked"] = len(asker.unasked)
    after = _fingerprints(root)
    counts["changed"] = sum(before[name] != after.get(name) for name in before) + len(
        after.keys() - before.keys()
    )
    counts["folders"] = len(before)
    return counts


# ------------------------------------------------------------ document


def _document(
    rows: Sequence[Row],
    problems: checker.Problems,
    floors: Sequence[tuple[int, int | None]],
    tries: Counter[str],
) -> tuple[str, bool]:
    right = [row for row in rows if row[2] and row[1] <= USUAL_TOKENS]
    sizes = sorted(row[1] for row in rows)
    about = {path.name for row in rows for path in row[0].runs}
    asked = f"{len(rows)} questions about {len(about)} folders, 12 of other tools, each asked by one call"
    lines = [
        f"{asked} through a real client with the usual budget:",
        f"**{len(right)} right** in at most {USUAL_TOKENS:,} tokens (median {median(sizes):.0f}, most {sizes[-1]:,}).",
        f"{problems.numbers:,} numbers were looked up where the answers say they are, and {problems.derived:,} ranges",
        f"of inputs: **{len(problems)} wrong**.",
        "",
        "| tool | questions | right | median tokens | most |",
        "| --- | --- | --- | --- | --- |",
    ]
    for tool in dict.fromkeys(row[0].tool for row in rows):
        own = [row for row in rows if row[0].tool == tool]
        tokens = [row[1] for row in own]
        good = sum(row in right for row in own)
        lines.append(f"| `{tool}` | {len(own)} | {good} | {median(tokens):.0f} | {max(tokens):,} |")
    if floors:
        raw = [floor[0] for floor in floors]
        printed = [floor[1] for floor in floors if floor[1] is not None]
        lines += [
            "",
            f"Without the server, the files of these runs are {median(raw):,.0f} tokens (median; most {max(raw):,}),",
            f"and what the commands print with `--json` {median(printed):,.0f} (most {max(printed):,}).",
        ]
    lines += [
        "",
        f"{tries['folders']} folders with instructions in names, notes, tags, settings, metric names, output,",
        f"completions, findings, errors and file names, with `--allow-requests`: {tries['answers']:,} answers,",
        f"{tries['with_instructions']:,} of them with such a text; **{tries['unfenced']} outside of the fence**,",
        f"{tries['changed']} folders changed, {tries['unasked']} messages that the server sent unasked.",
    ]
    for problem in problems:
        print(f"  wrong source: {problem}", file=sys.stderr)
    bad = tries["unfenced"] + tries["changed"] + tries["unasked"] + len(problems)
    return "\n".join(lines), not bad and len(right) >= 0.95 * len(rows)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.getcwd())
    sys.exit(main())
