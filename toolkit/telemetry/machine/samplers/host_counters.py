"""The counters of the machine and of this process, from /proc where there is one and else from psutil.

On Linux psutil is not needed: importing it holds the interpreter lock for ten milliseconds in the first steps of a
training, and its answers take ten times as long as the few files of /proc that are read here.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any, Final, NamedTuple, Protocol

from toolkit.telemetry.machine.samplers.sampler import NothingToSample

_SECTOR_BYTES: Final = 512
"""In /proc/diskstats, whatever the disk's own are."""
_MEMINFO: Final = re.compile(
    rb"^(MemTotal|MemFree|MemAvailable|Buffers|Cached|SwapTotal|SwapFree):\s*(\d+)", re.MULTILINE
)
_READ_BYTES: Final = 16_384


class CpuTimes(NamedTuple):
    """Seconds of all processors together since some moment."""

    busy: float
    total: float


class Memory(NamedTuple):
    """The memory of the machine, in bytes."""

    used: int
    total: int


class Traffic(NamedTuple):
    """Bytes since some moment."""

    received: int
    sent: int


class HostCounters(Protocol):
    """What can be asked about the machine and this process; each may raise."""

    def rss_bytes(self) -> int:
        """Return the memory that this process holds."""

    def process_cpu_s(self) -> float:
        """Return the processor time of this process."""

    def threads(self) -> int:
        """Return how many threads this process has."""

    def cpu_times(self) -> CpuTimes:
        """Return how busy the processors were."""

    def memory(self) -> Memory:
        """Return how much of the memory is used."""

    def swap_used_bytes(self) -> int:
        """Return how much is swapped out."""

    def disks(self) -> Traffic | None:
        """Return what was read from disks and written to them; None where there are none."""

    def network(self) -> Traffic | None:
        """Return what came over the network and was sent; None where there is none."""


def counters_here() -> HostCounters:
    """Return the counters of this system. Raises NothingToSample if it has no /proc and psutil is not installed."""
    if sys.platform.startswith("linux") and os.path.exists("/proc/self/stat"):
        return ProcCounters()
    return PsutilCounters()


class ProcCounters:
    """The counters of Linux."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._is_disk: dict[bytes, bool] = {}

    def rss_bytes(self) -> int:
        """Return the memory that this process holds."""
        return int(self._read("self/statm").split()[1]) * self._page_bytes

    def process_cpu_s(self) -> float:
        """Return the processor time of this process."""
        return time.process_time()

    def threads(self) -> int:
        """Return how many threads this process has."""
        # The name of the program comes first, in parentheses, and may contain anything.
        return int(self._read("self/stat").rpartition(b")")[2].split()[17])

    def cpu_times(self) -> CpuTimes:
        """Return how busy the processors were; waiting for a disk is not busy."""
        # user, nice, system, idle, iowait, irq, softirq, steal; guests are counted as user already.
        times = [int(number) for number in self._read("stat").partition(b"\n")[0].split()[1:9]]
        total = sum(times)
        return CpuTimes(total - sum(times[3:5]), total)

    def memory(self) -> Memory:
        """Return how much of the memory is used, without what can be given back at once."""
        known = self._meminfo()
        total, free = known[b"MemTotal"], known[b"MemFree"]
        # Kernels before 3.14 do not say what is available.
        available = known.get(b"MemAvailable") or free + known.get(b"Buffers", 0) + known.get(b"Cached", 0)
        # Some containers have limits that the other figures do not know.
        return Memory(total - (available if available <= total else free), total)

    def swap_used_bytes(self) -> int:
        """Return how much is swapped out."""
        known = self._meminfo()
        return known[b"SwapTotal"] - known[b"SwapFree"]

    def disks(self) -> Traffic | None:
        """Return what was read from disks and written to them, partitions not counted twice."""
        read = written = 0
        is_any = False
        for line in self._read("diskstats").splitlines():
            fields = line.split()
            if len(fields) >= 14 and self._is_whole_disk(fields[2]):
                is_any = True
                read += int(fields[5]) * _SECTOR_BYTES
                written += int(fields[9]) * _SECTOR_BYTES
        return Traffic(read, written) if is_any else None

    def network(self) -> Traffic | None:
        """Return what came over all interfaces and was sent."""
        received = sent = 0
        lines = self._read("net/dev").splitlines()[2:]
        for line in lines:
            fields = line.rpartition(b":")[2].split()
            received += int(fields[0])
            sent += int(fields[8])
        return Traffic(received, sent) if lines else None

    def _is_whole_disk(self, name: bytes) -> bool:
        known = self._is_disk.get(name)
        if known is None:
            path = os.path.join("/sys/block", os.fsdecode(name).replace("/", "!"))
            known = self._is_disk[name] = os.path.exists(path)
        return known

    def _meminfo(self) -> dict[bytes, int]:
        """Return the figures of /proc/meminfo that are used here, in bytes."""
        return {name: int(amount) * 1024 for name, amount in _MEMINFO.findall(self._read("meminfo"))}

    def _read(self, name: str) -> bytes:
        # Without a file object, which asks for more than the content and takes twice as long.
        descriptor = os.open(f"{self._proc}/{name}", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            parts = [os.read(descriptor, _READ_BYTES)]
            while parts[-1]:
                parts.append(os.read(descriptor, _READ_BYTES))
        finally:
            os.close(descriptor)
        return b"".join(parts)


class PsutilCounters:
    """The counters of psutil, for macOS and Windows. Raises NothingToSample if it is not installed."""

    def __init__(self) -> None:
        try:
            import psutil
        except ImportError as error:
            raise NothingToSample("psutil is not installed") from error
        self._psutil: Any = psutil
        self._process = psutil.Process()

    def rss_bytes(self) -> int:
        """Return the memory that this process holds."""
        return self._process.memory_info().rss

    def process_cpu_s(self) -> float:
        """Return the processor time of this process."""
        times = self._process.cpu_times()
        return times.user + times.system

    def threads(self) -> int:
        """Return how many threads this process has."""
        return self._process.num_threads()

    def cpu_times(self) -> CpuTimes:
        """Return how busy the processors were."""
        times = self._psutil.cpu_times()
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return CpuTimes(total - times.idle - getattr(times, "iowait", 0.0), total)

    def memory(self) -> Memory:
        """Return how much of the memory is used."""
        memory = self._psutil.virtual_memory()
        return Memory(memory.total - memory.available, memory.total)

    def swap_used_bytes(self) -> int:
        """Return how much is swapped out."""
        used: int = self._psutil.swap_memory().used
        return used

    def disks(self) -> Traffic | None:
        """Return what was read from disks and written to them."""
        disks = self._psutil.disk_io_counters()
        return None if disks is None else Traffic(disks.read_bytes, disks.write_bytes)

    def network(self) -> Traffic | None:
        """Return what came over the network and was sent."""
        network = self._psutil.net_io_counters()
        return None if network is None else Traffic(network.bytes_recv, network.bytes_sent)
