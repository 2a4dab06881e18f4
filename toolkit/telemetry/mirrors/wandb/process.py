"""The process that runs W&B: reads messages from its input, answers each on its output.

Run as a file by `client.py`. It imports nothing of this package, which may not be importable there under its own name.
"""

from __future__ import annotations

import json
import netrc
import os
import signal
import sys
import threading
from typing import IO, Any
from urllib.parse import urlsplit

FINISH_TIMEOUT_S = 300.0

# W&B must collect nothing by itself: it sees the records that it is given and nothing else.
PRIVACY: dict[str, Any] = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
# Silent, no links in the run folder, and a time limit.
BEHAVIOUR: dict[str, Any] = {"silent": True, "symlink": False, "init_timeout": 60.0}


def main() -> None:
    """Serve one W&B run. Any failure ends the process, and its last line on stderr says why."""
    # A signal to the whole job is for the training; this process ends after it, on a message or at end of file.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    os.umask(0o077)
    requests, answers = _take_pipes()
    sys.path[:] = json.loads(requests.readline())["path"]
    line = requests.readline()
    if not line:
        return
    run = _start_run(json.loads(line), answers)
    exit_code = 1
    for line in requests:
        message = json.loads(line)
        if "finish" in message:
            exit_code = message["finish"]
            break
        _send(run, message)
        _answer(answers, {"taken": True})
    _finish(run, exit_code)


def _take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Keep the two pipes private: what W&B reads or prints must not mix with the messages."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    return requests, answers


def _start_run(settings: dict[str, Any], answers: IO[bytes]) -> Any:
    import wandb

    missing = sorted(set(PRIVACY) - set(wandb.Settings.model_fields))
    if missing:
        sys.exit(
            f"this version of W&B ({wandb.__version__}) has no setting {missing}: pip install --upgrade wandb"
        )
    mode = settings["mode"]
    without_key = mode is None and not _has_key(wandb.setup().settings)
    folder = settings["folder"]
    run = wandb.init(
        project=_name(settings["project"]),
        name=settings["run_name"],
        id=_name(settings["run_id"]),
        dir=folder,
        mode=mode or ("offline" if without_key else "online"),
        resume="allow",
        settings=wandb.Settings(**PRIVACY, **BEHAVIOUR),
    )
    run.define_metric("global_step", hidden=True)
    run.define_metric("*", step_metric="global_step")
    _answer(answers, {"without_key": without_key, "folder": os.path.dirname(run.dir)})
    return run


def _has_key(settings: Any) -> bool:
    """Return whether W&B has an API key here; never prompts."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE") or settings.api_key:
        return True
    try:
        login = netrc.netrc(os.environ.get("NETRC")).authenticators(urlsplit(settings.base_url).netloc)
    except (OSError, netrc.NetrcParseError):
        return False
    return login is not None and bool(login[2])


def _send(run: Any, message: dict[str, Any]) -> None:
    if "config" in message:
        run.config.update(message["config"], allow_val_change=True)
    for row in message.get("rows", ()):
        run.log(row["row"], step=row["step"], commit=True)


def _finish(run: Any, exit_code: int) -> None:
    # The training is over and does not wait for this process: it must not stay forever.
    watchdog = threading.Timer(FINISH_TIMEOUT_S, os._exit, [1])
    watchdog.daemon = True
    watchdog.start()
    run.finish(exit_code=exit_code)


def _answer(answers: IO[bytes], message: dict[str, Any]) -> None:
    try:
        answers.write(json.dumps(message).encode() + b"\n")
        answers.flush()
    except BrokenPipeError:
        # The reader is gone; the end of the requests comes next.
        pass


def _name(text: str) -> str:
    """Return `text` without the characters that W&B refuses in a name."""
    return "".join("-" if character in "/\\#?%:" else character for character in text)[:128] or "run"


if __name__ == "__main__":
    main()
