from __future__ import annotations

from tests.diagnostics.synthetic_runs import changed, clean_run, run_of
from tests.diagnostics.what_is_said import Saying, Seeds, contract_of


def with_gradients(norm, loss, *, seed=1, noise=0.1):
    """A run with other norms and losses: each a function of the step and the value."""
    records = changed(clean_run(seed, noise=noise), "grad_norm", norm)
    return changed(records, "train_loss", loss)


def vanish(noise, loss=1.7):
    def run(seed):
        return with_gradients(
            lambda step, norm: norm * 1e-9 if step >= 2000 else norm,
            lambda step, value: loss if step >= 2000 else value,
            seed=seed,
            noise=noise,
        )

    return run


FROM_2000 = {
    "start_step": 2000,
    "noticed_step": 2190,
    "metric": "grad_norm",
    "state": "open",
    "message": Saying("stays at 1.7"),
}
SAID = {
    "gradients vanish while the loss is flat": (Seeds(vanish(0.02)), FROM_2000),
    "gradients vanish while a noisy loss is flat": (Seeds(vanish(0.3)), FROM_2000),
    "they are exactly 0 from the first record on": (
        lambda: with_gradients(lambda step, norm: 0.0, lambda step, loss: 2.3),
        {"start_step": 10, "noticed_step": 600, "message": Saying("from step 10 on")},
    ),
    "it is over when gradients come back": (
        lambda: with_gradients(
            lambda step, norm: 0.0 if 2000 <= step < 3000 else norm,
            lambda step, loss: 1.5 if 2000 <= step < 3000 else loss,
            seed=2,
        ),
        {"end_step": 2990, "resolved_step": 3040},
    ),
    **{
        f"the unit of a norm does not matter: {unit}": (
            run_of([2.0, 2.1] * 100, grad_norm=[unit] * 100 + [1e-5 * unit] * 100),
            {"start_step": 101},
        )
        for unit in (1e-9, 1.0, 1e9)
    },
}
SILENT = {
    "a solved task has no gradients and no problem": lambda: vanish(0.1, loss=0.001)(1),
    "a loss that falls is learnt from whatever the norm says": lambda: with_gradients(
        lambda step, norm: 0.0, lambda step, loss: loss
    ),
    "single zeros are batches without a target": lambda: with_gradients(
        lambda step, norm: 0.0 if step % 20 else norm, lambda step, loss: loss, seed=2
    ),
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("vanishing_grad", SAID, SILENT)
