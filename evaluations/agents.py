"""How often an assistant gets a right answer: 80 questions to the MCP server about 40 folders, each source checked."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio

from evaluations.figures import ROOT, Options, say, table
from evaluations.mcp import checker
from evaluations.mcp.client import Asker, server
from evaluations.mcp.questions import FOREIGN_ASKED, Question, questions, runs_in
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.agents.answer import USUAL_TOKENS, count_tokens

PAGE: Final = "agents.md"


def run(options: Options) -> str:
    """Ask, check, and return the figures."""
    with tempfile.TemporaryDirectory(prefix="agents-eval-") as name:
        root = Path(name)
        for part in ("ours", "foreign"):
            (root / part).mkdir()
        say("making run folders")
        make_ours(root / "ours", quick=options.quick)
        official = make_foreign(root / "foreign")
        return anyio.run(_measure, root, official)


async def _measure(root: Path, official: dict[str, Any]) -> str:
    async with server([root / "ours", *sorted((root / "foreign").iterdir())]) as asker:
        say("asking")
        asked = questions(root / "ours", await _keys(asker, official), official, root / "foreign")
        rows, problems = await _ask_all(asker, asked, official)
    return _figures(rows, problems)


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


def _figures(rows: Sequence[Row], problems: checker.Problems) -> str:
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
    for problem in problems:
        print(f"  wrong source: {problem}", file=sys.stderr)
    return "\n\n".join(parts)


# ---------------------------------------------------------------- run folders: 28 by the real logger, 12 of other tools


_SAMPLES: Final = ROOT / "tests" / "importers" / "samples.tar.xz"
"""Runs that were made with the real libraries, with what each tool's own reader says about it."""


@contextlib.contextmanager
def _logger(root: Path, name: str, **options: Any) -> Iterator[TelemetryLogger]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        settings = {"log_every": 1, "system": False, "code": False, **options}
        with TelemetryLogger(name, log_dir=root, **settings) as log:
            yield log


def _train(
    log: TelemetryLogger,
    *,
    seed: int,
    lr: float,
    steps: int,
    first: int = 1,
    drop: float = 0.3,
    odd: Mapping[int, float] = {},
) -> None:
    """Log a loss that falls, gradients, and an evaluation every 20 steps; `odd` has other losses by step."""
    for step in range(first, steps + 1):
        noise = random.Random(1_000_003 * seed + step)
        loss = 0.5 + 2.0 / step**drop + 0.02 * noise.gauss(0, 1)
        loss = odd.get(step, loss)
        log.log_step(step, train_loss=loss, lr=lr, grad_norm=abs(noise.gauss(1, 0.3)))
        if step % 20 == 0:
            log.log_eval(step, val_loss=0.6 + 2.0 / step**drop + 0.002 * noise.gauss(0, 1))


def make_ours(root: Path, *, quick: bool) -> None:
    """Make the run folders of ours."""
    plain = dict[str, Any](model={"name": "tiny"})
    for group, lr, drop in (("alpha", 1e-3, 0.25), ("beta", 3e-3, 0.45)):
        for seed in range(1, 5):
            with _logger(root, f"{group}-{seed}") as log:
                log.log_start(config={"learning_rate": lr, "batch_size": 8, "seed": seed}, **plain)
                _train(log, seed=seed, lr=lr, steps=200, drop=drop)
    for number, at in enumerate((60, 111, 150), start=1):
        with _logger(root, f"nan-{number}") as log:
            log.log_start(config={"learning_rate": 0.01 * number, "seed": 3}, **plain)
            _train(log, seed=20 + number, lr=0.01 * number, steps=200, odd={at: math.nan})
    with _logger(root, "spike-1") as log:
        log.log_start(config={"learning_rate": 0.02, "seed": 4}, **plain)
        _train(log, seed=31, lr=0.02, steps=300, odd={170: 9.75})
    for number, error in enumerate(
        (RuntimeError("CUDA error 719"), ValueError("shape 3 and 4"), KeyError("x")), 1
    ):
        with contextlib.suppress(Exception), _logger(root, f"failed-{number}") as log:
            log.log_start(config={"learning_rate": 1e-4 * number, "seed": 5}, **plain)
            _train(log, seed=40 + number, lr=1e-4 * number, steps=30 + 10 * number)
            raise error
    for name, seed in (("resumed-same", 51), ("resumed-other", 60), ("resumed-twice", 51)):
        with _logger(root, name) as log:
            log.log_start(config={"learning_rate": 0.005, "seed": 51}, **plain)
            _train(log, seed=51, lr=0.005, steps=120)
        for first in (101, 141) if name == "resumed-twice" else (101,):
            with _logger(root, name, resume=True) as log:
                log.log_start(config={"learning_rate": 0.005, "seed": 51}, **plain)
                _train(log, seed=seed, lr=0.005, steps=first + 59, first=first)
    for name, other in (("pair-a", 0.0), ("pair-b", 0.05)):
        with _logger(root, name) as log:
            log.log_start(config={"learning_rate": 0.004, "seed": 7, "dropout": other}, **plain)
            for step in range(1, 151):
                noise = random.Random(step).gauss(0, 0.02)
                log.log_step(
                    step, train_loss=2.0 / step**0.3 + noise + (other if step >= 38 else 0.0), lr=0.004
                )
    for number in (1, 2):
        with _logger(root, f"half-{number}") as log:
            log.log_start(
                config={"learning_rate": 0.002, "seed": number}, training={"max_steps": 1000}, **plain
            )
            _train(log, seed=70 + number, lr=0.002, steps=500)
    for number, steps in ((1, 2_000), (2, 2_000 if quick else 20_000)):
        with _logger(root, f"long-{number}") as log:
            log.log_start(config={"learning_rate": 0.003, "seed": number}, **plain)
            _train(log, seed=80 + number, lr=0.003, steps=steps)
    for number in (1, 2):
        with _logger(root, f"wide-{number}") as log:
            log.log_start(config={f"layer_{at}/rate": at / 7 for at in range(120)}, **plain)
            for step in range(1, 41):
                layers = {f"layer/{at}/norm": at + step / 10 for at in range(300)}
                log.log_step(step, train_loss=1.0 / step, **layers)
    for number in (1, 2):
        with _logger(root, f"printing-{number}", output=True) as log:
            log.log_start(config={"learning_rate": 0.1, "seed": number}, **plain)
            for step in range(1, 101):
                log.log_step(step, train_loss=3.0 / step)
                print(f"step {step} done, checksum {step * 7919 % 104729}")


def make_foreign(root: Path) -> dict[str, dict[str, Any]]:
    """Copy the runs of other tools; return what each tool's own reader says."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, tarfile.open(_SAMPLES) as archive:
        archive.extractall(folder, filter="data")
        for name in FOREIGN_ASKED:
            sample = Path(folder) / "samples" / name.replace("-", "/", 1)
            shutil.copytree(sample, root / name, symlinks=True)
            found[name] = json.loads(Path(f"{sample}.expected.json").read_text("utf-8"))
    return found
