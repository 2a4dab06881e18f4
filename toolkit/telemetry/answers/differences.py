"""What differs between two runs, and from which step on each of it can act."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from toolkit.telemetry.answers.evidence import RunEvidence
from toolkit.telemetry.answers.repeats import options_of
from toolkit.telemetry.runfolder.evidence.batches import read_batches
from toolkit.telemetry.runfolder.evidence.code_snapshot import (
    CodeChange,
    CodeSnapshot,
    changed_files,
    read_code,
)
from toolkit.telemetry.runfolder.key_values import USUAL_NAMES, config_of
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE
from toolkit.telemetry.runfolder.untrusted import mapping_in
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.listing.config_diff import MISSING, DiffRow, diff
from toolkit.telemetry.runs.settings import UNSET, is_label, setting_text

LR, SCHEDULE, SEED, DATA, BATCH = "learning rate", "schedule", "seed", "data order", "batch size"
WORLD, DTYPE, SETTING, CODE, PACKAGE = "world size", "dtype", "setting", "code", "package"
RESUME, REQUEST, MACHINE, COSMETIC = "resume", "request", "machine", "cosmetic"
COMMAND: Final = "command line"

_KINDS: Final = {
    LR: r"(^|_)(lr|learning_rate)$",
    SCHEDULE: r"warm_?up|schedul|^lr_|_lr$|decay_steps|^(max_|num_|total_|train_)*(steps|epochs)$",
    DATA: r"data_?seed|shuffle|sampler|data_?set|^data($|_)|train_(file|data|split)|num_workers",
    SEED: r"(^|_)seed$",
    BATCH: r"batch_?size|accumulat|grad_accum|micro_?batch",
    WORLD: r"world_size|num_(processes|nodes|gpus)|^n_?gpus?$|^devices$|_parallel",
    DTYPE: r"dtype|precision|^(fp16|bf16|fp8|tf32|amp|half)$|autocast|quantiz",
}
"""Names of settings of each kind; any other is a SETTING."""
_NO_EFFECT: Final = re.compile(
    r"(^|_)(log|logs|logging|logger|eval|evaluation|save|saving|report|print|verbose|progress|tqdm|wandb|tensorboard"
    r"|mlflow|telemetry|notes?|comment|description|project|entity|group|tags?|hub)($|_)"
    r"|^(checkpoint|sample|val|validation|plot)_.*(every|interval|freq|steps|dir|limit)"
    r"|(output|run|experiment|cache|results?)_?(dir|folder|path|name|root)$"
)
_FROM_THE_START: Final = frozenset({SEED, BATCH, WORLD, DTYPE})
_NOT_SETTINGS: Final = re.compile(
    r"(cuda|cudnn|driver|determinism|seeds|data|perf_tag|usage_reports|first_step|resumed_from_step)$|job_"
)
_MACHINE: Final = ("accelerators", "cuda", "cudnn", "driver", "determinism", "python", "cpu", "os")
_STACK: Final = re.compile(
    r"torch|numpy|transformers|accelerate|peft|trl|lightning|diffusers|datasets|tokenizers|bitsandbytes|triton|flash"
    r"|xformers|deepspeed|nvidia|jax|flax|optax|tensorflow|keras|timm|scipy|safetensors|megatron|apex"
)
"""Packages that take part in a training also where its own code does not name them."""
_IMPORTED_AS: Final = {"pil": "pillow", "cv2": "opencv-python", "sklearn": "scikit-learn", "yaml": "pyyaml"}
_IMPORT: Final = re.compile(r"^[ \t]*(?:import|from)[ \t]+(\w+)", re.MULTILINE)
_USUAL: Final = 0.5
_LONGEST: Final = 60
_LONGEST_LINE: Final = 500
_NOT_RECORDED: Final = "not recorded"
_Starts = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that differs."""

    kind: str
    what: str
    a: str = ""
    b: str = ""
    acts: int | None = None
    """The first step, of those done, at which it can show; None if it may at any."""
    is_seen: bool = False
    """Whether records show that step: the first rate or batch that differs, a resume, a request."""
    is_batch: bool = False
    """Whether it is a batch that was recorded: that follows from a difference that changed the batches."""
    weight: float = 0.9
    """How often such a difference is the cause, compared with others that fit as well."""
    note: str = ""

    @property
    def text(self) -> str:
        """What differs, in a few words."""
        change = f"{self.a} → {self.b}" if self.a or self.b else ""
        return " ".join(part for part in (self.what, change, f"({self.note})" if self.note else "") if part)


