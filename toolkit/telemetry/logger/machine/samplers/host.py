"""What the process and the machine around it use: processor, memory, disks and network, as psutil answers."""

from __future__ import annotations

from typing import Any

from toolkit.telemetry.core.clock import Clock, SystemClock
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.safe_reads import SafeReads, plausible
from toolkit.telemetry.logger.machine.samplers.sampler import NothingToSample, Sample, Value

_MB = 1024**2
_MOST_BYTES = 1024**6
_MOST_PERCENT = 1e6
"""Of one core each: a process on many of them has many times a hundred."""
_MOST_THREADS = 10_000_000
_MOST_SECONDS = 1e12


class HostSampler:
    """Memory in MiB, rates in MiB a second, processor use in percent of one core (process) or of all.

    Percentages and rates are over the time since the sample before, so the first sample has none.
    """

    name = "host"

    def __init__(self, *, guard: Guard | None = None, clock: Clock | None = None) -> None:
        self._readings = SafeReads(guard or Guard())
        self._clock = clock or SystemClock()
        self._psutil: Any = None
        self._process: Any = None
        self._counters: dict[str, tuple[float, float]] = {}

    def sample(self) -> Sample:
        """Return what this system says. Raises NothingToSample if psutil is not installed."""
        if self._psutil is None:
            try:
                import psutil
            except ImportError as error:
                raise NothingToSample("psutil is not installed") from error
            self._psutil, self._process = psutil, psutil.Process()
        values: dict[str, Value] = {}
        take, psutil, process = self._readings.take, self._psutil, self._process
        take(values, "cpu_mem_rss_mb", lambda: _megabytes(process.memory_info().rss))
        take(values, "process_cpu_percent", self._process_cpu_percent)
        take(values, "process_threads", lambda: plausible(process.num_threads(), _MOST_THREADS))
        take(values, "cpu_percent", self._cpu_percent)
        take(values, "ram_used_mb", lambda: self._ram_used_mb(values))
        take(values, "swap_used_mb", lambda: _megabytes(psutil.swap_memory().used))
        take(values, "disk_read_mb_s", lambda: self._disk_read_mb_s(values))
        take(values, "net_received_mb_s", lambda: self._net_received_mb_s(values))
        return values

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _process_cpu_percent(self) -> float | None:
        times = self._process.cpu_times()
        used_s = times.user + times.system
        if plausible(used_s, _MOST_SECONDS) is None:
            return None
        share = self._share("process_cpu_percent", used_s, self._clock.monotonic())
        return None if share is None else plausible(round(100.0 * share, 1), _MOST_PERCENT)

    def _cpu_percent(self) -> float | None:
        """Return how busy the processors were; waiting for a disk is not busy, and guests count as user already."""
        times = self._psutil.cpu_times()
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        if plausible(total, _MOST_SECONDS) is None:
            return None
        share = self._share("cpu_percent", total - times.idle - getattr(times, "iowait", 0.0), total)
        # The kernel's counters may go back a little.
        return None if share is None else plausible(round(100.0 * min(max(share, 0.0), 1.0), 1), 100.0)

    def _ram_used_mb(self, values: dict[str, Value]) -> float | None:
        memory = self._psutil.virtual_memory()
        if not plausible(memory.total, _MOST_BYTES):
            return None
        used = memory.total - memory.available
        percent = plausible(round(100.0 * used / memory.total, 1), 100.0)
        if percent is not None:
            values["ram_percent"] = percent
        return _megabytes(used)

    def _disk_read_mb_s(self, values: dict[str, Value]) -> float | None:
        disks = self._psutil.disk_io_counters()
        # None on a machine without disks of its own (containers, some virtual machines).
        if disks is None:
            return None
        self._put_rate(values, "disk_write_mb_s", disks.write_bytes)
        return self._rate("disk_read_mb_s", disks.read_bytes)

    def _net_received_mb_s(self, values: dict[str, Value]) -> float | None:
        network = self._psutil.net_io_counters()
        if network is None:
            return None
        self._put_rate(values, "net_sent_mb_s", network.bytes_sent)
        return self._rate("net_received_mb_s", network.bytes_recv)

    def _share(self, name: str, part: float, whole: float) -> float | None:
        """Return which share of `whole` was `part` since the last call; None for the first."""
        before = self._counters.get(name)
        self._counters[name] = (part, whole)
        if before is None:
            return None
        passed = whole - before[1]
        return (part - before[0]) / passed if passed > 0 else 0.0

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
