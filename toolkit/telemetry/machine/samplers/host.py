"""What the process and the machine around it use: processor, memory, disks and network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.core.clock import Clock, SystemClock
from toolkit.core.guard import Guard
from toolkit.telemetry.machine.samplers.safe_reads import SafeReads, plausible
from toolkit.telemetry.machine.samplers.sampler import NothingToSample, Sample, Value

if TYPE_CHECKING:
    import psutil

_MB = 1024**2
_MOST_BYTES = 1024**6
_MOST_PERCENT = 1e6
"""Of one core each: a process on many of them has many times a hundred."""
_MOST_THREADS = 10_000_000


class HostSampler:
    """Reads psutil: memory in MiB, rates in MiB a second, processor use in percent of one core (process) or of all.

    Percentages and rates are over the time since the sample before, so the first sample has none.
    """

    name = "host"

    def __init__(self, *, guard: Guard | None = None, clock: Clock | None = None) -> None:
        self._readings = SafeReads(guard or Guard())
        self._clock = clock or SystemClock()
        self._process: psutil.Process | None = None
        self._psutil: Any = None
        self._rounds = 0
        self._counters: dict[str, tuple[float, int]] = {}

    def sample(self) -> Sample:
        """Return what this system's psutil can say. Raises NothingToSample if psutil is not installed."""
        if self._process is None:
            try:
                import psutil
            except ImportError as error:
                raise NothingToSample("psutil is not installed") from error
            self._psutil = psutil
            self._process = psutil.Process()
        values: dict[str, Value] = {}
        self._read_process(values, self._process)
        self._read_machine(values)
        self._read_traffic(values)
        self._rounds += 1
        return values

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _read_process(self, values: dict[str, Value], process: psutil.Process) -> None:
        take = self._readings.take
        # `oneshot` would read more of /proc than these three need, and takes half as long again.
        take(values, "cpu_mem_rss_mb", lambda: _megabytes(process.memory_info().rss))
        take(values, "process_cpu_percent", lambda: self._percent(process.cpu_percent(None), _MOST_PERCENT))
        take(values, "process_threads", lambda: plausible(process.num_threads(), _MOST_THREADS))

    def _read_machine(self, values: dict[str, Value]) -> None:
        psutil, take = self._psutil, self._readings.take
        take(values, "cpu_percent", lambda: self._percent(psutil.cpu_percent(None), 100.0))

        def ram_used_mb() -> float | None:
            memory = psutil.virtual_memory()
            percent = plausible(memory.percent, 100.0)
            if percent is not None:
                values["ram_percent"] = percent
            return _megabytes(memory.used)

        take(values, "ram_used_mb", ram_used_mb)
        take(values, "swap_used_mb", lambda: _megabytes(psutil.swap_memory().used))

    def _read_traffic(self, values: dict[str, Value]) -> None:
        psutil, take = self._psutil, self._readings.take

        def disk_read_mb_s() -> float | None:
            # Both are None on a machine without disks of its own (containers, some virtual machines).
            disks = psutil.disk_io_counters()
            if disks is None:
                return None
            self._put_rate(values, "disk_write_mb_s", disks.write_bytes)
            return self._rate("disk_read_mb_s", disks.read_bytes)

        def net_received_mb_s() -> float | None:
            network = psutil.net_io_counters()
            if network is None:
                return None
            self._put_rate(values, "net_sent_mb_s", network.bytes_sent)
            return self._rate("net_received_mb_s", network.bytes_recv)

        take(values, "disk_read_mb_s", disk_read_mb_s)
        take(values, "net_received_mb_s", net_received_mb_s)

    def _percent(self, percent: float, highest: float) -> float | None:
        # psutil answers 0.0 where it has nothing to compare with yet; that is no measurement.
        return plausible(percent, highest) if self._rounds else None

    def _put_rate(self, values: dict[str, Value], name: str, counter: int) -> None:
        rate = self._rate(name, counter)
        if rate is not None:
            values[name] = rate

    def _rate(self, name: str, counter: int) -> float | None:
        if plausible(counter, _MOST_BYTES) is None:
            return None
        now = self._clock.monotonic()
        before = self._counters.get(name)
        self._counters[name] = (now, counter)
        if before is None or now <= before[0] or counter < before[1]:
            return None
        return round((counter - before[1]) / _MB / (now - before[0]), 3)


def _megabytes(count: int) -> float | None:
    known = plausible(count, _MOST_BYTES)
    return None if known is None else round(known / _MB, 2)
