"""On a real GPU: no call of ours waits for it, and the training is the same to the last bit. Needs a CUDA device.

Runs with torch, orjson, psutil, nvidia-ml-py and pytest alone.
"""

from __future__ import annotations

import contextlib
import os
import random
import time

import pytest

# Read when CUDA begins: without it some matrix products are not the same twice.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

torch = pytest.importorskip("torch")

from toolkit.telemetry import TelemetryLogger  # noqa: E402
from toolkit.telemetry.logger.logger_internals import internals  # noqa: E402
from toolkit.telemetry.logger.records.device_scalars import PLACES  # noqa: E402
from toolkit.telemetry.logger.records.plain_values import PlainValues  # noqa: E402
from toolkit.telemetry.logger.writing.record_appender import RecordFile  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

WAITS = (
    *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaStreamWaitEvent"),
    *("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cudaMemcpy"),
)
STEPS = 200
STEPS_OF_A_LOGGER = 1000
ROUNDS = 50


@contextlib.contextmanager
def syncs_are_errors():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def call_everything_with(log, step, loss):
    """Hand a tensor that is on the GPU to every method that takes a value."""
    log.log_step(step, train_loss=loss, grad_norm=loss * 2, lr=1e-4, nested={"a": loss}, half=loss.half())
    log.log_eval(step, val_loss=loss)
    log.log_epoch(1, {"loss": loss}, global_step=step)
    log.log_event("mine", value=loss, values=[loss, loss])
    log.log_event(loss)
    log.log_completion(step, prompt="p", completion="c", reward=loss, advantage=loss)
    log.log_checkpoint(step, "absent", loss=loss)
    log.log_sample(step, "absent", loss=loss)
    internals(log).set_tags(perf_tag=loss)
    with log.span("forward", loss=loss) as span:
        span.set(more=loss)
        span.event("happened", loss=loss)
    with log.span(loss, loss=loss) as span:
        span.fail(loss)
    with log.device_span("on_device"):
        pass
    log.start_span("begun", attributes={"loss": loss}, start_time=loss).stop()
    with log.profile_block(loss):
        pass
    with contextlib.suppress(ValueError), log.capture_errors():
        held = loss  # noqa: F841  # a local value that an error record might want to show
        raise ValueError("the training's own")
    internals(log).latest_loss()
    log.take_requests()


@pytest.fixture
def warm(tmp_path):
    """Return a live logger whose first call, which makes its pinned memory, is behind it."""
    with TelemetryLogger("r", log_dir=tmp_path, log_every=1) as log:
        call_everything_with(log, 0, torch.ones((), device="cuda"))
        torch.cuda.synchronize()
        yield log


def test_no_public_call_with_a_gpu_tensor_synchronises(warm, record_property):
    loss = torch.ones((), device="cuda")
    before = dict(warm.guard.counts)
    with syncs_are_errors():
        for step in range(1, ROUNDS + 1):
            call_everything_with(warm, step, loss)
    warm.flush()

    record_property("measured", f"{ROUNDS} rounds of every public call with CUDA tensors, 0 synchronisations")
    assert not [kind for kind in set(warm.guard.counts) - set(before) if "synchron" in kind.lower()]
    swallowed = {kind: count - before.get(kind, 0) for kind, count in warm.guard.counts.items()}
    # What torch raises in that mode is a RuntimeError, and the guard would have swallowed it.
    assert not {kind: count for kind, count in swallowed.items() if count and kind.endswith(": RuntimeError")}


