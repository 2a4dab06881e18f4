"""Tensors are copied to host memory as they are at that moment, without waiting for a device."""

from __future__ import annotations

import pytest

from tests.waiting import wait_until

torch = pytest.importorskip("torch")

from toolkit.telemetry.integrations.trl_completions import PinnedBuffer  # noqa: E402


def test_a_tensor_in_host_memory_is_there_at_once_and_stays_what_it_was():
    tensor = torch.tensor([[1, 2], [3, 4]])
    copy = PinnedBuffer(0, for_gpu=False).take(tensor)
    tensor.zero_()

    assert copy.has_arrived
    assert copy.values() == [[1, 2], [3, 4]]


def test_a_tensor_that_gradients_flow_through_is_copied_without_them():
    weights = torch.ones(3, requires_grad=True)

    assert PinnedBuffer(0, for_gpu=False).take(weights * 2).values() == [2.0, 2.0, 2.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_device_is_not_waited_for_and_the_value_is_that_of_the_call():
    buffer = PinnedBuffer(4096, for_gpu=True)
    tensor = torch.arange(6, device="cuda").reshape(2, 3)
    flags = torch.tensor([True, False], device="cuda")
    # A kernel that is used for the first time is loaded, which waits for the device.
    for _ in range(2):
        torch.cuda._sleep(1)
        large = tensor.repeat(100, 1)
        large.zero_()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        # Work of about a second is queued before the copy.
        torch.cuda._sleep(int(1.9e9))
        copy, other = buffer.take(tensor), buffer.take(flags)
        too_large = buffer.take(large)
        tensor.zero_()
        was_here = copy.has_arrived
    finally:
        torch.cuda.set_sync_debug_mode("default")
    wait_until(lambda: copy.has_arrived and other.has_arrived)

    assert not was_here
    assert copy.values() == [[0, 1, 2], [3, 4, 5]]
    assert other.values() == [True, False]
    assert too_large is None
    buffer.clear()
    assert buffer.free_bytes == 4096
