"""What can be written as a formula, and what is said of the rest."""

from __future__ import annotations

import math

import pytest

from tests.formulas.one_by_one import OneByOne
from toolkit.telemetry.formulas.formula import MAX_LENGTH, FormulaError, parse, quoted


def value(text, **metrics):
    return OneByOne(parse(text), {"lr": 0.5, "train.rank": 8.0}.get).take(
        {"x": 2.0, **metrics}, {"step": 7.0, "time": 0.0}
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x + 2 * 3", 8.0),
        ("= (x + 2) * 3", 12.0),
        ("-x * 2", -4.0),
        ("10 - 4 - x", 4.0),
        ("8 / 2 / x", 2.0),
        ("x < 3 and x >= 2 or 0 > x", 1.0),
        ("x == 2 and x != 2", 0.0),
        ("x * step", 14.0),
        ("x * config.lr + config.train.rank", 9.0),
        ("x + 1.5e-1 + .5", 2.65),
        ("abs(-x) + sqrt(4) + log(exp(x))", 6.0),
        ("x / 0", math.inf),
        ("-x / 0", -math.inf),
        ("exp(1000 * x)", math.inf),
        ("log(x - x)", -math.inf),
        ("last(x) + first(x) + max(x)", 6.0),
        ("best(ema(val_loss, 0.9)) - val_loss", 0.0),
    ],
)
def test_a_formula_has_the_value_that_mathematics_says(text, expected):
    assert value(text, val_loss=3.0) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["log(-x)", "sqrt(-x)", "0 * x / 0"])
def test_what_is_not_defined_is_nan(text):
    assert math.isnan(value(text))


def test_names_are_as_logged():
    text = "val/loss / train_loss + gpu/0/util + \"speed (it/s)\" + 'step' + pass@1 + config.lr + step"

    assert parse(text).names == ("val/loss", "train_loss", "gpu/0/util", "speed (it/s)", "step", "pass@1")
    assert parse(text).all_of("setting").keys() == {"lr"}
    assert [quoted(name) for name in ("val/loss", "a b", "step", "config.x", 'a"b')] == [
        *("val/loss", '"a b"', '"step"', '"config.x"', "'a\"b'")
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "A name, a number or ( is missing (character 1)."),
        ("loss +", "A name, a number or ( is missing (character 7)."),
        ("loss * * 2", "A name, a number or ( is missing before '*' (character 8)."),
        ("loss val_loss", "'val_loss' was not expected here (character 6)."),
        ("(loss", "The ) is missing for what begins (character 1)."),
        ("loss $ 2", "'$ 2' cannot be read (character 6)."),
        ("2loss", "'2loss' cannot be read (character 1)."),
        ('"loss', "'\"loss' cannot be read (character 1)."),
        ("emma(loss, 0.9)", "There is no function 'emma' (character 1); did you mean ema?"),
        ("ema(loss)", "The function ema takes (x, weight) (character 1)."),
        (
            "ema(loss, 1)",
            "The weight of ema must be a number from 0 to less than 1, such as 0.98 (character 1).",
        ),
        (
            "mean(loss, 0.5)",
            "The second value of mean must be a whole number from 1 to 10,000 (character 1).",
        ),
        (
            "median(loss, x)",
            "The second value of median must be a whole number from 1 to 10,000 (character 1).",
        ),
        (
            "best(speed)",
            "The function best does not know which values of 'speed' are better; use min() or max() (character 1).",
        ),
        (
            "best(1 / loss)",
            "The function best does not know which values are better; use min() or max() (character 1).",
        ),
        ("mean(loss)", "The function mean takes (x, n) (character 1)."),
        (
            "mean(x, 6000) + max(x, 6000)",
            "The formula looks at more than 10,000 records (character 17).",
        ),
        ("loss ^ 2", "'^ 2' cannot be read (character 6)."),
        ("not x", "'x' was not expected here (character 5)."),
        ("delta(step)", "The function delta needs a metric (character 1)."),
        ("1 < loss < 2", "A comparison cannot be compared; join two by `and` (character 10)."),
        ("x+" * 120 + "1", "The formula is too large: at most 100 parts and 30 levels are allowed."),
        ("(" * 40, "The formula is too large: at most 100 parts and 30 levels are allowed."),
        ("-" * 40 + "x", "The formula is too large: at most 100 parts and 30 levels are allowed."),
        ("x" * (MAX_LENGTH + 1), "The formula has 501 characters; at most 500 are allowed."),
        ("__import__('os')", "There is no function '__import__' (character 1)."),
    ],
)
def test_a_mistake_is_said_with_its_place(text, said):
    with pytest.raises(FormulaError) as caught:
        parse(text)

    assert str(caught.value).startswith(said)


def test_an_unknown_metric_is_said_with_the_nearest_one():
    known = ["val_loss", "train_loss", "speed (it/s)"]

    assert parse("train_loss / val_los").unknown(known) == (
        "There is no metric 'val_los' (character 14); did you mean val_loss?"
    )
    assert parse("lr/3").unknown(["lr"]) == (
        "There is no metric 'lr/3' (character 1); to divide, put a space on either side of the /."
    )
    assert (
        parse("speed").unknown(known)
        == "There is no metric 'speed' (character 1); did you mean \"speed (it/s)\"?"
    )
    assert parse("train_loss - val_loss").unknown(known) is None


def test_a_setting_that_the_run_lacks_is_said():
    with pytest.raises(
        FormulaError, match=r"The run has no setting 'warmup' that is a number \(character 5\)\."
    ):
        value("x * config.warmup")
