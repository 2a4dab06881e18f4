"""How often `telemetry why` names the right cause: pairs of real, tiny trainings that differ in one known thing."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from evaluations import sessions
from evaluations.figures import Options, say, share, table
from toolkit.telemetry.answers import differences as kinds
from toolkit.telemetry.answers.evidence import read_evidence
from toolkit.telemetry.answers.why import Why, why

PAGE: Final = "answers.md"
_FIRST: Final = 10_000
"""The number of the first pair that is published; thresholds and weights were chosen with pairs below 1,000."""
_MOST_S: Final = 960
"""How long pairs are trained: on a slow or busy machine these are fewer, and the figures say how many."""
_KIND_OF: Final = {
    "lr": kinds.LR,
    "warm-up": kinds.SCHEDULE,
    "seed": kinds.SEED,
    "order of data": kinds.DATA,
    "batch size": kinds.BATCH,
    "dtype": kinds.DTYPE,
    "a line of code": kinds.CODE,
    "a package": kinds.PACKAGE,
    "a resume": kinds.RESUME,
    "world size": kinds.WORLD,
}
_COMPARED: Final = ("train_loss", "grad_norm", "lr", "val_loss")


@dataclass(frozen=True, slots=True)
class Asked:
    """A pair and what was answered."""

    pair: Pair
    answer: Why
    bare: Why
    """The answer from steps and settings alone, as another tool's log has them."""
    first_step: int | None
    """The first step at which a digit of a record differs."""

    def has_cause(self, most: int, answer: Why | None = None) -> bool:
        """Return whether the injected cause is among the first `most`."""
        named = [cause.difference for cause in (answer or self.answer).causes[:most]]
        return any(
            one.kind == _KIND_OF[self.pair.cause] and (one.kind != kinds.PACKAGE or one.what == "steady")
            for one in named
        )


def run(options: Options) -> str:
    """Train the pairs, ask about each, and return the figures."""
    with_cause, without = (20, 10) if options.quick else (200, 50)
    with tempfile.TemporaryDirectory(prefix="why-") as folder:
        pairs = plan(Path(folder), first=_FIRST, with_cause=with_cause, without=without)
        asked = []
        for pair in make(pairs, seconds=_MOST_S):
            asked.append(ask(pair))
            if len(asked) % 25 == 0:
                say(f"{len(asked)} of {len(pairs)} pairs trained and asked about")
    return figures(asked)


def ask(pair: Pair) -> Asked:
    """Return what is answered about a pair, and the truth about its first step."""
    one, two = (read_evidence(folder) for folder in pair.runs)
    bare = [_bare(folder) for folder in pair.runs]
    answers = why(one, two), why(read_evidence(bare[0]), read_evidence(bare[1]))
    same = _same_by_step(pair)
    first_step = min((step for step, is_same in same.items() if not is_same), default=None)
    return Asked(pair, *answers, first_step)


def figures(asked: Sequence[Asked]) -> str:
    """Return the figures as Markdown."""
    caused = [one for one in asked if one.pair.cause != NO_CAUSE]
    equal = [one for one in asked if one.pair.cause == NO_CAUSE]
    exact = [one for one in caused if not one.pair.is_noisy]
    noisy = sum(one.pair.is_noisy for one in asked)
    about = (
        f"{len(caused)} pairs of real trainings with one injected cause of ten, {len(equal)} pairs without; in {noisy} "
        "of them gradients carry unseeded noise, so that digits soon differ also where nothing else does. Half of the "
        "pairs also differ in notes, evaluation intervals and packages that are not used, a third in how often they "
        "log, a third in comments. Thresholds were chosen with other pairs."
    )
    claims = {
        "injected cause named first": ([one.has_cause(1) for one in caused], "0.90"),
        "injected cause among the first three": ([one.has_cause(3) for one in caused], "0.97"),
        "first step right, of pairs without noise": (
            [one.answer.step == one.first_step for one in exact],
            "1.00",
        ),
        "named first from steps and settings alone": ([one.has_cause(1, one.bare) for one in caused], ""),
        "*differ* said of pairs without a cause": ([_differs(one) for one in equal], "at most 0.02"),
    }
    rows = [[what, share(sum(found), len(found)), goal] for what, (found, goal) in claims.items()]
    by_cause = []
    for cause in CAUSES:
        these = [one for one in caused if one.pair.cause == cause]
        said = [sum(map(_differs, these)), *(sum(one.has_cause(most) for one in these) for most in (1, 3))]
        by_cause.append([cause, str(len(these)), *map(str, said)])
    wrong = [one for one in caused if not one.has_cause(1)]
    return "\n\n".join(
        [
            about,
            table(["", "share, 95 % interval", "goal"], rows),
            table(["injected cause", "pairs", "*differ* said", "named first", "among three"], by_cause),
            f"Wrong: {'; '.join(map(_missed, wrong)) or 'none'}.",
        ]
    )


def _differs(one: Asked) -> bool:
    return one.answer.answer == "differ"


