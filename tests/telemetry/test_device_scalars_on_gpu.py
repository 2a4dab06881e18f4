"""GPU tensors are logged without waiting for the GPU. Needs a CUDA device; says so where there is none."""

import time

import pytest

torch = pytest.importorskip("torch")

from tests.records import read_records  # noqa: E402
from toolkit.telemetry import TelemetryLogger  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


@pytest.fixture
def syncs_are_errors():
    torch.zeros(1, device="cuda").item()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def steps_of(log):
    return read_records(log.run_folder, "step", live=True)


def keep_the_gpu_busy(seconds):
    """Queue work and return at once."""
    torch.cuda._sleep(int(seconds * 1.9e9))


def test_a_call_returns_while_the_gpu_is_still_busy_and_keeps_the_value_of_its_time(
    tmp_path, syncs_are_errors
):
    log = TelemetryLogger("r", log_dir=tmp_path, log_every=1)
    loss = torch.full((), 1.0, device="cuda")
    log.log_step(0, train_loss=loss)
    keep_the_gpu_busy(1.0)
    began = time.perf_counter()
    log.log_step(1, train_loss=loss)
    loss.zero_()
    log.log_step(2, train_loss=loss)
    log.log_eval(2, val_loss=0.25)
    took = time.perf_counter() - began
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    log.close()

    assert took < 0.5
    assert [record["train_loss"] for record in steps_of(log)] == [1.0, 1.0, 0.0]
    events = [record["event"] for record in read_records(log.run_folder)]
    assert events.index("eval") > events.index("step")
    assert events[-1] == "end"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "bool"])
def test_every_kind_of_number_arrives(tmp_path, syncs_are_errors, dtype):
    log = TelemetryLogger("r", log_dir=tmp_path, log_every=1)
    value = torch.ones((), device="cuda").to(getattr(torch, dtype))
    log.log_step(1, train_loss=value, shaped=value.reshape(1))
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    log.close()

    assert steps_of(log)[0]["train_loss"] == 1
    assert steps_of(log)[0]["shaped"] == 1


def test_a_nan_on_the_gpu_is_written_at_once_whatever_the_interval(tmp_path, syncs_are_errors):
    log = TelemetryLogger("r", log_dir=tmp_path, log_every=100)
    for step in range(50):
        log.log_step(step, train_loss=torch.full((), float("nan") if step == 17 else 1.0, device="cuda"))
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    log.close()

    odd = [record for record in steps_of(log) if record["nan_inf_detected"]]
    assert [record["global_step"] for record in odd] == [17]
    assert odd[0]["non_finite"] == {"train_loss": "NaN"}
    assert sum(record.get("steps_folded", 0) + 1 for record in steps_of(log)) == 50


def test_memory_is_bounded_and_nothing_is_silent_when_the_gpu_never_answers(tmp_path, syncs_are_errors):
    log = TelemetryLogger("r", log_dir=tmp_path, log_every=1)
    loss = torch.full((), 1.0, device="cuda")
    log.log_step(0, train_loss=loss)
    keep_the_gpu_busy(3.0)
    # Kernel launches queue about a thousand deep; copies of a value that exists need no launch.
    for step in range(1, 901):
        log.log_step(step, train_loss=loss)
    log.close()
    torch.cuda.set_sync_debug_mode("default")

    steps = steps_of(log)
    assert [record["global_step"] for record in steps] == list(range(901))
    undelivered = [record for record in steps if "train_loss" in record.get("unencodable", {})]
    assert all("train_loss" in record or record in undelivered for record in steps)
    torch.cuda.synchronize()


def test_a_loop_of_captured_graphs_is_logged_and_a_capture_is_not_spoilt(tmp_path):
    log = TelemetryLogger("r", log_dir=tmp_path, log_every=1)
    weight = torch.zeros((), device="cuda")
    log.log_step(0, train_loss=weight.clone())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        (weight + 1).clone()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        weight += 1
        loss = weight * 2
        # The writer's thread looks for arrived values all the while; it must not touch the driver.
        time.sleep(0.5)
        log.log_step(1, train_loss=loss)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    for step in range(2, 52):
        graph.replay()
        log.log_step(step, train_loss=loss)
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    log.close()

    steps = {record["global_step"]: record for record in steps_of(log)}
    assert "captured" in steps[1]["unencodable"]["train_loss"]
    assert [steps[step]["train_loss"] for step in range(2, 52)] == [2.0 * (step - 1) for step in range(2, 52)]


def test_memory_and_utilisation_of_the_gpu_are_recorded_off_the_training_thread(tmp_path, syncs_are_errors):
    pytest.importorskip("pynvml")
    block = torch.zeros(64, 1024, 1024, device="cuda")
    log = TelemetryLogger("r", log_dir=tmp_path, log_every=1, system_every=1.0)
    deadline = time.monotonic() + 15
    step = 0
    while time.monotonic() < deadline and not any("gpu_mem_allocated" in record for record in steps_of(log)):
        step += 1
        log.log_step(step, train_loss=block[0, 0, 0])
        time.sleep(0.1)
    torch.cuda.set_sync_debug_mode("default")
    log.close()

    steps = [record for record in steps_of(log) if "gpu_mem_allocated" in record]
    assert steps[0]["gpu_mem_allocated"] >= 0.25
    assert any("gpu/0/mem_used_gb" in record for record in read_records(log.run_folder, "system"))


def test_the_last_values_are_waited_for_at_the_end(tmp_path):
    log = TelemetryLogger("r", log_dir=tmp_path, log_every=1)
    loss = torch.full((), 0.5, device="cuda")
    log.log_step(1, train_loss=loss)
    keep_the_gpu_busy(0.5)
    log.log_step(2, train_loss=loss * 2)
    log.close()

    assert [record["train_loss"] for record in steps_of(log)] == [0.5, 1.0]
