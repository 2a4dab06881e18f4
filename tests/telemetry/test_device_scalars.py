"""A number is taken from a tensor as it is at the call, without ever waiting for a device; anything else is refused."""

import numpy as np
import pytest
import torch

from tests.lengths import in_make_faults
from tests.telemetry.logged import Arriving
from toolkit.telemetry.logger.records.device_scalars import DeviceScalars, PendingScalar, Refusal


@pytest.fixture
def scalars():
    return DeviceScalars()


@pytest.mark.parametrize(
    "dtype",
    [
        *(
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
        ),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_a_number_in_host_memory_is_taken_at_once(scalars, dtype, shape):
    taken = scalars.take(torch.ones(shape).to(dtype))

    assert taken == 1
    assert type(taken) in (float, int, bool)


def test_a_number_is_taken_in_every_mode(scalars):
    with torch.no_grad():
        assert scalars.take(torch.tensor(0.5)) == 0.5
    with torch.inference_mode():
        assert scalars.take(torch.tensor(0.5)) == 0.5
    with torch.autocast("cpu"):
        assert scalars.take(torch.tensor(0.5)) == 0.5
    with torch.device("meta"):
        assert scalars.take(torch.tensor(0.5, device="cpu")) == 0.5


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.tensor(1j), "complex"),
        (torch.tensor([1j]), "complex"),
        (torch.zeros(3, dtype=torch.complex64), "shape"),
        (torch.empty((), device="meta"), "meta"),
        (torch.empty(100, device="meta"), "shape"),
        (torch.float32, "not a tensor"),
        (np.float32(1), "not a tensor"),
        (torch.nn.Linear(1, 1), "not a tensor"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_number_is_refused_with_the_reason(scalars, value, why):
    refusal = scalars.take(value)

    assert type(refusal) is Refusal
    assert why in refusal.why


@in_make_faults
def test_a_real_tensor_that_is_spread_over_ranks_is_met_with_the_same_care(scalars, tmp_path):
    distributed_tensor = pytest.importorskip("torch.distributed.tensor")
    import torch.distributed as dist

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        whole = distributed_tensor.distribute_tensor(
            torch.tensor([0.5]), mesh, [distributed_tensor.Replicate()]
        )
        parts = distributed_tensor.distribute_tensor(torch.tensor([0.5]), mesh, [distributed_tensor.Shard(0)])

        assert scalars.take(whole) == 0.5
        assert "full_tensor()" in scalars.take(parts).why
    finally:
        dist.destroy_process_group()


def test_a_pending_number_is_missing_until_it_arrives():
    memory = Arriving()
    pending = PendingScalar(memory, "place", "f32")

    assert pending.poll() is None

    memory.values["place"] = 0.5

    assert pending.poll() == 0.5
