"""Trains runs that are killed and resumed, rightly or not: `python -m evaluations.resume_runs FOLDER`.

Every session is a process of its own that runs a real script; the first is ended by SIGKILL. A resume is broken by what
its checkpoint lacks or has wrong, by other settings or by an edited script; the scripts load what they find.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from evaluations import sessions
from evaluations.figures import say
from evaluations.resume_cases import PARTS, PLAIN, Case, case_of

_SCRIPTS: Final = Path(__file__).with_name("resume_scripts")
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
    job |= {"kill_at": -1, "resume_from": str(_checkpoint(case.resumed_at))}
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


def _checkpoint(step: int) -> Path:
    """Return where the scripts save the checkpoint of a step."""
    return Path(f"saved/step-{step}.pt")


def _break_checkpoint(case: Case, folder: Path, job: dict[str, Any]) -> None:
    """Break the checkpoint that `case` resumes from, or what its job says."""
    import torch

    path = folder / _checkpoint(case.saved_at)
    saved = torch.load(path, weights_only=False)
    if case.trainer == PARTS:
        _break_part(case, folder / "text.bin", saved)
        job["fault"] = case.kind
    else:
        earlier, other = folder / _checkpoint(case.saved_at // 2), folder / "donor" / path.name
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
        _import_all(root, text)
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


def _import_all(root: Path, text: bytes) -> None:
    """Import what the scripts import in the course of a training, so that each session is forked with it."""
    import torch

    # Forked processes inherit no threads, so there must be none that they wait for.
    torch.set_num_threads(1)
    case = replace(case_of(PLAIN, 0, 0, "exact"), name="imports")
    make(case, root, text)
    for name in json.loads((root / case.name / sessions.MODULES).read_text()):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    shutil.rmtree(root / case.name)


def _text() -> bytes:
    """Return lines of made words, the same ones always: in some parts there are few of them, in others many."""
    chance = random.Random(0)
    letters = "eeeettaaooiinnsshhrrdlucmfwypvbgkjqxz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(500)]
    words[::7] = [word.capitalize() for word in words[::7]]
    words[::11] = [str(chance.randint(1, 9999)) for _ in words[::11]]
    lines = (chance.choices(words[: 4 << line // 8 % 8], k=12) for line in range(600))
    return "".join(f"{' '.join(line)}{chance.choice('.,:;!')}\n" for line in lines).encode()