def _missed(one: Asked) -> str:
    named = one.answer.causes[0].difference.what if one.answer.causes else "nothing"
    return f"{one.pair.cause} {one.pair.variant}: {one.answer.answer}, {named} first"


def _records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _bare(folder: Path) -> Path:
    """Return a copy of the run with its steps and settings alone."""
    kept = folder.with_name("bare")
    kept.mkdir()
    records = _records(folder)
    for record in records:
        for name in ("packages", "seeds", "determinism", "data"):
            record.pop(name, None)
    (kept / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return kept


def _same_by_step(pair: Pair) -> dict[int, bool]:
    """Return of each step that both recorded whether all its numbers are the same, by the text of the records."""
    sides: list[dict[tuple[int, str], str]] = []
    for folder in pair.runs:
        values: dict[tuple[int, str], str] = {}
        session = 1
        for record in _records(folder):
            if record["event"] not in ("step", "eval"):
                continue
            if record["session"] != session:
                session = record["session"]
                values = {key: text for key, text in values.items() if key[0] < record["global_step"]}
            values.update(
                {(record["global_step"], name): repr(record[name]) for name in _COMPARED if name in record}
            )
        sides.append(values)
    one, two = sides
    same: dict[int, bool] = {}
    for key in one.keys() & two.keys():
        same[key[0]] = same.get(key[0], True) and one[key] == two[key]
    return same


# ---------------------------------------------------------------- trainings


CAUSES: Final = (*_KIND_OF,)
NO_CAUSE: Final = "none"

_SCRIPT: Final = Path(__file__).with_name("why_script.py")
_EDITS: Final = (
    ("betas=(0.9, 0.99)", "betas=(0.9, 0.95)"),
    ("nn.GELU()", "nn.ReLU()"),
    ("nn.Tanh()", "nn.SiLU()"),
    ("momentum=0.9", "momentum=0.8"),
    ("clip_grad_norm_(model.parameters(), 2.0)", "clip_grad_norm_(model.parameters(), 0.25)"),
    ("weight_decay=0.01", "weight_decay=0.1"),
    ("weight_decay=0.001", "weight_decay=0.05"),
    ("model.parameters(), 2.0)", "model.parameters(), 2.0 if step <= LATE else 0.1)"),
)
"""Lines that are edited; one that is not used by the run's model or optimizer is passed over."""
_UNUSED: Final = {
    "deep": ("nn.GELU()",),
    "wide": ("nn.Tanh()",),
    "sgd": ("betas", "weight_decay=0.01"),
    "adamw": ("momentum", "weight_decay=0.001"),
}
_PACKAGE: Final = {
    "1.0.0": "def scaled(logits):\n    return logits\n",
    "1.1.0": "def scaled(logits):\n    return logits * 1.05\n",
}


@dataclass(slots=True)
class Side:
    """How one run of a pair is made."""

    config: dict[str, Any]
    script: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    world: int = 1
    resume_at: int | None = None
    loses: str = ""


@dataclass(slots=True)
class Pair:
    """Two runs and the truth about them."""

    number: int
    cause: str
    variant: str
    is_noisy: bool
    folder: Path
    sides: tuple[Side, Side]

    @property
    def runs(self) -> tuple[Path, Path]:
        """The run folders."""
        return self.folder / "a" / "logs" / "run", self.folder / "b" / "logs" / "run"


def plan(folder: Path, *, first: int, with_cause: int, without: int) -> list[Pair]:
    """Return pairs with each cause equally often, and pairs without one among them; `first` is the first seed."""
    causes = [CAUSES[at % len(CAUSES)] for at in range(with_cause)] + [NO_CAUSE] * without
    pairs = [_pair(folder / f"{first + at:04}", first + at, cause) for at, cause in enumerate(causes)]
    # Mixed, so that what is trained in less time than all of them need has as many of each.
    places = [(at + 0.5) / with_cause for at in range(with_cause)] + [at / without for at in range(without)]
    return [pairs[at] for at in sorted(range(len(pairs)), key=places.__getitem__)]


def make(pairs: Iterable[Pair], *, seconds: float = math.inf) -> Iterator[Pair]:
    """Train both runs of each pair, with all processors, and yield it; begin no pair after `seconds`."""
    sessions.import_all()
    until = time.monotonic() + seconds
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), fork) as pool:
        jobs = {pool.submit(_make_pair, pair): pair for pair in pairs}
        for job in as_completed(jobs):
            if time.monotonic() > until:
                pool.shutdown(cancel_futures=True)
            if not job.cancelled():
                job.result()
                yield jobs[job]


