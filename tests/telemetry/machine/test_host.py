from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.logger.machine.samplers.disk import DiskSampler
from toolkit.telemetry.logger.machine.samplers.host import HostSampler


def test_the_first_sample_has_the_levels_and_no_percentages_or_rates_yet():
    sample = HostSampler().sample()

    assert sample["cpu_mem_rss_mb"] == pytest.approx(psutil.Process().memory_info().rss / 1024**2, rel=0.2)
    assert sample["process_threads"] >= threading.active_count()
    assert 0 < sample["ram_percent"] <= 100
    assert sample["ram_used_mb"] > 0
    assert "process_cpu_percent" not in sample
    assert "cpu_percent" not in sample
    assert "net_sent_mb_s" not in sample


def test_the_second_sample_has_them():
    clock = ManualClock()
    host = HostSampler(clock=clock)
    host.sample()
    clock.advance(1)
    busy_until = time.process_time() + 0.05
    while time.process_time() < busy_until:
        pass

    sample = host.sample()

    assert sample["process_cpu_percent"] > 0
    assert 0 <= sample["cpu_percent"] <= 100
    assert sample["net_sent_mb_s"] >= 0


def test_rates_are_per_second_of_the_time_that_passed(monkeypatch):
    clock = ManualClock()
    host = HostSampler(clock=clock)
    counters = SimpleNamespace(read_bytes=0, write_bytes=0)
    monkeypatch.setattr(psutil, "disk_io_counters", lambda: counters)
    samples = []
    for written in (0, 30 * 1024**2, 10 * 1024**2):
        counters.write_bytes = written
        samples.append(host.sample())
        clock.advance(10)

    assert "disk_write_mb_s" not in samples[0]
    assert samples[1]["disk_write_mb_s"] == 3.0
    assert "disk_write_mb_s" not in samples[2], "a counter that went back is no rate"


def test_free_space_is_that_of_the_log_folder(tmp_path):
    sample = DiskSampler(tmp_path).sample()

    about = os.statvfs(tmp_path)
    assert sample["disk_free_gb"] == pytest.approx(about.f_bavail * about.f_frsize / 1024**3, rel=0.05)


def test_free_space_is_known_before_the_folder_is_made(tmp_path):
    assert DiskSampler(tmp_path / "not" / "yet").sample()["disk_free_gb"] > 0
