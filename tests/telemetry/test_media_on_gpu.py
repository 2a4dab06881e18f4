"""Images and histograms of CUDA tensors: right, and never waited for. On a real device only."""

import pytest
import torch

from tests.telemetry.logged import make_logger, records_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def test_logging_an_image_and_a_histogram_does_not_wait_for_the_gpu(tmp_path):
    log = make_logger(tmp_path, diagnostics=False)
    image = torch.zeros(3, 8, 8, device="cuda")
    image[0] = 1.0
    values = torch.arange(4.0, device="cuda")
    log.log_histogram("warm", values, step=0)
    log.flush(60.0)
    # Any call that waits for the device raises from here on.
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(200_000_000)
        log.log_image("red", image, step=1)
        log.log_histogram("four", values, bins=4, step=1)
        image.zero_()
        values.zero_()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    log.close()

    records = records_of(log)
    (sample,) = [record for record in records if record["event"] == "sample"]
    counted = [record for record in records if record["event"] == "histogram" and record["name"] == "four"]
    assert log.guard.total == 0, log.guard.counts
    assert counted[0]["values"] == [1.0, 1.0, 1.0, 1.0]
    assert next(tmp_path.rglob(sample["path"])).read_bytes().startswith(b"\x89PNG")
