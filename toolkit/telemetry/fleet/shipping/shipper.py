"""Ships the record files of some folders: finds them, sends them, and stores the files that they point to.

Nothing is kept on the node. What the engine has of a file is asked from the engine, and a batch that may or may not
have been taken is sent again: the same lines make the same rows, which replace themselves.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from toolkit.telemetry.core.outbox import Backoff
from toolkit.telemetry.core.ranks import node_name
from toolkit.telemetry.fleet.engine import Engine, EngineError, RefusedError
from toolkit.telemetry.fleet.objects import ObjectShipper
from toolkit.telemetry.fleet.schema import require_tables
from toolkit.telemetry.fleet.shipping import sender
from toolkit.telemetry.fleet.shipping.sender import Sender
from toolkit.telemetry.fleet.shipping.watch import Node, ShippedFile, ShippedRun, Watch
from toolkit.telemetry.runfolder.folder_list import signature_of

DRAIN_S: Final = 20.0
"""How long a shipper that is stopped ships what is left; Kubernetes allows 30 s for all."""
_FILES_NAMED: Final = 20


class Shipper:
    """Ships everything below `places`."""

    def __init__(
        self,
        engine: Engine,
        places: Iterable[Path],
        *,
        node: str | None = None,
        objects: ObjectShipper | None = None,
        say: Callable[[str], None] | None = None,
        delivers_requests: bool = False,
    ) -> None:
        """Ship to `engine`; on demand, also deliver requests from there to the runs."""
        self.engine = engine
        self.objects = objects
        self._node = Node(
            # A name from the environment may have any bytes.
            name=(node or node_name()).encode("utf-8", "replace").decode(),
            say=say or (lambda _: None),
            objects=objects,
            delivers_requests=delivers_requests,
        )
        self.node, self.totals = self._node.name, self._node.totals
        self._places = list(places)
        self.watch = Watch(self._places, self._node)
        self.sender = Sender(engine, self._node, self.watch)
        self._threads: list[threading.Thread] = []
        self._refusal: RefusedError | None = None

    # ------------------------------------------------------------ what commands call

    @property
    def runs(self) -> dict[Path, ShippedRun]:
        """The runs that were found, by folder."""
        # A dict of another thread is copied in one step.
        return dict(self.watch.runs)

    @property
    def files(self) -> list[ShippedFile]:
        """The record files that are shipped."""
        return list(self.watch.files.values())

    def start(self) -> None:
        """Check that the engine has our tables.

        Raises:
            EngineError: it has not, or does not answer.
        """
        tables = require_tables(self.engine)
        self._node.keep_days = tables.keep_days

    def ship_all(self) -> None:
        """Ship what is there now, with the files that records point to, and report every run.

        Raises:
            EngineError: the engine refused or does not answer; what was sent until then is there.
        """
        # Once: files that keep growing would never come to an end.
        self.sender.claims.take_all()
        self.watch.look(is_last=True)
        while self.sender.send_batch() or self.sender.has_unknown_files:
            self.sender.raise_failure()
        self.sender.raise_failure()
        if self.objects is not None:
            self.objects.ship_all()
        self.sender.report(all_runs=True)
        self.sender.raise_failure()

    def verify(self) -> list[str]:
        """Compare all runs with the engine and send again what differs; return what was repaired, in words.

        Raises:
            EngineError: the engine refused or does not answer.
        """
        return [said for run in list(self.watch.runs.values()) for said in self.sender.verify(run) if said]

    def ship_round(self) -> bool:
        """Do once what `run` does again and again; return whether there is more to do now."""
        return self.sender.round()

    def run(self, stop: threading.Event, drain_s: float = DRAIN_S) -> None:
        """Wait for the engine and ship until `stop` is set, then what is left, at most for `drain_s`.

        What fails is tried again, with pauses; nothing is given up.

        Raises:
            RefusedError: the engine refused this user or has no tables, at the start.
        """
        self._begin("send", partial(self._send, stop, drain_s))
        while not stop.wait(sender.EVERY_S):
            for thread in self._threads:
                if not thread.is_alive() and not stop.is_set():
                    raise RuntimeError(f"the thread {thread.name} has ended")
        deadline = time.monotonic() + drain_s
        # The first of them starts the other.
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._refusal is not None:
            raise self._refusal
        self._name_what_is_left(drain_s)

    # ------------------------------------------------------------ its threads

    def _begin(self, name: str, work: Callable[[], None]) -> threading.Thread:
        # Daemons: one that waits for an engine does not keep the process.
        thread = threading.Thread(target=work, name=f"telemetry-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _send(self, stop: threading.Event, drain_s: float) -> None:
        """Wait for the engine, then find and send until `stop` is set, and then what is left."""
        if not self._is_answered(stop, drain_s):
            return
        self._node.say(f"shipping {', '.join(map(str, self._places))} to {self.engine.address}")
        all_sent = threading.Event()
        if self.objects is not None:
            self._begin("objects", partial(self.objects.run, all_sent))
        while not stop.is_set():
            begin = time.monotonic()
            if not self.ship_round():
                stop.wait(max(0.0, sender.EVERY_S - (time.monotonic() - begin)))
        deadline = time.monotonic() + drain_s
        self.sender.drain(deadline)
        all_sent.set()

    def _is_answered(self, stop: threading.Event, drain_s: float) -> bool:
        """Wait for the engine, after `stop` for at most `drain_s`; return whether it has our tables."""
        backoff, deadline = Backoff(), math.inf
        while time.monotonic() < deadline:
            try:
                self.start()
            except RefusedError as error:
                self._refusal = error
                stop.set()
                return False
            except EngineError as error:
                if backoff.reason is None:
                    self._node.failure(f"{error}; trying again until it answers")
                backoff.failed(str(error))
                while not backoff.is_ready and time.monotonic() < deadline:
                    time.sleep(0.1)
                    if stop.is_set() and deadline == math.inf:
                        deadline = time.monotonic() + drain_s
                        backoff.succeeded()
            else:
                return True
        return False

    def _name_what_is_left(self, drain_s: float) -> None:
        is_drained, left = self.sender.is_drained, []
        if not is_drained:
            # The sender may not have seen all of it.
            shipped = self.sender.shipped_files(self.watch.runs)
            sizes = {file: (signature_of(file.path) or (0, 0))[1] for file in shipped}
            left = [(size - file.end, file.path) for file, size in sizes.items() if size > file.end]
        waiting = self.objects.totals.waiting if self.objects is not None else 0
        if waiting or left:
            named = "".join(f"; {size} bytes of {path}" for size, path in left[:_FILES_NAMED])
            self._node.say(
                f"stopped after {drain_s:g} s; left for the next shipper: {sum(size for size, _ in left)} bytes of "
                f"{len(left)} record files, the files of {waiting} runs{named}"
            )