@dataclass(slots=True)
class Differences:
    """Everything that the runs recorded about how they were made, compared."""

    runs: tuple[RunEvidence, RunEvidence]
    offsets: tuple[int, int]
    """What turns a step of each run into steps that are done."""
    found: list[Difference] = field(default_factory=list)
    code: list[CodeChange] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """What is not recorded in both runs, so that it cannot be compared."""
    batches_equal_to: int | None = None
    """The last step up to which both have the same batches, where those were recorded."""

    def may_act_by(self, step: int) -> bool:
        """Return whether anything differs that usually changes a training, and may by this step."""
        return any(one.weight >= _USUAL and (one.acts or 0) <= step for one in self.found)

    def find(self, lr_step: int | None, *, has_lr: bool) -> None:
        """Compare them; `lr_step` is the first step whose learning rate differs, where both recorded it."""
        starts = [run.sessions[0].start for run in self.runs]
        batches = list(self._batches())
        settings = list(self._settings(starts))
        by_kind = {LR: lr_step, SCHEDULE: lr_step, DATA: batches[0].acts if batches else None}
        known = {LR: has_lr, SCHEDULE: has_lr, DATA: self.batches_equal_to is not None}
        for one in settings:
            if known.get(one.kind):
                at = by_kind[one.kind]
                what = "batches" if one.kind == DATA else "learning rates"
                note = "" if at else f"the recorded {what} are the same"
                weight = one.weight if at else 0.0
                one = replace(one, acts=at, is_seen=at is not None, weight=weight, note=note)
            self.found.append(one)
        if lr_step is not None and not any(one.kind in (LR, SCHEDULE) for one in settings):
            note = "no setting of it differs"
            self.found.append(_event(LR, "the recorded learning rate", lr_step, 0.2, note=note))
        self.found += [*batches, *self._code(), *self._packages(starts), *_machines(starts)]
        self.found += [*self._resumes(), *self._requests()]

    def _settings(self, starts: _Starts) -> Iterator[Difference]:
        both = zip(self.runs, starts, strict=True)
        configs = [config_of(dict(start)) if run.is_ours else dict(run.settings) for run, start in both]
        # What a script takes from its command line and logs nowhere else.
        options = [options_of(start.get("command_line")) for start in starts]
        configs = [
            {key: one[key] for key in one if not _NOT_SETTINGS.match(key)}
            for one in ({**given, **config} for given, config in zip(options, configs, strict=True))
        ]
        if not all(configs):
            self.missing.append("settings")
            configs = [{key: config[key] for key in config if key == "world_size"} for config in configs]
        seen = set()
        for row in diff(configs):
            if any(value is MISSING for value in row.values) and any(
                value is None or value is False for value in row.values
            ):
                # Off and not set are the same.
                continue
            kind, name = kind_of_setting(row.key), row.key.rpartition(".")[2]
            weight = {SETTING: 0.6, COSMETIC: 0.02}.get(kind, 0.9)
            one = _row(row, kind, weight, acts=1 if kind in _FROM_THE_START else None)
            if row.key == "world_size":
                one = replace(one, a=one.a.replace("not set", "1"), b=one.b.replace("not set", "1"))
            # A start record has well-known settings again, under their usual names.
            key = (USUAL_NAMES.get(name, name), one.a, one.b)
            if key not in seen:
                yield one
            seen.add(key)
        for row in _compared(starts, "seeds"):
            yield _row(row, SEED, 0.3, f"seed of {clean(row.key)}", acts=1)

    def _batches(self) -> Iterator[Difference]:
        """Yield the first batch that differs, and note how far they are the same."""
        both = zip(self.runs, self.offsets, strict=True)
        one, two = (_by_step(run, offset) if run.is_ours else {} for run, offset in both)
        shared = sorted(one.keys() & two.keys())
        if not shared:
            self.missing.append("batches")
            return
        step = next((step for step in shared if one[step] != two[step]), None)
        before = [at for at in shared if step is None or at < step]
        self.batches_equal_to = before[-1] if before else 0
        if step is not None:
            a, b = (" + ".join(str(samples) for _, samples in rows[:4]) for rows in (one[step], two[step]))
            kind, name = (DATA, "samples or order") if a == b else (BATCH, f"size ({a} → {b})")
            what = f"{name} of the batch of step {step - self.offsets[0]:,}"
            yield _event(kind, what, step, 0.6, is_batch=True)

    def _code(self) -> Iterator[Difference]:
        one, two = (list(read_code(run.path).values()) if run.is_ours else [] for run in self.runs)
        if not one or not two:
            self.missing.append("code")
            return
        pairs = ((one[-1], two[-1]), (one[0], two[0]))
        self.code = list({change.path: change for x, y in pairs for change in changed_files(x, y)}.values())
        for name, snapshot in (("a", one[-1]), ("b", two[-1])):
            if snapshot.problem is not None:
                yield Difference(kind=CODE, what=f"code of run {name}", weight=0.1, note=snapshot.problem)
        for change in self.code:
            if change.only_in is not None:
                kind, weight, note = CODE, 0.1, f"kept by run {change.only_in} only"
            elif _same_program(one[0].text(change.path), two[0].text(change.path)):
                kind, weight, note = COSMETIC, 0.01, "comments and layout only"
            else:
                kind, weight, note = CODE, 0.5, _changed_words(change.unified_diff)
            yield Difference(kind=kind, what=clean(change.path), weight=weight, note=note)
        if not self.code and one[0].commit != two[0].commit:
            a, b = (str(snapshot.commit)[:10] for snapshot in (one[0], two[0]))
            yield Difference(kind=CODE, what="commit", a=a, b=b, weight=0.2, note="no kept file differs")

    def _packages(self, starts: _Starts) -> Iterator[Difference]:
        if not all(start.get("packages") for start in starts):
            self.missing.append("packages")
        kept = [code for run in self.runs if run.is_ours for code in read_code(run.path).values()]
        texts = [code.text(path) or "" for code in kept for path in code.files]
        names = {name.lower() for text in texts for name in _IMPORT.findall(text)}
        imported = {_IMPORTED_AS.get(name, name).replace("_", "-") for name in names}
        for row in _compared(starts, "packages"):
            name = row.key.strip('"').lower().replace("_", "-")
            is_used = name in imported
            weight = 0.5 if is_used else 0.25 if _STACK.search(name) else 0.02 if imported else 0.1
            note = "" if is_used or not imported else "the kept code does not import it"
            yield _row(row, PACKAGE, weight, note=note)

    def _resumes(self) -> Iterator[Difference]:
        both = zip(self.runs, self.offsets, strict=True)
        a, b = ({min(one.steps) + offset for one in run.sessions[1:] if one.steps} for run, offset in both)
        for step in sorted(a ^ b):
            what = f"the resume of run {'a' if step in a else 'b'} at step {step - self.offsets[0]:,}"
            yield _event(RESUME, what, step, 0.8)

    def _requests(self) -> Iterator[Difference]:
        sides: list[set[tuple[int, str]]] = [set(), set()]
        for run, offset, side in zip(self.runs, self.offsets, sides, strict=True):
            for record in (one for session in run.sessions for one in session.events_of(CONTROL_CHANGE)):
                step, actions = record.get("global_step"), record.get("actions")
                asked = [
                    f"{key[6:-4]} {record[key]}" for key in record if re.fullmatch("knobs/[^/]+/new", key)
                ]
                asked += map(str, actions if isinstance(actions, list) else ())
                if record.get("status") in ("applied", "clamped") and type(step) is int and asked:
                    side.add((step + offset, clean(", ".join(asked))))
        for step, text in sorted(sides[0] ^ sides[1]):
            name = "a" if (step, text) in sides[0] else "b"
            what = f"the request to run {name} at step {step - self.offsets[0]:,}: {text}"
            # An action such as a save has no value; a knob has.
            yield _event(REQUEST, what, step, 0.8 if " " in text else 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How a run was made: what is recorded at its start."""

    settings: Mapping[str, Any]
    """In one level, by usual names."""
    start: Mapping[str, Any]
    """The start record of its newest session."""
    code: CodeSnapshot | None = None
    """That of its newest session."""

    @property
    def commit(self) -> str:
        """The commit, and whether its files were changed; empty where that is not recorded."""
        known = mapping_in(self.start.get("git"))
        commit = (self.code and self.code.commit) or known.get("commit")
        dirty = self.code.dirty if self.code is not None and self.code.commit else known.get("dirty")
        return f"{clean(str(commit))[:10]}{', changed' if dirty else ''}" if commit else ""


class MadeRow(NamedTuple):
    """One thing in which runs were made differently, and what it is in each of them."""

    kind: str
    what: str
    values: tuple[str, ...]


def made_differently(runs: Sequence[Made]) -> list[MadeRow]:
    """Return what several runs recorded differently: settings, code, command line, packages and machine.

    What only names a run is no difference. A run that did not record a thing at all does not differ in it.
    """
    starts = [run.start for run in runs]
    rows = [
        MadeRow(kind_of_setting(row.key), clean(row.key.strip('"')), _texts_of(row.values))
        for row in diff([run.settings for run in runs])
        if not is_label(row.key)
    ]
    texts = [run.commit for run in runs], [_command_line(start) for start in starts]
    for kind, what, values in zip((CODE, COMMAND), ("commit", ""), texts, strict=True):
        if len({value for value in values if value}) > 1:
            rows.append(MadeRow(kind, what, tuple(value or _NOT_RECORDED for value in values)))
    machines = [{name: start[name] for name in _MACHINE if name in start} for start in starts]
    for kind, recorded in (
        (PACKAGE, [mapping_in(start.get("packages")) for start in starts]),
        (MACHINE, machines),
    ):
        known = [place for place, found in enumerate(recorded) if found]
        for row in diff([recorded[place] for place in known]):
            texts_of = dict(zip(known, _texts_of(row.values), strict=True))
            every = tuple(texts_of.get(place, _NOT_RECORDED) for place in range(len(runs)))
            rows.append(MadeRow(kind, clean(row.key.strip('"')), every))
    return rows


def _command_line(start: Mapping[str, Any]) -> str:
    found = start.get("command_line")
    return clean(" ".join(map(str, found)) if isinstance(found, list) else str(found or ""))[:_LONGEST_LINE]


def _texts_of(values: Sequence[Any]) -> tuple[str, ...]:
    """Return values as texts: numbers with few digits, unless two different ones would look the same."""
    exact, short = (
        tuple(
            UNSET
            if value is MISSING
            else "null"
            if value is None
            else clean(setting_text(value, exact=is_exact))
            for value in values
        )
        for is_exact in (True, False)
    )
    return short if len(set(short)) == len(set(exact)) else exact


def kind_of_setting(key: str) -> str:
    """Return which kind of cause a setting is, by its name."""
    *parents, last = [part for part in re.split(r"[./\[\]\"]+", key.lower()) if not part.isdigit()] or [""]
    if is_label(key) or _NO_EFFECT.search(last) or {"telemetry", "wandb", "logging"} & set(parents):
        return COSMETIC
    names = f"{last}\n{USUAL_NAMES.get(last, last)}"
    return next((kind for kind, form in _KINDS.items() if re.search(form, names, re.MULTILINE)), SETTING)


def _row(row: DiffRow, kind: str, weight: float, what: str = "", **more: Any) -> Difference:
    a, b = map(_text, row.values)
    return Difference(kind=kind, what=what or clean(row.key), a=a, b=b, weight=weight, **more)


def _event(kind: str, what: str, step: int, weight: float, **more: Any) -> Difference:
    return Difference(kind=kind, what=what, acts=step, is_seen=True, weight=weight, **more)


def _text(value: Any) -> str:
    text = "not set" if value is MISSING else "null" if value is None else clean(setting_text(value))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _compared(starts: _Starts, name: str) -> list[DiffRow]:
    """Return what differs in a field of the start records that both have."""
    sides = [start.get(name) for start in starts]
    mappings = [side for side in sides if isinstance(side, dict) and side]
    return diff(mappings) if len(mappings) == len(sides) else []


def _by_step(run: RunEvidence, offset: int) -> dict[int, list[tuple[int, int]]]:
    """Return fingerprint and size of the batches of each step, as the newest session trained it."""
    rows = read_batches(run.path)
    found: dict[int, list[tuple[int, int]]] = {}
    sessions: dict[int, int] = {}
    columns = (rows.session, rows.step, rows.fingerprint, rows.samples)
    for session, step, mark, samples in zip(*columns, strict=True):
        if step >= 0:
            if sessions.get(step) != session:
                found[step + offset], sessions[step] = [], session
            found[step + offset].append((mark, samples))
    return found


def _same_program(one: str | None, two: str | None) -> bool:
    """Return whether two texts are the same Python program, but for comments and layout."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            a, b = (ast.dump(ast.parse(text or "?")) for text in (one, two))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return a == b


def _changed_words(diff_text: str) -> str:
    """Return what changed in one line, from its first word that differs to its last; else how many lines."""
    lines = re.findall(r"^[-+](?![-+]{2}).*", diff_text, re.MULTILINE)
    if [line[0] for line in lines] != ["-", "+"]:
        return f"{len(lines):,} lines"
    one, two = (line[1:].split() for line in lines)
    for end in (0, -1):
        while one and two and one[end] == two[end]:
            del one[end], two[end]
    return f"{_text(' '.join(one))} → {_text(' '.join(two))}"


def _machines(starts: _Starts) -> Iterator[Difference]:
    known = [{name: start[name] for name in _MACHINE if name in start} for start in starts]
    for row in diff(known) if all(known) else ():
        yield _row(row, MACHINE, 0.02 if row.key.startswith(("cpu", "os")) else 0.1)
    found = [start["data"] if isinstance(start.get("data"), list) else [] for start in starts]
    a, b = ({str(item.get("path")): item for item in items if isinstance(item, dict)} for items in found)
    for path in [path for path in a if path in b]:
        if any(a[path].get(name) != b[path].get(name) for name in ("bytes", "files", "hash")):
            yield Difference(kind=DATA, what=f"the content of the data in {_text(path)}", acts=1, weight=0.8)
