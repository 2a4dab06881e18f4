"""How often `telemetry why` says rightly whether a resume continued the same training, and names what broke it."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evaluations import sessions
from evaluations.figures import Options, interval, say, share, table
from toolkit.telemetry.answers.evidence import read_evidence
from toolkit.telemetry.answers.resume import answer_resumes
from toolkit.telemetry.diagnostics.metric_aliases import LOSS
from toolkit.telemetry.diagnostics.resume import judge
from toolkit.telemetry.diagnostics.resume.judge import (
    CODE,
    DATA,
    DIFFERENT,
    NOT_RECORDED,
    SAME,
    STATE,
    UNKNOWN,
    Judgement,
)

PAGE: Final = "answers.md"
ALL: Final = "everything recorded"
SETTINGS: Final = "losses, lr and settings"
LOSSES: Final = "losses and lr alone"
_EVIDENCE: Final = (ALL, SETTINGS, LOSSES)
_KEPT: Final = {
    "step": ("event", "time", "seq", "session", "global_step", "train_loss", "lr"),
    "start": ("event", "time", "seq", "session", "run_name", "run_id", "resumed_from_step"),
    "end": ("event", "time", "seq", "session", "status"),
}
"""What is left of the records where losses and lr are all that there is."""
_LEVELS: Final = (0.0, 0.5, 0.7, 0.85, 0.95)
"""From which probability on answers are counted together."""


@dataclass(frozen=True, slots=True)
class Said:
    """What was said about a case from some of its records."""

    case: Case
    evidence: str
    found: Judgement
    wrong_words: Sequence[str]
    """Where the answer contradicts its own evidence."""
    has_difference: bool
    """Whether a loss that exists twice or a part of the state that was recorded differs."""

    @property
    def is_listed(self) -> bool:
        """Whether its breakage is one that the judge has a name for."""
        return self.case.trainer != PARTS

    @property
    def is_right(self) -> bool:
        """Whether `same` or `different` is the truth, and a listed cause the one that was injected."""
        truth, found = self.case.truth, self.found
        return (
            (found.cause or found.answer) == truth if truth in (SAME, *CAUSES) else found.answer == DIFFERENT
        )

    @property
    def is_cause_right(self) -> bool:
        """Whether what was named is what was injected: of an unlisted breakage, its area."""
        return self.is_right if self.case.truth in CAUSES else self.found.area == self.case.area


def run(options: Options) -> str:
    """Make the runs, or take those that an earlier call made; judge them, and return the figures as Markdown."""
    listed = cases([0] if options.quick else HELD_OUT)
    wanted = [*listed, *unlisted([0] if options.quick else UNSEEN)]
    root = Path(tempfile.gettempdir()) / f"telemetry-resumed-runs-{_version()}"
    say(f"{len(wanted)} resumed trainings, in {root}")
    make_all(wanted, root)
    asked = [
        (root, case, evidence)
        for case in wanted
        for evidence in _EVIDENCE
        if (root / case.name / "done").exists()
    ]
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        said = pool.map(_said, asked, chunksize=8)
    for one in said if options.list_errors else ():
        if not one.is_right or one.wrong_words:
            print(f"{one.case.name}, {one.case.kind} {one.case.how}: {one}")
    of_list, others = ([one for one in said if one.is_listed == is_listed] for is_listed in (True, False))
    against = sum(bool(one.wrong_words) for one in said)
    about = (
        f"{len(asked) // len(_EVIDENCE)} trainings that were killed and resumed. {len(of_list) // len(_EVIDENCE)} are "
        "broken in one of nine listed ways, or right in one of nine; tuned on other seeds."
    )
    unlisted_about = (
        "The others are of kinds that the judge has no name for. The area is weights and state, data, random numbers, "
        "settings, code, or not recorded:"
    )
    parts = [about, _summary(of_list), unlisted_about, _of_unlisted(others)]
    checks = f"Answers that contradict their own evidence: {against} of {len(said)}."
    return "\n\n".join([*parts, "Right causes, by their probability:", _calibration(said), checks])


def _summary(said: Sequence[Said]) -> str:
    rows = []
    for evidence in _EVIDENCE:
        these = [one for one in said if one.evidence == evidence]
        broken = [one for one in these if one.case.truth != SAME]
        right = [one for one in these if one.case.truth == SAME]
        if broken and right:
            wrong = sum(one.found.answer == DIFFERENT for one in right)
            shares = [
                _share(broken, lambda one: one.is_right),
                _share(broken, lambda one: one.found.answer == UNKNOWN),
                _share(broken, lambda one: one.found.answer == SAME),
                f"{wrong} of {len(right)}, at most {interval(wrong, len(right))[1]:.3f}",
                _share(right, lambda one: one.found.answer == UNKNOWN),
            ]
            rows.append([evidence, *shares])
    broken_columns = ["broken: cause first", "cannot be said", "called same"]
    right_columns = ["right: called different, 95 % bound", "cannot be said"]
    return table(["evidence", *broken_columns, *right_columns], rows)


def _of_unlisted(said: Sequence[Said]) -> str:
    rows = []
    groups: dict[str, Collection[str]] = {"all": UNLISTED, "right": RIGHT}
    for evidence, (name, kinds) in itertools.product((ALL, LOSSES), groups.items()):
        these = [one for one in said if one.evidence == evidence and one.case.kind in kinds]
        shown, hidden = ([one for one in these if one.has_difference == differs] for differs in (True, False))
        shares = [
            _share(shown, lambda one: one.found.answer == DIFFERENT),
            _share(shown, lambda one: one.found.answer == SAME),
            _share(shown, lambda one: one.is_cause_right),
        ]
        limited = (sum(one.found.answer == answer for one in hidden) for answer in (SAME, UNKNOWN))
        rows.append([f"{name}, {evidence}", str(len(shown)), *shares, str(len(hidden)), *map(str, limited)])
    columns = ["something recorded differs", "different", "same", "area first"]
    columns += ["nothing differs", "same as recorded", "cannot be said"]
    return table(["breakage", *columns], rows)


def _calibration(said: Sequence[Said]) -> str:
    """Return how many causes were right, by the probability that they were said with."""
    rows = []
    for evidence in (ALL, LOSSES):
        for title, is_listed in (("listed", True), ("unlisted", False)):
            named = [one for one in said if one.evidence == evidence and one.is_listed == is_listed]
            named = [
                one for one in named if one.found.answer == DIFFERENT and (one.has_difference or is_listed)
            ]
            right: list[list[bool]] = [[] for _ in _LEVELS]
            for one in named:
                right[sum(one.found.cause_probability >= least for least in _LEVELS) - 1].append(
                    one.is_cause_right
                )
            cells = [f"{share(sum(one), len(one))} of {len(one)}" if one else "-" for one in right]
            rows.append([evidence, title, *cells])
    names = [f"{least:.2f} to {most:.2f}" for least, most in zip(_LEVELS, (*_LEVELS[1:], 1.0), strict=True)]
    return table(["evidence", "breakages", *names], rows)


def _share(said: Sequence[Said], is_it: Callable[[Said], bool]) -> str:
    return f"{sum(map(is_it, said)) / len(said):.3f}" if said else "-"


def _said(asked: tuple[Path, Case, str]) -> Said:
    root, case, evidence = asked
    folder = root / case.folder
    if evidence == ALL:
        return _answer(folder, case, evidence)
    with tempfile.TemporaryDirectory() as place:
        less = Path(place) / "run"
        less.mkdir()
        shutil.copy(folder / "run.json", less)
        records = (json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines())
        kept = [without(record, evidence) for record in records]
        (less / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in kept if one))
        return _answer(less, case, evidence)


def without(record: dict[str, Any], evidence: str) -> dict[str, Any] | None:
    """Return a record without batches, states and code, and for `LOSSES` without settings."""
    names = _KEPT.get(record["event"], ())
    if evidence == SETTINGS:
        return record if names or record["event"] in ("eval", "epoch", "checkpoint") else None
    return {name: record[name] for name in names if name in record} or None


def _answer(folder: Path, case: Case, evidence: str) -> Said:
    run = read_evidence(folder)
    found = next(iter(answer_resumes(run)), Judgement(session=0, answer=UNKNOWN, needed=["a resume"]))
    before, after = (session.values_of(LOSS) for session in run.sessions[:2])
    states = [one for session in run.sessions for one in session.events_of("state")]
    saved, loaded = ([one for one in states if one["at"] == at][-1:] for at in ("save", "load"))
    pairs = [(before[step], after[step]) for step in after if step in before and step > found.step]
    pairs += [
        (one[name], two[name])
        for one, two in zip(saved, loaded, strict=False)
        for name in one
        if name in two and name not in _OF_RECORD
    ]
    return Said(case, evidence, found, contradictions(found), any(one != two for one, two in pairs))


_OF_RECORD: Final = frozenset(
    {"time", "elapsed", "seq", "session", "at", "rng_hash", "rng_python", "rng_numpy"}
)
"""Fields of a state that differ after a right resume: the scripts use, and restore, the generator of torch alone."""


def contradictions(found: Judgement) -> list[str]:
    """Return where the answer, its sentence and its rows do not say the same; none for every answer."""
    rows, losses = found.evidence, [row for row in found.evidence if row.is_loss]
    shown = [row for row in rows if row.cause == found.cause and not row.is_loss]
    is_data = found.cause in (judge.FROM_START, judge.SKIPPED)
    unseen = [row for row in rows if row.note == "differs, no effect seen"]
    checks = {
        "same, and a row that differs": found.answer == SAME and any(row.differs for row in rows),
        "same by the state alone, and all losses differ": found.how.endswith("state that was loaded")
        and bool(losses)
        and all(row.differs is not False for row in losses),
        "to the last digit, and a loss that differs": found.how == "to the last digit"
        and any(row.before != row.after for row in losses),
        "nearly certain, and something differs": found.answer == SAME
        and bool(unseen)
        and found.probability > 0.9,
        "what differs is not named": found.answer == SAME
        and any(row.what not in found.sentence for row in unseen),
        "a cause of which every row is equal": found.answer == DIFFERENT
        and bool(shown)
        and all(row.differs is False for row in shown),
        "other data, and the batches are equal": is_data
        and any(row.what == "first batches" and row.differs is False for row in rows),
        "not recorded, and a row that differs": found.cause == judge.UNLISTED
        and any(row.differs and row.cause for row in rows),
        "same, and not as far as recorded": found.answer == SAME
        and "as far as recorded" not in found.sentence,
        "cannot be said, and nothing is needed": found.answer == UNKNOWN and not found.needed,
    }
    return [what for what, is_so in checks.items() if is_so]


def _version() -> str:
    """Return a name for runs that were made by this code."""
    here = Path(__file__).parent
    texts = [here / "resume.py", here / "sessions.py", *sorted(here.glob("resume_scripts/*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in texts)).hexdigest()[:10]


# ---------------------------------------------------------------- the trainings


PLAIN, PARTS = "plain", "parts"
"""Scripts: with what most trainings have, and with parts that few have."""
CAUSES: Final = (
    *("optimizer_lost", "schedule_restarted", "data_from_start", "data_skipped", "rng", "scaler_lost"),
    *("batch_size", "wrong_checkpoint", "code_or_config"),
)
RIGHT: Final = (
    *("exact", "small_noise", "large_noise", "eval_interval", "warmup_in_settings", "earlier_checkpoint"),
    *("no_overlap", "log_every_10", "seed_in_settings"),
)
"""Right resumes; all but the first look like broken ones in some way: gradients with noise of 1e-6 or of 0.003 to 0.1,
another evaluation interval, a second warm-up, an earlier checkpoint, no step done twice, every tenth step logged."""
UNLISTED: Final = {
    "labels": ("shifted by one", "of another class", "of another row"),
    "vocabulary": ("in another order", "reversed", "moved by one"),
    "data content": ("other text", "capitals", "without spaces"),
    "ema": ("begun again", "taken from the weights"),
    "batch norm": ("reset",),
    "second optimizer": ("lost", "of no use"),
    "replay buffer": ("empty", "in another order", "with other rows"),
    "precision": ("autocast", "gradients", "weights"),
    "code": ("another activation", "another loss", "another average"),
}
"""Breakages that the judge has no name for, each in some ways."""
HELD_OUT: Final = range(5, 10)
"""Seeds of listed breakages: the judge was tuned on others."""
UNSEEN: Final = range(4, 24)
"""Seeds of unlisted breakages: the first four were looked at while the judge was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run of two sessions."""

    name: str
    trainer: str
    seed: int
    truth: str
    """`same`, or the cause of the break."""
    kind: str
    """The cause, or which right resume it is."""
    how: str
    """What was changed, where there are several ways."""
    noise: float
    log_every: int
    overlap: int
    """Steps that were done twice."""
    saved_at: int
    resumed_at: int

    @property
    def folder(self) -> str:
        """The run folder, from the folder of all cases."""
        return f"{self.name}/logs/run"

    @property
    def accumulation(self) -> int:
        """The batches of a step."""
        return 2 if self.seed % 5 == 2 else 1

    @property
    def says_all(self) -> bool:
        """Whether its script gives all parts of its state to the logger, or only those that scripts usually do."""
        return self.seed // 2 % 2 == 0

    @property
    def area(self) -> str:
        """What kind of thing an unlisted breakage is, as far as its run recorded it."""
        parts = {"ema": self.says_all, "second optimizer": self.says_all, "replay buffer": self.says_all}
        parts |= {"batch norm": True, "precision": self.how == "weights"}
        other = {"data content": DATA, "code": CODE}
        return STATE if parts.get(self.kind) else other.get(self.kind, NOT_RECORDED)


def cases(seeds: Iterable[int]) -> list[Case]:
    """Return a case of each breakage and each right resume, by seed."""
    kinds = (*CAUSES, *RIGHT)
    return [case_of(PLAIN, seed, number, kind) for seed in seeds for number, kind in enumerate(kinds)]


def unlisted(seeds: Iterable[int]) -> list[Case]:
    """Return a case of each unlisted breakage, and of two right resumes of the same script, by seed."""
    kinds = (*UNLISTED, "exact", "small_noise")
    return [case_of(PARTS, seed, number, kind) for seed in seeds for number, kind in enumerate(kinds)]


def case_of(trainer: str, seed: int, number: int, kind: str) -> Case:
    """Return one case; the seed also decides how it is logged and whether steps were done twice."""
    chance = random.Random(f"{trainer} {seed} {kind}")
    broken = kind not in RIGHT
    every = chance.choice([7, 8, 9, 10, 11])
    log_every, overlap = 1, chance.randint(7, 12)
    if kind == "log_every_10" or (broken and seed % 5 == 3):
        log_every, overlap = 10, chance.randint(20, 24)
    if kind == "no_overlap" or (broken and seed % 5 == 4):
        overlap = 0
    noise = 10 ** chance.uniform(-6, -4) if seed % 2 else 0.0
    noise = {"exact": 0.0, "small_noise": 1e-6, "large_noise": 10 ** chance.uniform(-2.5, -1)}.get(
        kind, noise
    )
    if trainer == PARTS:
        noise = 1e-6 if kind == "small_noise" else 0.0
    ways = {
        "data_from_start": ["of the training", "of the epoch"],
        "data_skipped": ["as many again", "what the killed session had used"],
        "batch_size": ["batch size doubled", "batch size halved", "accumulation doubled"],
        "wrong_checkpoint": ["weights of an earlier step", "of another run"],
        "code_or_config": ["a setting", "a line of code"],
    }.get(kind, UNLISTED.get(kind, [""]))
    return Case(
        name=f"{trainer}-{seed}-{number:02}",
        trainer=trainer,
        seed=seed,
        truth=kind if broken else "same",
        kind=kind,
        how=ways[seed % len(ways)],
        noise=noise,
        log_every=log_every,
        overlap=overlap,
        saved_at=2 * every,
        resumed_at=every if kind == "earlier_checkpoint" else 2 * every,
    )


# ---------------------------------------------------------------- trainings


_SCRIPTS: Final = Path(__file__).with_name("resume_scripts")
_CHECKPOINT: Final = "saved/step-{}.pt"
_REWARM: Final = ("resume_warmup_steps", "warmup_steps_after_resume", "rewarmup_steps")
_SETTINGS: Final = ({"label_smoothing": 0.2}, {"max_grad_norm": 0.02})
"""Not the learning rate nor its like, which an optimizer takes from the checkpoint, whatever the settings say."""
_EDITS: Final = (
    ("torch.tanh(", "torch.relu("),
    ("logits = self.head(hidden)", "logits = 1.5 * self.head(hidden)"),
    ("self.dropout, self.training", "5 * self.dropout, self.training"),
)
_EDITS_OF_PARTS: Final = {
    "another activation": ("torch.tanh(", "torch.relu("),
    "another loss": ("labels.flatten())", "labels.flatten(), label_smoothing=0.1)"),
    "another average": ("loss.backward()", "(loss * 3).backward()"),
}


def make(case: Case, root: Path, text: bytes) -> None:
    """Train both sessions of a case, in `root`."""
    folder = root / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "text.bin").write_bytes(text)
    for script, name in ((case.trainer, "train"), ("task", "task")):
        code = (_SCRIPTS / f"{script}.py").read_text()
        (folder / f"{name}.py").write_text(
            code.replace("from evaluations.resume_scripts import task", "import task")
        )
    settings = _settings(case)
    job: dict[str, Any] = {
        "kill_at": case.saved_at + case.overlap,
        "stop_at": case.saved_at + case.overlap + 6,
        "resume_from": None,
        "noise": case.noise,
        "save_at": case.saved_at,
        "says": "everything" if case.says_all else "the usual",
        "fault": "",
        "how": case.how,
    }
    if case.how == "of another run":
        _session(folder, settings | {"seed": 91, "data_seed": 91}, job | {"kill_at": case.saved_at}, "donor")
        os.rename(folder / "saved", folder / "donor")
        shutil.rmtree(folder / "logs")
    _session(folder, settings, job, "1")
    job |= {"kill_at": -1, "resume_from": _CHECKPOINT.format(case.resumed_at)}
    _break_checkpoint(case, folder, job)
    _change(case, folder, settings)
    _session(folder, settings, job, "2")
    for left in ("saved", "donor", "text.bin"):
        target = folder / left
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)


def _settings(case: Case) -> dict[str, Any]:
    chance = random.Random(f"settings {case.name}")
    return {
        "seed": case.seed,
        "data_seed": case.seed,
        "batch_size": 8 // case.accumulation,
        "accumulation": case.accumulation,
        "optimizer": "SGD" if case.seed % 5 == 1 else "AdamW",
        "learning_rate": 0.02 if case.seed % 5 != 1 else 0.3,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "label_smoothing": 0.0,
        "dropout": chance.choice([0.1, 0.15]),
        "warmup_steps": 5,
        "max_steps": 120,
        "eval_every": 10,
        "save_every": case.saved_at // 2,
        "log_every": case.log_every,
        "loss_scaling": case.kind == "scaler_lost",
        "train_file": "text.bin",
    } | ({"frozen_norm": case.seed % 3 == 0, "teacher": case.seed % 2 == 0} if case.trainer == PARTS else {})


def _change(case: Case, folder: Path, settings: dict[str, Any]) -> None:
    """Change the settings or the script of the second session."""
    chance = random.Random(f"change {case.name}")
    if case.kind == "batch_size":
        name = "accumulation" if case.how.startswith("accumulation") else "batch_size"
        settings[name] = settings[name] // 2 if case.how.endswith("halved") else settings[name] * 2
    elif case.kind == "eval_interval":
        settings["eval_every"] = chance.choice([3, 5])
    elif case.kind == "seed_in_settings":
        settings["seed"] += 1000
    elif case.kind == "warmup_in_settings":
        settings |= {chance.choice(_REWARM): chance.randint(4, 7), "resumed_at": case.resumed_at}
    elif case.how == "a setting":
        settings |= chance.choice(_SETTINGS)
    elif case.how == "a line of code" or case.kind == "code":
        name, edit = (
            ("train.py", _EDITS_OF_PARTS[case.how])
            if case.trainer == PARTS
            else ("task.py", chance.choice(_EDITS))
        )
        path, (before, after) = folder / name, edit
        code = path.read_text()
        assert before in code, before
        path.write_text(code.replace(before, after))


def _break_checkpoint(case: Case, folder: Path, job: dict[str, Any]) -> None:
    """Break the checkpoint that `case` resumes from, or what its job says."""
    import torch

    path = folder / _CHECKPOINT.format(case.saved_at)
    saved = torch.load(path, weights_only=False)
    if case.trainer == PARTS:
        _break_part(case, folder / "text.bin", saved)
        job["fault"] = case.kind
    else:
        earlier, other = folder / _CHECKPOINT.format(case.saved_at // 2), folder / "donor" / path.name
        _break(case, saved, torch.load(other if other.exists() else earlier, weights_only=False))
    torch.save(saved, path)


def _break(case: Case, saved: dict[str, Any], wrong: dict[str, Any]) -> None:
    lost = {
        "optimizer_lost": "optimizer",
        "schedule_restarted": "scheduler",
        "scaler_lost": "scaler",
        "rng": "rng",
    }
    saved.pop(lost.get(case.kind, ""), None)
    if case.kind == "data_from_start":
        saved["position"] = 0
        saved["epoch"] *= case.how != "of the training"
    elif case.kind == "data_skipped":
        used = max(case.overlap * case.accumulation, 3)
        saved["position"] += max(saved["position"], 2) if case.how == "as many again" else used
    elif case.kind == "wrong_checkpoint":
        for name in ("model", "optimizer") if case.how == "of another run" else ("model",):
            saved[name] = wrong[name]


def _break_part(case: Case, text: Path, saved: dict[str, Any]) -> None:
    """Break what only some trainings have: the checkpoint, or the data."""
    if case.kind == "data content":
        data = text.read_bytes()
        ways = {"capitals": data.upper(), "without spaces": data.replace(b" ", b"")}
        text.write_bytes(ways.get(case.how, data[::-1]))
    elif case.kind == "ema":
        del saved["ema"]
    elif case.kind == "second optimizer":
        saved["second"]["state"] = {}
        saved["second"]["param_groups"][0]["lr"] *= 0.1 if case.how == "of no use" else 1.0
    elif case.kind == "replay buffer":
        rows = saved["replay"]
        other = [[(at + 7) % 96 for at in row] for row in rows]
        saved["replay"] = {"empty": [], "in another order": rows[::-1]}.get(case.how, other)
    elif case.kind == "precision" and case.how == "weights":
        weights = saved["model"].items()
        saved["model"] = {
            name: one.bfloat16().float() if one.is_floating_point() else one for name, one in weights
        }


def _session(folder: Path, settings: dict[str, Any], job: dict[str, Any], name: str) -> None:
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "job.json").write_text(json.dumps(job))
    session = sessions.start(folder, f"session-{name}.txt")
    sessions.end(session, f"session {name} of {folder}", -signal.SIGKILL if job["kill_at"] > 0 else 0)


def make_all(wanted: list[Case], root: Path) -> None:
    """Make the cases that are not there yet, with all processors."""
    root.mkdir(parents=True, exist_ok=True)
    text = _text()
    missing = [case for case in wanted if not (root / case.name / "done").exists()]
    if missing:
        sessions.import_all()
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), fork) as pool:
            made = pool.map(_made, missing, itertools.repeat(root), itertools.repeat(text))
            for number, problem in enumerate(made, 1):
                if problem or number % 50 == 0:
                    say(problem or f"{number} of {len(missing)} are made")


def _made(case: Case, root: Path, text: bytes) -> str:
    """Make a case, and return why it could not be made."""
    try:
        make(case, root, text)
    except RuntimeError as error:
        return str(error)
    (root / case.name / "done").touch()
    return ""


def _text() -> bytes:
    """Return lines of made words, the same ones always: in some parts there are few of them, in others many."""
    chance = random.Random(0)
    letters = "eeeettaaooiinnsshhrrdlucmfwypvbgkjqxz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(500)]
    words[::7] = [word.capitalize() for word in words[::7]]
    words[::11] = [str(chance.randint(1, 9999)) for _ in words[::11]]
    lines = (chance.choices(words[: 4 << line // 8 % 8], k=12) for line in range(600))
    return "".join(f"{' '.join(line)}{chance.choice('.,:;!')}\n" for line in lines).encode()