def test_a_profiler_sees_no_wait_of_ours(warm, record_property):
    from torch.profiler import ProfilerActivity, profile

    loss = torch.ones((), device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        torch.cuda.synchronize()
        began = time.perf_counter_ns() // 1000
        for step in range(1, 51):
            call_everything_with(warm, step, loss)
        ended = time.perf_counter_ns() // 1000
        torch.cuda.synchronize()
    names = [event.name for event in seen.events()]
    waits = [name for name in names if name in WAITS]

    # The profiler itself waits at its beginning and its end, and this test does so twice.
    record_property(
        "measured", f"{len(names)} events in {(ended - began) / 1000:.0f} ms, none of them a wait of ours"
    )
    assert len([name for name in waits if name != "cudaDeviceSynchronize"]) == 0, waits
    assert waits.count("cudaDeviceSynchronize") <= 4, waits
    assert any(name.startswith("cudaMemcpyAsync") for name in names), "the values were really copied"


def test_a_call_returns_while_the_gpu_is_busy_for_a_second(warm, record_property):
    loss = torch.ones((), device="cuda")
    torch.cuda._sleep(int(1.5e9))
    slowest = 0.0
    for step in range(1, 21):
        began = time.perf_counter()
        call_everything_with(warm, step, loss)
        slowest = max(slowest, time.perf_counter() - began)
    is_still_busy = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()

    record_property("measured", f"slowest round of every public call {slowest * 1e3:.1f} ms with a busy GPU")
    assert is_still_busy, "the GPU was done before anything was shown"
    assert slowest < 0.5


def test_the_memory_of_the_gpu_is_left_alone(warm, record_property):
    loss = torch.ones((), device="cuda")
    torch.cuda.synchronize()
    before, streams = torch.cuda.memory_allocated(), torch.cuda.current_stream()
    torch.cuda.reset_peak_memory_stats()
    for step in range(1, STEPS_OF_A_LOGGER + 1):
        warm.log_step(step, train_loss=loss, grad_norm=loss, other={"a": loss})
    torch.cuda.synchronize()
    warm.flush()
    left, peak = torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before

    record_property(
        "measured",
        f"{STEPS_OF_A_LOGGER:,} steps left {left} bytes on the GPU, {peak} at the most, {PLACES * 8} pinned",
    )
    assert left == 0
    assert peak <= 64 * 1024
    assert torch.cuda.current_stream() == streams


def trained(log):
    """Train with deterministic kernels, and return weights, losses and the states of the random generators."""
    random.seed(1)
    torch.manual_seed(2)
    torch.use_deterministic_algorithms(True)
    try:
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.Dropout(0.1), torch.nn.GELU(), torch.nn.Linear(128, 1)
        ).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        losses = []
        for step in range(STEPS):
            inputs = torch.randn(32, 64, device="cuda")
            optimizer.zero_grad()
            loss = (model(inputs) - inputs.mean(1, keepdim=True)).square().mean()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach().clone())
            if log is not None:
                log.log_step(step, train_loss=loss, grad_norm=norm)
                if step % 10 == 0:
                    call_everything_with(log, step, loss.detach())
        weights = [parameter.detach().cpu() for parameter in model.parameters()]
        states = [torch.get_rng_state(), torch.cuda.get_rng_state(), torch.tensor(hash(random.getstate()))]
        return [*weights, torch.stack(losses).cpu(), *states]
    finally:
        torch.use_deterministic_algorithms(False)


def broken(*_, **__):
    raise OSError(5, "broken")


@pytest.mark.parametrize("how", ["on", "with a broken disk", "with a bug of ours", "with a broken mirror"])
def test_a_training_on_the_gpu_is_the_same_to_the_last_bit(tmp_path, monkeypatch, how, record_property):
    class Mirror:
        name = "broken"
        write = close = broken

    without = trained(None)
    again = trained(None)
    assert all(torch.equal(one, other) for one, other in zip(without, again, strict=True)), (
        "not deterministic"
    )
    sinks = [Mirror()] if how == "with a broken mirror" else []
    with TelemetryLogger("r", log_dir=tmp_path, log_every=1, close_timeout=1.0, sinks=sinks) as log:
        if how == "with a broken disk":
            monkeypatch.setattr(RecordFile, "write", broken)
        if how == "with a bug of ours":
            monkeypatch.setattr(PlainValues, "fields", broken)
        with_it = trained(log)

    record_property("measured", f"{STEPS} steps on {torch.cuda.get_device_name()}, 0 bits different")
    assert all(torch.equal(one, other) for one, other in zip(without, with_it, strict=True))
