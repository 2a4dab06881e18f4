"""The numbers of a training's state: equal for equal states, others for others, and nothing is changed by reading."""

import copy
import random

import numpy as np
import pytest
import torch

from tests.telemetry.logged import make_logger, records_of
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.records.training_state import state_fields


class Lion(torch.optim.Optimizer):
    """Keeps one moment and counts no steps, as many optimizers of other packages do."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self):
        """Make a step."""
        for group in self.param_groups:
            for param in group["params"]:
                moment = self.state[param].setdefault("exp_avg", torch.zeros_like(param))
                moment.mul_(0.9).add_(param.grad, alpha=0.1)
                param.sub_(moment.sign() * group["lr"])


OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01),
    "lion": lambda params: Lion(params, lr=0.01),
}


def make(kind="adamw"):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 4, 1))
    optimizer = OPTIMIZERS[kind](model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    return model, optimizer, scheduler


def train(model, optimizer, scheduler, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 4, 4)).square().mean().backward()
        optimizer.step()
        scheduler.step()


def read(model, optimizer, scheduler):
    guard = Guard()
    fields = state_fields(guard, model=model, optimizer=optimizer, scheduler=scheduler)
    assert guard.total == 0
    return {
        name: value.item() if isinstance(value, torch.Tensor) else value
        for name, value in fields.items()
        if not name.startswith("rng")
    }


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_loaded_state_has_the_numbers_of_the_saved_one_and_another_state_has_others(kind):
    trained = make(kind)
    train(*trained, steps=3)
    saved, kept = read(*trained), [copy.deepcopy(part.state_dict()) for part in trained]
    train(*trained, steps=1)
    loaded = make(kind)
    fresh = read(*loaded)
    for part, state in zip(loaded, kept, strict=True):
        part.load_state_dict(state)

    assert read(*loaded) == saved
    assert (saved["optimizer_states"], fresh["optimizer_states"]) == (4, 0)
    later = read(*trained)
    for name in {"weights_norm", "scheduler_step", "scheduler_lr"}:
        assert later[name] != saved[name]
    assert {name for name in saved if name.startswith("moment")} != set()
    for name in {"moment1_norm", "moment2_norm"} & set(saved):
        assert later[name] != saved[name] != fresh.get(name, 0.0)
    assert saved.get("optimizer_step") == (None if kind in ("sgd", "lion") else 3)
    assert fresh.get("optimizer_step") == (0 if kind in ("adamw", "fused", "lion") else None)


def test_the_numbers_of_weights_do_not_depend_on_where_they_are_in_memory():
    model, *others = make()
    before = read(model, *others)["weights_norm"]
    model.to(memory_format=torch.channels_last)

    assert read(model, *others)["weights_norm"] == before


def test_few_values_of_a_large_model_are_looked_at_and_a_small_change_is_seen():
    model = torch.nn.ParameterList([torch.randn(200, 200) for _ in range(40)])
    before = state_fields(Guard(), model=model)["weights_norm"]
    with torch.no_grad():
        for one in model:
            one.add_(1e-6)

    # Sixteen tensors of at most 256 values each.
    assert 55.0 < before.item() < 70.0
    assert state_fields(Guard(), model=model)["weights_norm"] != before


def test_reading_changes_neither_weights_nor_gradients_nor_random_states():
    parts = make()
    train(*parts, steps=2)
    before = copy.deepcopy([part.state_dict() for part in parts])
    gradients = [param.grad.clone() for param in parts[0].parameters()]
    states = torch.get_rng_state(), repr(np.random.get_state()), random.getstate()
    read(*parts)

    assert torch.equal(torch.get_rng_state(), states[0])
    assert (repr(np.random.get_state()), random.getstate()) == states[1:]
    for param, gradient in zip(parts[0].parameters(), gradients, strict=True):
        assert torch.equal(param.grad, gradient)
    for part, state in zip(parts, before, strict=True):
        assert repr(part.state_dict()) == repr(state)


def test_each_random_generator_has_a_hash_of_its_own():
    before = state_fields(Guard())
    np.random.random()
    after = state_fields(Guard())

    assert before["rng_torch"] == after["rng_torch"]
    assert before["rng_python"] == after["rng_python"]
    assert before["rng_numpy"] != after["rng_numpy"]
    assert before["rng_hash"] != after["rng_hash"]


def test_a_wrapped_optimizer_and_a_part_that_raises_are_read_as_far_as_they_go():
    model, optimizer, scheduler = make()
    train(model, optimizer, scheduler, steps=2)

    class Wrapper:
        def __init__(self, inner):
            self.optimizer = inner

    class Broken:
        def get_last_lr(self):
            raise RuntimeError("no rate yet")

    guard = Guard()
    fields = state_fields(guard, optimizer=[Wrapper(optimizer)], scheduler=Broken())

    assert guard.total == 1
    assert (fields["optimizer_step"], fields["optimizer_lr"]) == (2, optimizer.param_groups[0]["lr"])
    assert fields["weights_norm"] == read(model, optimizer, scheduler)["weights_norm"]


def test_a_record_names_the_checkpoint_and_is_no_row_of_the_table(tmp_path):
    model, optimizer, scheduler = make()
    train(model, optimizer, scheduler, steps=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with make_logger(tmp_path, csv=True) as log:
        log.log_step(1, train_loss=1.0)
        log.state(
            "save",
            1,
            checkpoint=tmp_path / "step-1",
            model=model,
            optimizer=optimizer,
            scaler=scaler,
            epoch=0,
        )
        log.state("saved", 1)
        log.log_event("state", at="mine")
    (record,) = records_of(log, "state")

    assert log.guard.total == 2
    assert (record["at"], record["global_step"], record["checkpoint"]) == ("save", 1, "step-1")
    assert (record["optimizer_step"], record["scaler_scale"], record["world_size"]) == (1, 1024.0, 1)
    assert (record["epoch"], len(record["rng_hash"])) == (0, 16)
    assert "weights_norm" not in (log.run_folder / "metrics.csv").read_text()


def test_an_optimizer_that_refuses_its_state_and_weights_without_a_shape_cost_nothing_else():
    class Refusing:
        param_groups = ()

        @property
        def state(self):
            raise RuntimeError("not here")

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LazyLinear(1))

    found = state_fields(Guard(), optimizer=Refusing(), model=model)

    assert found["weights_norm"] > 0
    assert "rng_numpy" in found


def test_the_statistics_of_batch_norm_have_a_number_of_their_own():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    before = state_fields(Guard(), model=model)
    model(torch.randn(8, 4))

    after = state_fields(Guard(), model=model)
    assert after["weights_norm"] == before["weights_norm"]
    assert after["buffers_norm"] != before["buffers_norm"]
    assert after["weights_dtype"] == "float32"
    assert "buffers_norm" not in state_fields(Guard(), model=torch.nn.Linear(4, 4))


def test_a_second_optimizer_has_numbers_of_its_own():
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizers = [torch.optim.AdamW(one.parameters()) for one in (model, other)]
    other(torch.ones(2)).sum().backward()
    optimizers[1].step()

    fields = state_fields(Guard(), optimizer=optimizers)
    assert fields["optimizer_step_2"] == 1
    assert fields["moment1_norm_2"] > 0
    assert "moment1_norm_2" not in state_fields(Guard(), optimizer=optimizers[:1])


def test_optimizers_and_models_with_names_and_further_parts_have_numbers_of_their_own():
    model, ema = torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(3)
    both = {
        "body": torch.optim.AdamW([model.weight]),
        "head": torch.optim.SGD([model.bias], lr=0.1, momentum=0.9),
    }

    def read(**parts):
        return state_fields(Guard(), optimizer=both, model={"net": model, "norm": ema}, **parts)

    before = read(
        ema=ema, labels=torch.tensor([1, 2, 3]), sampler={"epoch": 1, "at": 7}, note="kept", replay=[]
    )
    ema.running_mean += 1.0
    after = read(
        ema=ema, labels=torch.tensor([3, 2, 1]), sampler={"epoch": 1, "at": 8}, note="kept", replay=[]
    )

    assert (before["optimizer_lr_head"], before["optimizer_step_body"]) == (0.1, 0)
    changed = {"buffers_norm", "buffers_norm_norm", "ema_norm", "labels_norm", "sampler_hash"}
    assert {name for name in before if before[name] != after[name]} == changed
    assert (before["note"], before["replay_norm"]) == ("kept", 0.0)


def test_the_precision_of_a_block_of_autocast_is_recorded():
    with torch.autocast("cpu", torch.bfloat16):
        assert state_fields(Guard())["autocast_dtype"] == "bfloat16"
    assert "autocast_dtype" not in state_fields(Guard())
