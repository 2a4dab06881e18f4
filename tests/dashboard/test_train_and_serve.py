"""`make run`: pages and trainer live side by side, and neither is left behind. The trainer here is a stand-in."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from tests.waiting import wait_until

pytest.importorskip("streamlit")

from dashboard.train_and_serve import Training
from tests.dashboard.serving import PATIENCE_S, Started, fork_dashboard, free_port, get
from tests.lengths import in_make_faults
from tests.project.markdown import ROOT

LIKE_THE_TRAINER = """
    import signal, sys, time
    reported = []
    def note(number, frame):
        reported.append(number)
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.signal(signal.SIGINT, note)
    signal.signal(signal.SIGTERM, note)
    print("training", sys.argv[1:], flush=True)
    while not reported:
        time.sleep(0.01)
    print("saving", flush=True)
    time.sleep(float(sys.argv[1]))
    print("saved", flush=True)
    raise SystemExit(130 if reported[0] == signal.SIGINT else 143)
"""

# A session of its own, whose terminal is what it was given as standard input: what a shell does for us.
IN_A_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def command(folder, trainer, *arguments):
    """What `make run` starts, on a free port; `trainer` may take the place of run.py."""
    file = None
    if trainer is not None:
        file = folder / "trainer.py"
        file.write_text(textwrap.dedent(trainer))
    code = f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(ROOT)!r})
        from dashboard import launcher, listening, train_and_serve
        launcher.DEFAULT_PORT = listening.DEFAULT_PORT = {free_port()}
        if {file is not None}:
            train_and_serve._RUN_PY = Path({str(file)!r})
        raise SystemExit(train_and_serve.main({list(arguments)!r}))
    """
    return [sys.executable, "-c", textwrap.dedent(code)]


def train_and_serve(folder, trainer, *arguments):
    return Started(command(folder, trainer, *arguments)[1:], folder, start=fork_dashboard)


def children_of(started):
    return psutil.Process(started.process.pid).children(recursive=True)


def test_pages_stay_when_the_training_has_ended_and_ctrl_c_ends_them(tmp_path):
    with train_and_serve(tmp_path, "print('trained')") as started:
        started.wait_for("Training finished")
        started.wait_until_ready()
        status, _, _ = get(started.port)
        code, seconds = started.end(signal.SIGINT)

    assert status == 200
    assert (code, started.err) == (0, "")
    assert seconds < 30
    first, *_, last = started.out.splitlines()
    assert first == (
        f"Dashboard: http://localhost:{started.port}  (runs in {started.cwd / 'logs'})  "
        f"To stop: kill {started.process.pid}"
    )
    assert last == (
        f"Training finished. The dashboard is still at http://localhost:{started.port} "
        f"(to stop it: kill {started.process.pid})."
    )


def test_a_failed_training_stays_visible_and_sets_the_exit_code(tmp_path):
    with train_and_serve(tmp_path, "raise SystemExit(3)") as started:
        started.wait_for("Training failed with exit code 3. The dashboard is still at")
        started.wait_until_ready()
        status, _, _ = get(started.port)
        code, _ = started.end(signal.SIGINT)

    assert (status, code) == (200, 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=in_make_faults)])
def test_a_signal_ends_both_and_lets_the_trainer_save(tmp_path, number):
    with train_and_serve(tmp_path, LIKE_THE_TRAINER, "0.5") as started:
        started.wait_for("training ['0.5']")
        children = children_of(started)
        code, _ = started.end(number)

    assert code == 0
    assert started.out.splitlines()[-2:] == ["saving", "saved"]
    assert len(children) == 1
    assert not any(child.is_running() for child in children)


def test_without_a_terminal_the_first_interrupt_is_handed_to_the_trainer(tmp_path):
    with train_and_serve(tmp_path, LIKE_THE_TRAINER, "0") as started:
        started.wait_for("training")
        started.process.send_signal(signal.SIGINT)
        started.wait_for("Training was stopped. The dashboard is still at")
        started.wait_until_ready()
        status, _, _ = get(started.port)
        code, _ = started.end(signal.SIGINT)

    assert (status, code) == (200, 0)
    assert "saved" in started.out


@in_make_faults
def test_a_second_interrupt_ends_a_trainer_that_takes_long_to_save(tmp_path):
    with train_and_serve(tmp_path, LIKE_THE_TRAINER, "60") as started:
        started.wait_for("training")
        children = children_of(started)
        started.process.send_signal(signal.SIGINT)
        started.wait_for("saving")
        code, seconds = started.end(signal.SIGINT)

    assert code == 0
    assert seconds < 30
    assert "saved" not in started.out
    assert not any(child.is_running() for child in children)


@in_make_faults
def test_a_trainer_that_ignores_signals_is_killed(tmp_path):
    deaf = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("training", flush=True)
        time.sleep(600)
    """
    with train_and_serve(tmp_path, deaf) as started:
        started.wait_for("training")
        children = children_of(started)
        # While the pages are being closed a signal is theirs; a later one is for the trainer, which has a minute else.
        for _ in range(20):
            started.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(1.5)
                break
        code = started.process.poll()

    assert code == 0
    assert "Training did not stop in time" not in started.err
    assert not any(child.is_running() for child in children)


def test_a_signal_while_the_trainer_is_being_started_calls_it_off(tmp_path):
    ended = []
    training = Training([sys.executable, "-c", "import time; time.sleep(60)"], folder=tmp_path, environ={})

    assert not training.forward_signal(signal.SIGTERM)
    training.start(on_end=ended.append)
    assert training.finish() == 0
    assert ended == []


def test_in_a_terminal_ctrl_c_reaches_the_trainer_once(tmp_path):
    """A terminal sends Ctrl-C to both; were it handed on as well, the trainer would take it for the second."""
    main, other = pty.openpty()
    (tmp_path / "home").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, *command(tmp_path, LIKE_THE_TRAINER, "0.5")],
        stdin=other,
        stdout=other,
        stderr=other,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path / "home"), "DISPLAY": "", "WAYLAND_DISPLAY": ""},
    )
    os.close(other)
    seen = ""

    def read_on():
        nonlocal seen
        if select.select([main], [], [], 0.1)[0]:
            seen += os.read(main, 4096).decode()

    def read_until(text):
        wait_until(lambda: text in seen, pause=read_on)

    try:
        read_until("training [")
        os.write(main, b"\x03")
        read_until("saved")
        read_until("Training was stopped. The dashboard is still at http://localhost:")
        read_until("press Ctrl-C to stop it")
        os.write(main, b"\x03")
        code = process.wait(PATIENCE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(main)

    assert code == 0
    assert "Traceback" not in seen
    assert "Ctrl-C stops the training, a second Ctrl-C the dashboard." in seen


@in_make_faults
@pytest.mark.slow
def test_the_example_is_trained_where_it_was_asked_for(tmp_path):
    config = ROOT / "config" / "examples" / "train_lora_tiny_cpu_with_telemetry.yaml"
    with train_and_serve(tmp_path, None, str(config), "--steps", "1") as started:
        started.wait_for("Training finished")
        started.wait_until_ready()
        code, _ = started.end()

    assert code == 0
    assert list((started.cwd / "logs").glob("*/metrics.jsonl"))
