from __future__ import annotations

import math

from toolkit.telemetry.mirrors.shared.scalars import scalars_of


def test_a_steps_metrics_keep_their_names():
    record = {"event": "step", "time": 1.0, "seq": 3, "session": 1, "elapsed": 2.0, "global_step": 10}
    record |= {
        "train_loss": 0.5,
        "epoch": 1,
        "nan_inf_detected": False,
        "note": "x",
        "flag": True,
        "none": None,
    }

    assert scalars_of(record) == {"train_loss": 0.5, "epoch": 1.0, "flag": 1.0}


def test_other_kinds_are_put_under_their_own_name_once():
    assert scalars_of({"event": "eval", "val_loss": 1, "eval/fid": 2}) == {
        "eval/val_loss": 1.0,
        "eval/fid": 2.0,
    }
    assert scalars_of({"event": "epoch", "epoch": 3, "val_loss": 1}) == {"epoch/val_loss": 1.0}
    assert scalars_of({"event": "system", "gpu/0/util": 9}) == {"system/gpu/0/util": 9.0}


def test_what_was_not_finite_comes_back_as_it_was():
    spelled = {"train_loss": "NaN", "a": "Infinity", "b": "-Infinity", "c": "?"}

    scalars = scalars_of({"event": "step", "train_loss": None, "a": None, "b": None, "non_finite": spelled})

    assert math.isnan(scalars.pop("train_loss"))
    assert scalars == {"a": math.inf, "b": -math.inf}
