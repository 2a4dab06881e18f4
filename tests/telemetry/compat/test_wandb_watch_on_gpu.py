"""`wandb.watch` waits for no GPU. Needs a CUDA device; says so where there is none."""

import pytest

torch = pytest.importorskip("torch")

import toolkit.telemetry.compat.wandb as wandb  # noqa: E402
from tests.telemetry.logged import PATIENCE_S, read_records  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def train(model, steps, log=lambda loss: None):
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 256, device="cuda")
    for _ in range(steps):
        loss = model(inputs).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(loss.detach())


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 1)).cuda()


def test_a_watched_model_never_waits_for_the_gpu_and_trains_to_the_same_weights(tmp_path):
    plain, watched = layers(), layers()
    telemetry = {"system": False, "csv": False, "close_timeout": PATIENCE_S}
    run = wandb.init(dir=tmp_path, name="r", telemetry=telemetry)
    wandb.watch(watched, log="all", log_freq=5)
    train(watched, 10, lambda loss: run.log({"loss": loss}))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        train(watched, 50, lambda loss: run.log({"loss": loss}))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    wandb.finish()
    train(plain, 10)
    train(plain, 50)
    histograms = read_records(run.telemetry.run_folder / "metrics.jsonl", "histogram")

    assert all(
        torch.equal(one, other) for one, other in zip(plain.parameters(), watched.parameters(), strict=True)
    )
    assert len(histograms) == 12 * 2 * len(list(plain.parameters()))
    assert run.telemetry.guard.counts == {}
    sizes = {name: one.numel() for name, one in plain.named_parameters()}
    for histogram in histograms:
        size = sizes[histogram["name"].partition("/")[2]]
        assert sum(histogram["values"]) == -(-size // -(-size // 65_536))
