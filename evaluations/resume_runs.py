"""Trains runs that are killed and resumed, rightly or not: `python -m evaluations.resume_runs FOLDER`.

Every session is a process of its own that runs a real script; the first is ended by SIGKILL. A resume is broken by what
its checkpoint lacks or has wrong, by other settings or by an edited script; the scripts load what they find.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import random
import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from evaluations.figures import say
from evaluations.resume_breakages import break_checkpoint, checkpoint_of
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
    job |= {"kill_at": -1, "resume_from": str(checkpoint_of(case.resumed_at))}
    break_checkpoint(case, folder, job)
    _change(case, folder, settings)
    _session(folder, settings, job, "2")
    for left in ("saved", "donor", "text.bin"):
        target = folder / left
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)


def _settings(case: Case) -> dict[str, Any]:
    chance = random.Random(f"settings {case.name}")
    parts = 2 if case.seed % 5 == 2 else 1
    return {
        "seed": case.seed,
        "data_seed": case.seed,
        "batch_size": 8 // parts,
        "accumulation": parts,
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


def _session(folder: Path, settings: dict[str, Any], job: dict[str, Any], name: str) -> None:
    """Run the script in a process of its own, forked from this one, which has imported all that takes long."""
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "job.json").write_text(json.dumps(job))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # As a user's training records: what a test run or a shell turned off, such as the code, is on.
            for variable in [one for one in os.environ if one.startswith("TELEMETRY_")]:
                del os.environ[variable]
            os.chdir(folder)
            with open(f"session-{name}.txt", "wb", 0) as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            sys.path.insert(0, str(folder))
            sys.argv = ["train.py"]
            runpy.run_path("train.py", run_name="__main__")
            if folder.name == "imports":
                Path("modules.json").write_text(json.dumps([*sys.modules]))
            code = 0
        finally:
            if code:
                sys.excepthook(*sys.exc_info())
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    ended = os.waitstatus_to_exitcode(status)
    if ended != (-9 if job["kill_at"] > 0 else 0):
        raise RuntimeError(f"session {name} of {folder} ended with {ended}: see session-{name}.txt there")


def make_all(wanted: list[Case], root: Path) -> None:
    """Make the cases that are not there yet, with all processors."""
    root.mkdir(parents=True, exist_ok=True)
    text = _text()
    missing = [case for case in wanted if not (root / case.name / "done").exists()]
    if missing:
        _import_all(root, text)
        with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
            jobs = [(case, root, text) for case in missing]
            for number, problem in enumerate(pool.imap_unordered(_made, jobs), 1):
                if problem or number % 50 == 0:
                    say(problem or f"{number} of {len(missing)} are made")


def _made(job: tuple[Case, Path, bytes]) -> str:
    """Make a case, and return why it could not be made."""
    case, root, text = job
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
    for name in json.loads((root / case.name / "modules.json").read_text()):
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
