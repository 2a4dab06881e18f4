"""Spans by the GPU's own clock: right, never waited for, and no harm to a graph capture. On a real device only."""

import time

import pytest
import torch

from tests.telemetry.logged import make_logger, records_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

CYCLES = 50_000_000


@pytest.fixture
def make(tmp_path, close_at_end):
    return lambda **options: close_at_end(make_logger(tmp_path, diagnostics=False, **options))


def busy(seconds_of=CYCLES):
    torch.cuda._sleep(seconds_of)


def seconds_on_device():
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    busy()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1000


def test_the_device_says_how_long_its_work_took_and_the_host_how_long_it_was_held_up(make):
    busy(1000)
    expected = seconds_on_device()
    log = make(log_every=1, spans={"around": 0})
    for step in range(1, 6):
        with log.device_span("forward"):
            busy()
        torch.cuda.synchronize()
        log.log_step(step, train_loss=1.0)
    with log.device_span("forward"):
        pass
    log.log_step(6, train_loss=1.0)

    steps = records_of(log, "step")
    on_device = sum(step.get("device_time/forward", 0.0) for step in steps)
    on_host = sum(step.get("time/forward", 0.0) for step in steps)
    assert on_device == pytest.approx(5 * expected, rel=0.2)
    assert on_host < on_device / 2


def test_nothing_waits_for_the_device(make):
    log = make(log_every=1, spans={"device": ["forward", "backward"], "around": 0})
    with log.span("forward"):
        busy(1000)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        began = time.perf_counter()
        for step in range(1, 21):
            with log.span("forward"):
                busy()
            with log.span("backward"):
                busy()
            log.log_step(step, train_loss=1.0)
        queued = time.perf_counter() - began
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    worked = time.perf_counter() - began
    assert queued < worked / 4
    assert log.guard.total == 0


def test_a_span_that_is_kept_has_a_record_by_each_clock(make):
    log = make(spans={"device": ["encode"]})
    for _ in range(2):
        with log.span("encode"):
            busy()
        torch.cuda.synchronize()
    spans = records_of(log, "span")
    host = [span for span in spans if span["clock"] == "host"]
    device = [span for span in spans if span["clock"] == "cuda"]
    assert len(host) == 2
    assert device[0]["parent_id"] == host[0]["id"]
    assert device[0]["name"] == "encode"


def test_a_graph_capture_is_not_spoilt_and_its_spans_are_timed_by_the_host_alone(make):
    log = make(log_every=1, spans={"device": ["forward"], "around": 0})
    x = torch.zeros(16, device="cuda")
    with log.span("forward"):
        x.add_(1)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        with log.span("forward"):
            x.add_(1)
    before = x.clone()
    for step in range(1, 4):
        with log.span("forward"):
            graph.replay()
        log.log_step(step, train_loss=1.0)
    torch.cuda.synchronize()
    assert torch.equal(x, before + 3)
    assert log.guard.total == 0
    assert log._run.spans.device.skipped >= 1


def test_far_ahead_of_the_device_spans_are_counted_as_skipped_and_nothing_grows(make):
    log = make(spans={"device": ["forward"], "around": 0})
    torch.cuda.synchronize()
    busy(2_000_000_000)
    for _ in range(2000):
        with log.span("forward"):
            pass
    device = log._run.spans.device
    assert device.skipped > 0
    torch.cuda.synchronize()
    with log.span("forward"):
        pass
    assert len(device._under_way) <= 2
