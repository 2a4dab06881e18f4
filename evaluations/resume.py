"""How often `telemetry why` says rightly whether a resume continued the same training, and names what broke it."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evaluations.figures import Options, interval, say, share, table
from evaluations.resume_cases import (
    CAUSES,
    HELD_OUT,
    PARTS,
    RIGHT,
    TUNED_ON,
    UNLISTED,
    UNSEEN,
    Case,
    cases,
    unlisted,
)
from evaluations.resume_runs import make_all
from toolkit.telemetry.answers.evidence import read_evidence
from toolkit.telemetry.answers.resume import answer_resumes
from toolkit.telemetry.diagnostics.metric_aliases import LOSS
from toolkit.telemetry.diagnostics.resume import judge
from toolkit.telemetry.diagnostics.resume.judge import DIFFERENT, SAME, UNKNOWN, Judgement

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
    answer: str
    cause: str
    area: str
    how: str
    sure: float
    cause_sure: float
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
        truth = self.case.truth
        return (self.cause or self.answer) == truth if truth in (SAME, *CAUSES) else self.answer == DIFFERENT

    @property
    def is_cause_right(self) -> bool:
        """Whether what was named is what was injected: of an unlisted breakage, its area."""
        return self.is_right if self.case.truth in CAUSES else self.area == self.case.area


def run(options: Options) -> str:
    """Make the runs, or take those that an earlier call made; judge them, and return the figures as Markdown."""
    listed = cases([0] if options.quick else [*TUNED_ON, *HELD_OUT])
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
        "broken in one of nine listed ways, or right in one of nine; tuned on seeds 0 to 4, these are 5 to 9."
    )
    unlisted_about = (
        "The others are of kinds that the judge has no name for; two rules were written with other seeds of them in "
        "sight. The area is weights and state, data, random numbers, settings, code, or not recorded:"
    )
    held_out = [one for one in of_list if one.case.seed in HELD_OUT]
    parts = [about, _summary(held_out), unlisted_about, _of_unlisted(others)]
    parts += ["Right causes, by their probability:", _calibration(said)]
    return "\n\n".join([*parts, f"Answers that contradict their own evidence: {against} of {len(said)}."])


def _summary(said: Sequence[Said]) -> str:
    rows = []
    for evidence in _EVIDENCE:
        these = [one for one in said if one.evidence == evidence]
        broken = [one for one in these if one.case.truth != SAME]
        right = [one for one in these if one.case.truth == SAME]
        if broken and right:
            wrong = sum(one.answer == DIFFERENT for one in right)
            shares = [
                _share(broken, lambda one: one.is_right),
                _share(broken, lambda one: one.answer == UNKNOWN),
                _share(broken, lambda one: one.answer == SAME),
                f"{wrong} of {len(right)}, at most {interval(wrong, len(right))[1]:.3f}",
                _share(right, lambda one: one.answer == UNKNOWN),
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
            _share(shown, lambda one: one.answer == DIFFERENT),
            _share(shown, lambda one: one.answer == SAME),
            _share(shown, lambda one: one.is_cause_right),
        ]
        limited = (sum(one.answer == answer for one in hidden) for answer in (SAME, UNKNOWN))
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
            named = [one for one in named if one.answer == DIFFERENT and (one.has_difference or is_listed)]
            right: list[list[bool]] = [[] for _ in _LEVELS]
            for one in named:
                right[sum(one.cause_sure >= least for least in _LEVELS) - 1].append(one.is_cause_right)
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
    sure = found.probability, found.cause_probability
    said = found.answer, found.cause, found.area, found.how
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
    return Said(case, evidence, *said, *sure, contradictions(found), any(one != two for one, two in pairs))


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
    texts = [here / f"resume_{name}.py" for name in ("cases", "runs")]
    texts += [here / "sessions.py", *sorted(here.glob("resume_scripts/*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in texts)).hexdigest()[:10]
