"""How often an assistant gets a right answer: 80 questions to the MCP server about 40 folders, each source checked.

Then 30 folders with instructions in their texts: whatever they say must stay inside the fence, and nothing may happen.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio

from evaluations.figures import Options, say, table
from evaluations.mcp import checker, folders
from evaluations.mcp.client import Asker, server
from evaluations.mcp.questions import FOREIGN_ASKED, Question, questions, runs_in
from toolkit.telemetry.agents.answer import USUAL_TOKENS, count_tokens

PAGE: Final = "agents.md"


def run(options: Options) -> str:
    """Ask, check, and return the figures."""
    with tempfile.TemporaryDirectory(prefix="agents-eval-") as name:
        root = Path(name)
        for part in ("ours", "foreign", "injected"):
            (root / part).mkdir()
        say("making run folders")
        folders.make_ours(root / "ours", quick=options.quick)
        official = folders.make_foreign(root / "foreign")
        folders.make_injected(root / "injected")
        return anyio.run(_measure, root, official)


async def _measure(root: Path, official: dict[str, Any]) -> str:
    async with server([root / "ours", *sorted((root / "foreign").iterdir())]) as asker:
        say("asking")
        asked = questions(root / "ours", await _keys(asker, official), official, root / "foreign")
        rows, problems = await _ask_all(asker, asked, official)
    async with server([root / "injected"], "--allow-requests") as asker:
        say("reading folders with instructions")
        tries = await _ask_injected(asker, root / "injected")
    return _figures(rows, problems, tries)


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
    asker: Asker, asked: Sequence[Question], official: dict[str, Any]
) -> tuple[list[Row], checker.Problems]:
    problems, rows = checker.Problems(), []
    for question in asked:
        text, is_error = await asker.ask(question.tool, **question.arguments)
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


# ------------------------------------------------------------ instructions


def _contents(root: Path) -> dict[Path, str]:
    """Return a digest of each file."""
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in root.rglob("*") if path.is_file()}


async def _ask_injected(asker: Asker, root: Path) -> Counter[str]:
    """Ask every tool about every folder; return how often something went wrong."""
    before = _contents(root)
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
    counts["changed"] = len(before.items() ^ _contents(root).items())
    counts["folders"] = len({path.relative_to(root).parts[0] for path in before})
    return counts


# ------------------------------------------------------------ document


def _figures(rows: Sequence[Row], problems: checker.Problems, tries: Counter[str]) -> str:
    right = [row for row in rows if row[2] and row[1] <= USUAL_TOKENS]
    sizes = sorted(row[1] for row in rows)
    about = {path.name for row in rows for path in row[0].runs}
    asked = (
        f"{len(rows)} questions about {len(about)} folders, each asked by one call through a real client with the "
        f"usual budget: **{len(right)} right** in at most {USUAL_TOKENS:,} tokens (median {median(sizes):.0f}, most "
        f"{sizes[-1]:,}). {problems.numbers:,} numbers were looked up where the answers say they are, and "
        f"{problems.derived:,} ranges of inputs: **{len(problems)} wrong**."
    )
    by_tool = []
    for tool in dict.fromkeys(row[0].tool for row in rows):
        own = [row for row in rows if row[0].tool == tool]
        tokens = [row[1] for row in own]
        good = sum(row in right for row in own)
        by_tool.append([f"`{tool}`", str(len(own)), str(good), f"{median(tokens):.0f}", f"{max(tokens):,}"])
    parts = [asked, table(["tool", "questions", "right", "median tokens", "most"], by_tool)]
    parts.append(
        f"{tries['folders']} folders with instructions in their texts and names, with `--allow-requests`: "
        f"{tries['answers']:,} answers, {tries['with_instructions']:,} of them with such a text; "
        f"**{tries['unfenced']} outside of the fence**, {tries['changed']} files changed, {tries['unasked']} "
        "messages that the server sent unasked."
    )
    for problem in problems:
        print(f"  wrong source: {problem}", file=sys.stderr)
    return "\n\n".join(parts)
