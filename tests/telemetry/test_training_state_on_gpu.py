"""A state on a GPU is read without waiting for it. Needs a CUDA device; says so where there is none."""

import pytest

torch = pytest.importorskip("torch")

from tests.records import read_records  # noqa: E402
from tests.telemetry.logged import make_logger  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True}])
def test_a_state_on_a_gpu_is_read_without_a_sync_and_has_the_numbers_of_its_copy(tmp_path, options):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    scaler.scale(model(torch.randn(8, 64, device="cuda")).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    copy = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    copied = torch.optim.AdamW(copy.parameters(), lr=0.01)
    copy.load_state_dict(model.state_dict())
    copied.load_state_dict(optimizer.state_dict())
    torch.cuda.synchronize()
    states = torch.get_rng_state(), torch.cuda.get_rng_state()
    log = make_logger(tmp_path)
    log.log_start()
    log.state("start", model=model, optimizer=optimizer, scaler=scaler)
    torch.cuda.set_sync_debug_mode("error")
    try:
        log.state("save", 1, model=model, optimizer=optimizer, scaler=scaler)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    log.state("load", 1, model=copy, optimizer=copied)
    log.close()

    _, saved, loaded = read_records(log.run_folder, "state")
    assert log.guard.counts == {}
    assert (saved["optimizer_step"], saved["scaler_scale"]) == (1, 1024.0)
    for name in ("optimizer_step", "moment1_norm", "moment2_norm", "weights_norm"):
        assert saved[name] == loaded[name]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(torch.cuda.get_rng_state(), states[1])
