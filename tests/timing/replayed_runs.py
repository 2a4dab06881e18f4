"""A training that is played on a clock of its own: its records as the logger writes them, and where each second went.

The truth is kept second by second while the run is played, and knows nothing of records.
"""

from __future__ import annotations

from collections import defaultdict

LEDGER_EVERY_S = 5.0
SYSTEM_EVERY_S = 5.0

IN_TRAINING_LOOP = "in no span"
"""What a second is that no span with an entry covers, once training has begun; startup before."""

WORK = {"training", "data_wait", "validation", "checkpoint", "sampling"}

SPAN_OF = {
    "startup": "model_init",
    "validation": "validation_loop",
    "checkpoint": "checkpoint_save_sync",
    "sampling": "sampling",
    "control": "paused",
    "training": "training_iteration",
    "data_wait": "data_loading",
}
FOLDED = {"training", "data_wait"}


class Killed(Exception):
    pass


class PlayedRun:
    """One run: `begin` a session, `spend` its time, make `step`s, `save`; `end` it, or be killed on the way."""

    def __init__(self, *, log_every=10, timed=WORK | {"startup", "control"}, watts=None):
        self.records = []
        self.log_every = log_every
        self.timed = timed
        self.watts = watts
        self.clock = 1_700_000_000.0
        self.session = 0
        self.seq = 0
        self.pieces = []
        """Session, entry, seconds, joules: where the time went, in order."""
        self.history = []
        """The ranges of pieces that the state of the model comes from."""
        self.apparent_history = []
        self.first_piece = 0
        self.step = 0
        self.between_s = 0.0
        self.tells_training = defaultdict(bool)
        self.usual_interval_s = 0.0
        self.kills = self.hangs = 0
        self.save_s = self.unfinished_saves_s = 0.0
        """Seconds of the save under way, and of those that a kill cut short."""

    # ------------------------------------------------------------ sessions

    def begin(self, saved=None, *, kill_after_s=float("inf"), apart_s=0.0, lead_s=0.0, says_resumed=True):
        if self.session:
            self.between_s += apart_s
        self.clock += apart_s + lead_s
        self.session += 1
        self.origin = self.clock
        before = [*self.apparent_history, (self.first_piece, len(self.pieces))]
        self.step, self.history = (saved[0], list(saved[1])) if saved else (0, [])
        # Until it says where it resumes from or makes a step, it is unknown what was rework.
        self.apparent_history = self.history if says_resumed else before
        self.first_piece = len(self.pieces)
        self.kill_at = self.clock + kill_after_s
        self.recorded_at = self.system_at = self.clock
        self.ledger = defaultdict(float)
        self.in_training = False
        self.logged_step = None
        self.logged_at = self.clock
        self.piece("startup", lead_s)
        start = {"resumed_from_step": self.step} if says_resumed else {}
        self.put("start", **start)
        if lead_s:
            span = {"id": f"app{self.session}", "name": "application", "start": self.clock - lead_s}
            self.put("span_start", **span)

    def end(self):
        if self.logged_step is not None and self.step > self.logged_step:
            self.put_step()
        if self.timed:
            self.put("ledger", **self.take_ledger())
        self.put("end", status="finished")

    def cut_off(self):
        """Forget what happened after the last record: it was not recorded."""
        self.kills += 1
        self.unfinished_saves_s += self.save_s
        self.save_s = 0.0
        too_much = self.clock - self.last_record_at
        while too_much > 0 and len(self.pieces) > self.first_piece:
            session, entry, seconds, joules = self.pieces.pop()
            if seconds > too_much:
                left = seconds - too_much
                self.pieces.append((session, entry, left, joules * left / seconds))
            too_much -= seconds
        self.clock = self.last_record_at

    # ------------------------------------------------------------ time

    def piece(self, entry, seconds):
        if seconds > 0:
            self.pieces.append((self.session, entry, seconds, (self.watts or 0.0) * seconds))

    def spend(self, entry, seconds, *, truth=None, whole=False, inside=None):
        """Let `seconds` pass inside a span of `entry`, or outside of any where it is None."""
        if truth is None:
            truth = entry if entry in self.timed else None
        if truth is None:
            truth = IN_TRAINING_LOOP if self.in_training else "startup"
        has_span = entry in self.timed and entry not in FOLDED
        span_id = f"{self.session}-{len(self.records)}"
        started = self.clock
        if has_span:
            self.put("span_start", id=span_id, name=SPAN_OF[entry], start=started)
        until = started + seconds
        while self.clock < until:
            due = self.system_at + SYSTEM_EVERY_S
            if self.timed:
                due = min(due, self.recorded_at + LEDGER_EVERY_S)
            then = min(until, due)
            if not whole:
                then = min(then, max(self.kill_at, self.clock))
            self.piece(truth, then - self.clock)
            if entry in self.timed:
                self.ledger[entry] += then - self.clock
            self.clock = then
            if not whole and self.clock >= self.kill_at:
                raise Killed
            self.look_around()
        if has_span:
            about = {"id": span_id, "name": SPAN_OF[entry], "start": started, "clock": "host"}
            step = {"global_step": self.step} if self.in_training else {}
            self.put("span", duration=self.clock - started, **about, **step)

    def look_around(self):
        """What the logger's own thread does."""
        if self.clock >= self.system_at + SYSTEM_EVERY_S:
            self.system_at = self.clock
            power = {"gpu/0/power_w": self.watts / 2, "gpu/1/power_w": self.watts / 2} if self.watts else {}
            self.put("system", **power)
        if self.timed and self.clock >= self.recorded_at + LEDGER_EVERY_S:
            self.put("ledger", **self.take_ledger())

    def take_ledger(self):
        fields = {f"ledger/{entry}": seconds for entry, seconds in self.ledger.items() if seconds > 0}
        self.tells_training[self.session] |= "ledger/training" in fields
        self.ledger.clear()
        self.recorded_at = self.clock
        return fields

    # ------------------------------------------------------------ training

    def start_loop(self, *, with_span=True):
        self.in_training = True
        if with_span:
            self.put("span_start", id=f"loop{self.session}", name="training_loop", start=self.clock)

    def make_step(self, data_s, work_s, outside_s=0.0, hang_s=0.0, hangs_in="training"):
        self.spend("data_wait", data_s)
        if hang_s:
            self.hangs += 1
            self.spend(hangs_in, hang_s, truth="stalled", whole=True)
        self.spend("training", work_s)
        self.spend(None, outside_s)
        self.step += 1
        if self.logged_step is None or self.step % self.log_every == 0:
            if self.logged_step is not None and not hang_s:
                self.usual_interval_s = max(self.usual_interval_s, self.clock - self.logged_at)
            self.put_step()

    def put_step(self):
        folded = self.step - self.logged_step - 1 if self.logged_step is not None else 0
        self.put("step", global_step=self.step, train_loss=0.5, steps_folded=folded, **self.take_ledger())
        self.logged_step, self.logged_at = self.step, self.clock
        self.apparent_history = self.history

    def save(self, seconds):
        """Save a checkpoint and return what a later session can resume from."""
        self.save_s = seconds
        self.spend("checkpoint", seconds, truth="checkpoint")
        self.save_s = 0.0
        self.put("checkpoint", global_step=self.step, seconds=seconds)
        return (self.step, [*self.history, (self.first_piece, len(self.pieces))])

    def put(self, event, **fields):
        about = {"event": event, "time": self.clock, "elapsed": self.clock - self.origin, "seq": self.seq}
        self.records.append({**about, "session": self.session, **fields})
        self.seq += 1
        self.last_record_at = self.clock

    # ------------------------------------------------------------ the truth

    @property
    def wall_s(self):
        return sum(seconds for _, _, seconds, _ in self.pieces)

    def truth(self):
        """Where the time went, and how much energy with it, by entry."""
        kept = set()
        for first, last in [*self.apparent_history, (self.first_piece, len(self.pieces))]:
            kept.update(range(first, last))
        seconds, joules = defaultdict(float), defaultdict(float)
        for number, (session, entry, length, energy) in enumerate(self.pieces):
            if entry == IN_TRAINING_LOOP:
                entry = "unaccounted" if self.tells_training[session] else "training"
            if entry in WORK and number not in kept:
                entry = "redone"
            seconds[entry] += length
            joules[entry] += energy
        return seconds, joules
