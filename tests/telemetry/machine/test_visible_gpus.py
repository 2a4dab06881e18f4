from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from toolkit.telemetry.logger.machine.samplers.visible_gpus import gpus_as_torch_counts, select, visible_gpus

UUIDS = ["GPU-aaaa-1", "GPU-aaab-2", "GPU-bbbb-3", "GPU-cccc-4"]


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        (" ", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 2 , 0 ", [2, 0]),
        ("0,1,2,3,4", [0, 1, 2, 3]),
        ("1,9,2", [1]),
        ("1,-1,2", [1]),
        ("-1", []),
        ("1,x,2", [1]),
        ("1,,2", [1]),
        ("NoDevFiles", []),
        ("GPU-bbbb-3", [2]),
        ("GPU-b", [2]),
        ("GPU-cccc-4,GPU-aaaa", [3, 0]),
        ("GPU-aaa", []),
        ("GPU-bbbb-3,GPU-aaa,GPU-cccc-4", [2]),
        ("GPU-bbbb-3,0", [2]),
        ("0,GPU-bbbb-3", [0]),
        ("MIG-1234", ["MIG-1234"]),
        ("MIG-1234,MIG-5678", ["MIG-1234"]),
        ("MIG-GPU-aaaa-1/7/0", ["MIG-GPU-aaaa-1/7/0"]),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(visible, chosen):
    assert select(visible, UUIDS) == chosen


def test_a_gpu_that_cannot_be_opened_keeps_its_number(make_gpu, make_nvml):
    nvml = make_nvml(
        make_gpu("GPU-1"), make_gpu("GPU-2", open=make_nvml.NVMLError_GpuIsLost()), make_gpu("GPU-3")
    )

    gpus = visible_gpus(nvml, {})

    assert [(gpu.index, gpu.device.uuid) for gpu in gpus] == [(0, "GPU-1"), (2, "GPU-3")]


def test_a_mig_slice_is_what_computes_and_its_board_is_what_gets_hot(make_gpu, make_nvml):
    board = make_gpu("GPU-1", mig_slices=[make_gpu("MIG-a"), make_gpu("MIG-b")])
    nvml = make_nvml(board)

    (named,) = visible_gpus(nvml, {"CUDA_VISIBLE_DEVICES": "MIG-b"})
    (first,) = visible_gpus(nvml, {"CUDA_VISIBLE_DEVICES": "0"})

    assert (named.device.uuid, named.board) == ("MIG-b", board)
    assert (first.device.uuid, first.board) == ("MIG-a", board)


def test_torch_is_not_asked_before_it_has_initialised(make_gpu, make_nvml, monkeypatch):
    asked = []
    cuda = SimpleNamespace(is_initialized=lambda: False, device_count=lambda: asked.append(1))
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)

    assert gpus_as_torch_counts(make_nvml(make_gpu("GPU-1"))) is None
    assert not asked


def test_gpus_of_which_none_can_be_opened_are_an_error_and_not_a_machine_without_gpus(make_gpu, make_nvml):
    nvml = make_nvml(make_gpu("GPU-a"), make_gpu("GPU-b"))

    def lost(*_):
        raise nvml.NVMLError_GpuIsLost

    nvml.nvmlDeviceGetHandleByIndex = lost

    with pytest.raises(nvml.NVMLError_GpuIsLost):
        visible_gpus(nvml, {})