def _pair(folder: Path, number: int, cause: str) -> Pair:
    chance = random.Random(number)
    config = {
        "name": "run",
        "output_dir": "logs",
        "model": chance.choice(("deep", "wide")),
        "optimizer": chance.choice(("sgd", "adamw")),
        "learning_rate": chance.choice((0.02, 0.01)),
        "warmup_steps": chance.choice((0, 10, 20)),
        "steps": chance.choice((60, 80)),
        "batch_size": 16,
        "seed": number,
        "dtype": chance.choice(("float32", "float32", "float32", "bfloat16")),
        "log_every": chance.choice((1, 1, 5)),
        "eval_every": 20,
        "notes": "",
    }
    script = _SCRIPT.read_text()
    packages = {"steady": "1.0.0", "colours": "2.3.1", "tidylog": "0.9"}
    one = Side(dict(config), script, dict(packages), list(range(512)))
    other = Side(dict(config), script, dict(packages), list(range(512)))
    variant = _inject(other, cause, chance)
    if chance.random() < 0.5:
        # What differs and does nothing.
        other.config["notes"] = "again, with a cup of tea"
        other.config["eval_every"] = chance.choice((0, 10))
        other.packages["colours"] = "2.4.0"
        other.packages["tidylog"] = "1.0"
    if chance.random() < 0.3:
        other.config["log_every"] = chance.choice((2, 5))
    if chance.random() < 0.3:
        other.script = other.script.replace("def main()", "# Trains one run.\ndef main()", 1)
    if cause == NO_CAUSE and chance.random() < 0.3:
        other.resume_at, variant = chance.randint(15, 45), "right resume"
    sides = (one, other) if chance.random() < 0.5 else (other, one)
    return Pair(number, cause, variant, chance.random() < 0.4, folder, sides)


def _inject(side: Side, cause: str, chance: random.Random) -> str:
    """Put the cause into one run, and return how."""
    config = side.config
    if cause == "lr":
        config["learning_rate"] *= chance.choice((0.5, 0.8, 1.25, 2.0))
    elif cause == "warm-up":
        config["warmup_steps"] = chance.choice([n for n in (0, 5, 15, 30) if n != config["warmup_steps"]])
    elif cause == "seed":
        config["seed"] += 10_000
    elif cause == "order of data":
        if chance.random() < 0.5:
            config["data_seed"] = chance.randint(1, 1000)
            return "data_seed"
        chance.shuffle(side.rows)
        return "another order of the file"
    elif cause == "batch size":
        config["batch_size"] = chance.choice((8, 32))
    elif cause == "dtype":
        config["dtype"] = "float32" if config["dtype"] == "bfloat16" else "bfloat16"
    elif cause == "a line of code":
        unused = (*_UNUSED[config["model"]], *_UNUSED[config["optimizer"]])
        old, new = chance.choice([edit for edit in _EDITS if not edit[0].startswith(unused)])
        assert old in side.script, old
        side.script = side.script.replace(old, new.replace("LATE", str(chance.randint(15, 45))))
        return old.strip()
    elif cause == "a package":
        side.packages["steady"] = "1.1.0"
    elif cause == "a resume":
        side.resume_at = chance.randint(15, 45)
        lost = ["optimizer", "data"] + (["rng"] if config["model"] == "wide" else [])
        side.loses = chance.choice(lost)
        return f"{side.loses} lost"
    elif cause == "world size":
        side.world = 2
    return ""


def _make_pair(pair: Pair) -> None:
    for side, name in zip(pair.sides, "ab", strict=True):
        folder = pair.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(_packages(folder), ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "train.py").write_text(side.script)
        (folder / "config.json").write_text(json.dumps(side.config))
        (folder / "data.json").write_text(json.dumps(side.rows))
        for package, version in side.packages.items():
            _install(_packages(folder), package, version)
        # What kernels whose sums have no fixed order make of gradients.
        size = "1e-3" if side.config["dtype"] == "bfloat16" else "1e-6"
        noise = {"KERNEL_NOISE": size} if pair.is_noisy else {}
        if side.resume_at is not None:
            _train(folder, {**noise, "STOP_AT": str(side.resume_at)}, 1)
            noise["RESUME_LOSES"] = side.loses
        _train(folder, noise, side.world)


def _packages(folder: Path) -> Path:
    """Return where the packages of a run are: outside of the folder of its script, as installed ones are."""
    return folder.with_name(f"{folder.name}-packages")


def _install(folder: Path, name: str, version: str) -> None:
    """Write a distribution as pip does: a package, and what says which version it is."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(_PACKAGE.get(version, "") if name == "steady" else "")
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "RECORD").write_text(f"{name}/__init__.py,,\n")


def _train(folder: Path, variables: Mapping[str, str], world: int) -> None:
    ranks = [
        sessions.start(
            folder, "output.txt", {**variables, **_of_rank(folder, rank, world)}, [_packages(folder)]
        )
        for rank in range(world)
    ]
    for rank in ranks:
        sessions.end(rank, f"a training in {folder}")


def _of_rank(folder: Path, rank: int, world: int) -> dict[str, str]:
    if world == 1:
        return {}
    # By the loopback: the name of a machine without a network has no address.
    about = {"RANK": str(rank), "WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo"}
    return {**about, "STORE": str(folder.absolute() / "store")}
