"""Training processes for the state machine: forked from one that has everything imported, driven call by call.

A forked child is a real process with a real logger. It does what it is asked and says when the call has returned; it
can be killed between two calls, or in the middle of a write. The parent waits for it and says how it ended.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tests.fuzz import mutations


class Training:
    """One process's logger, and what it is asked to do with it."""

    def __init__(self, log_dir: str, resume: bool) -> None:
        from toolkit.telemetry import TelemetryLogger

        self.log = TelemetryLogger(
            "run",
            log_dir=log_dir,
            log_every=1,
            system=False,
            errors=False,
            resume=resume,
            sync_interval=0.0,
            # What is looked at behind the end is what the end has written, however slow the machine.
            close_timeout=60.0,
        )
        live = self.log._run
        assert live is not None, "the logger is not live"
        # Looking at the control file is then a call like others, and not a matter of time.
        live.periodic.close(60.0)
        self._live = live
        # At once, and not whenever a thread gets to it: a session that is killed before has nothing to be looked at.
        self.log.log_start()
        self.log.declare_action("save")
        self.log.declare_knob("lr", float, low=0.0, high=1.0)
        self._spans: list[Any] = []

    def about(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "run_id": self.log.run_id}

    def step(self, global_step: int, values: dict[str, Any]) -> int:
        self.log.log_step(global_step, **values)
        return self.log.log_every

    def event(self, values: dict[str, Any]) -> None:
        self.log.log_event("note", **values)

    def evaluation(self, global_step: int, values: dict[str, Any]) -> None:
        self.log.log_eval(global_step, values)

    def checkpoint(self, global_step: int, n: int) -> None:
        self.log.log_checkpoint(global_step, f"model-{n}.safetensors")

    def begin_span(self, name: str) -> None:
        span = self.log.span(name)
        span.__enter__()
        self._spans.append(span)

    def end_span(self) -> None:
        if self._spans:
            self._spans.pop().__exit__(None, None, None)

    def flush(self) -> None:
        self.log.flush(60.0)

    def sync(self) -> int:
        self.log.flush(60.0)
        self.log.sync()
        return os.path.getsize(self._live.session_folder.record_file)

    def beat(self) -> None:
        self._live._beat()

    def poll(self, global_step: int) -> list[tuple[str, Any, str]]:
        """Look at the control file twice, as a doubtful one needs, and take what is asked at a step."""
        self._live._look_at_control()
        self._live._look_at_control()
        self.log.log_step(global_step)
        return [(request.name, request.value, request.id) for request in self.log.take_requests()]

    def close(self) -> None:
        self.log.close()

    def die_in_a_write(self, after_bytes: int, values: dict[str, Any]) -> None:
        """Log something, and be killed when only so many bytes of it are in the record file."""
        write = os.write
        record_file = (
            os.stat(self._live.session_folder.record_file)
            if self._live.session_folder.record_file.exists()
            else None
        )

        def torn(descriptor: int, data: Any) -> int:
            status = os.fstat(descriptor)
            if record_file is None or (status.st_dev, status.st_ino) != (
                record_file.st_dev,
                record_file.st_ino,
            ):
                return write(descriptor, data)
            write(descriptor, bytes(data)[:after_bytes])
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("it is dead")

        os.write = torn
        self.event(values)
        self.log.flush(60.0)
        # There was no file yet, or nothing to write.
        os.kill(os.getpid(), signal.SIGKILL)


def serve(commands: int, replies: int, mutation: str) -> None:
    """Fork a training process for every one that is asked for; both numbers are descriptors of pipes."""
    # Imported once, here, so that a fork is all that a session costs.
    import toolkit.telemetry.logger.session.live_run  # noqa: F401
    from toolkit.telemetry.logger.writing import mirror

    # Mirrors wait a second for bad lines to become good ones, as they do after a sync that failed; none fails here, and
    # the waiting was most of what a history took.
    mirror._PATIENCE_S = 0.0
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 1)
    if "FUZZ_STDERR" not in os.environ:
        os.dup2(quiet, 2)
    if mutation:
        mutations.apply(mutation)
    while True:
        command = receive(commands)
        if command is None:
            return
        pid = os.fork()
        if pid == 0:
            _be_a_training(commands, replies, *command)
        _, status = os.waitpid(pid, 0)
        send(replies, ("ended", os.waitstatus_to_exitcode(status)))


def _be_a_training(commands: int, replies: int, log_dir: str, resume: bool) -> None:
    code = 1
    try:
        training = Training(log_dir, resume)
        send(replies, ("done", training.about()))
        while True:
            command = receive(commands)
            if command is None:
                break
            name, *arguments = command
            method: Callable[..., Any] = getattr(training, name)
            send(replies, ("done", method(*arguments)))
            if name == "close":
                break
        code = 0
    except BaseException:  # noqa: BLE001 - the machine is informed of whatever it was
        send(replies, ("raised", traceback.format_exc()))
    finally:
        os._exit(code)


def send(descriptor: int, message: Any) -> None:
    """Write one message."""
    data = pickle.dumps(message)
    data = struct.pack("=I", len(data)) + data
    while data:
        data = data[os.write(descriptor, data) :]


def receive(descriptor: int) -> Any:
    """Read one message; None where the other side is gone."""
    head = _read(descriptor, 4)
    return None if len(head) < 4 else pickle.loads(_read(descriptor, struct.unpack("=I", head)[0]))


def _read(descriptor: int, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := os.read(descriptor, count - len(data))):
        data += part
    return data


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
