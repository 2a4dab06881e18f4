"""What the process and the machine around it use: processor, memory, disks and network."""

from __future__ import annotations

from toolkit.core.clock import Clock, SystemClock
from toolkit.core.guard import Guard
from toolkit.telemetry.machine.samplers.host_counters import HostCounters, counters_here
from toolkit.telemetry.machine.samplers.safe_reads import SafeReads, plausible
from toolkit.telemetry.machine.samplers.sampler import Sample, Value

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

    def __init__(
        self,
        *,
        guard: Guard | None = None,
        clock: Clock | None = None,
        counters: HostCounters | None = None,
    ) -> None:
        self._readings = SafeReads(guard or Guard())
        self._clock = clock or SystemClock()
        self._host = counters
        self._counters: dict[str, tuple[float, float]] = {}

    def sample(self) -> Sample:
        """Return what this system says. Raises NothingToSample if it says nothing."""
        if self._host is None:
            self._host = counters_here()
        values: dict[str, Value] = {}
        self._read_process(values, self._host)
        self._read_machine(values, self._host)
        self._read_traffic(values, self._host)
        return values

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _read_process(self, values: dict[str, Value], host: HostCounters) -> None:
        take = self._readings.take

        def process_cpu_percent() -> float | None:
            used_s = host.process_cpu_s()
            if plausible(used_s, _MOST_SECONDS) is None:
                return None
            share = self._share("process_cpu_percent", used_s, self._clock.monotonic())
            return None if share is None else plausible(round(100.0 * share, 1), _MOST_PERCENT)

        take(values, "cpu_mem_rss_mb", lambda: _megabytes(host.rss_bytes()))
        take(values, "process_cpu_percent", process_cpu_percent)
        take(values, "process_threads", lambda: plausible(host.threads(), _MOST_THREADS))

    def _read_machine(self, values: dict[str, Value], host: HostCounters) -> None:
        take = self._readings.take

        def cpu_percent() -> float | None:
            busy, total = host.cpu_times()
            if plausible(total, _MOST_SECONDS) is None:
                return None
            share = self._share("cpu_percent", busy, total)
            # The kernel's counters may go back a little.
            return None if share is None else plausible(round(100.0 * min(max(share, 0.0), 1.0), 1), 100.0)

        def ram_used_mb() -> float | None:
            used, total = host.memory()
            if not plausible(total, _MOST_BYTES):
                return None
            percent = plausible(round(100.0 * used / total, 1), 100.0)
            if percent is not None:
                values["ram_percent"] = percent
            return _megabytes(used)

        take(values, "cpu_percent", cpu_percent)
        take(values, "ram_used_mb", ram_used_mb)
        take(values, "swap_used_mb", lambda: _megabytes(host.swap_used_bytes()))

    def _read_traffic(self, values: dict[str, Value], host: HostCounters) -> None:
        take = self._readings.take

        def disk_read_mb_s() -> float | None:
            # Both are None on a machine without disks of its own (containers, some virtual machines).
            disks = host.disks()
            if disks is None:
                return None
            self._put_rate(values, "disk_write_mb_s", disks.sent)
            return self._rate("disk_read_mb_s", disks.received)

        def net_received_mb_s() -> float | None:
            network = host.network()
            if network is None:
                return None
            self._put_rate(values, "net_sent_mb_s", network.sent)
            return self._rate("net_received_mb_s", network.received)

        take(values, "disk_read_mb_s", disk_read_mb_s)
        take(values, "net_received_mb_s", net_received_mb_s)

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
