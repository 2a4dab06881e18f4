"""The search box finds what it says, and says what it does not understand."""

import math
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import any_text, names, scalars, tries
from toolkit.telemetry.core.run_search import completed, completions
from toolkit.telemetry.runfolder.manifest import Evaluation
from toolkit.telemetry.runfolder.status import Status
from toolkit.telemetry.runs.listing.search import (
    MAX_QUERY_LENGTH,
    QueryError,
    matches,
    names_in,
    parse,
    select_runs,
    sort_cards,
)
from toolkit.telemetry.runs.store import RunCard, RunQuery

SEARCHED_AT = datetime(2026, 11, 2, 18, 0).timestamp()


def card(name="Grey Jacket v2", **changes):
    status = Status(name=changes.pop("status", "running"), why="", sure=True)
    known = {
        "key": "grey-jacket-=v2",
        "tags": ("LoRA", "two words"),
        "project": "Faces",
        "host": "node1.lab",
        "loss": 0.15,
        "lr": 1e-4,
        "step": 500,
        "max_steps": 1000,
        "duration_s": 5000.0,
        "config": {
            "learning_rate": 1e-4,
            "optimizer": "AdamW8bit",
            "train.ema_decay": 0.99,
            "quantize": True,
        },
        "evaluations": {
            "eval/acc": Evaluation(last=0.5, last_step=9, best=0.75, best_step=5, direction="max"),
            "epoch/kl": Evaluation(last=0.2),
        },
        "created": datetime(2026, 11, 1, 12, 0).timestamp(),
        "summary": {"val_loss": 0.3, "nan_inf_detected": True, "note": "x", "Grad/Norm": 2}
        | {"findings_critical": 1, "findings_warning": 2},
    }
    return RunCard(place="x", name=name, status=status, **{**known, **changes})


@pytest.mark.parametrize(
    "text",
    [
        *("", "   ", "grey", "JACKET faces node1", '"grey jacket"', '""', "=v2", "tag:lora"),
        *('tag:"Two Words"', "STATUS:Running", "project:faces", "host:node1", "-blue"),
        *('-"jacket grey"', "-tag:sdxl", "loss<0.2", "Loss <= 0.15", "lr>=1e-4", "lr<.01", "step>499"),
        *("duration>1h", "duration>1h20m", "duration<1.5h", "duration>4999", "duration<1D"),
        *("progress>=50%", "progress>49", "progress<0.6", "val_loss<0.31", "grad/norm>1", "-loss>0.2"),
        *("-unknown>0", "grey -blue tag:lora loss<0.2", "lr=1e-4", "lr=0.0001", "learning_rate>=1e-4"),
        *("lr!=1e-3", "tag:lo", "tag:two", "tag=lora", "project:face", "optimizer:adam"),
        *("optimizer=adamw8bit", 'optimizer="AdamW8bit"', "optimizer!=sgd", "ema_decay>0.9"),
        *("quantize=true", "eval/acc<0.6", "last:eval/acc=0.5", "best:eval/acc>0.7", "best:EVAL/acc"),
        *("kl=0.2", "config:learning_rate<1", "summary:val_loss<1", "steps=1000", "grey*"),
        *("started:2026-11-01", "started=2026-11-01", "started:2026-11", "started>2026-11-01"),
        *("started<=2026-11-01", "started<2026-11-02", "started>2d", "started:yesterday"),
        *("started<today", "created>1w", "alerts>0", "alerts=3", "alerts:critical", "-alerts:none"),
    ],
)
def test_it_finds(text):
    assert matches(parse(text, SEARCHED_AT), card())


@pytest.mark.parametrize(
    "text",
    [
        *("blue", "grey blue", '"jacket grey"', "-grey", "tag:sd", "tag=lo", "status:failed"),
        *("project=face", "lr>1e-4", "lr!=1e-4", "optimizer:sgd", "optimizer=adam", "colour:red"),
        *("colour!=red", "best:eval/acc<0.7", "best:kl>0", "quantize=false", "blue*"),
        *("started:2026-11-02", "started>2026-11-02", "started<2026-11-01", "started>12h"),
        *("started:today", "host:node2", "loss>0.2", "duration>2h", "progress>50%", "val_loss>1"),
        *(
            "alerts>3",
            "alerts=0",
            "-alerts:critical",
            "unknown<1",
            "nan_inf_detected>0",
            "note<3",
            "12:30",
            "grey loss>0.2",
        ),
    ],
)
def test_it_does_not_find(text):
    assert not matches(parse(text, SEARCHED_AT), card())


def test_a_number_that_is_absent_or_no_number_matches_no_bound():
    assert not matches(parse("loss<1"), card(loss=None))
    assert not matches(parse("loss<1"), card(loss=math.nan))
    assert matches(parse("loss>1"), card(loss=math.inf))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('grey "open', "the quote before 'open' is not closed"),
        ("lr=", "`lr=` needs a value, got nothing"),
        ("started:soon", "`started:` needs a time such as 2d .* got 'soon'"),
        ("started>2026-13-01", "`started>` needs a time such as 2d"),
        ("optimizer:", "`optimizer:` needs a value, e.g. optimizer:text"),
        ("tag:", "`tag:` needs a value, e.g. tag:baseline"),
        ("status:dead", "unknown status 'dead'; known: running, starting, stalled, failed, lost"),
        ("loss<", "`loss<` needs a number such as .*, got nothing"),
        ("loss<low", "`loss<` needs a number such as .*, got 'low'"),
        ("loss<1h", "`loss<` needs a number .* got '1h'"),
        ("loss<50%", "`loss<` needs a number .* got '50%'"),
        ("loss<nan", "needs a number .* got 'nan'"),
        ("loss<1e999", "needs a number .* got '1e999'"),
        ("duration>1y", "needs a duration such as .* got '1y'"),
        ("progress>half", "needs a percentage such as 50%"),
        ("<3", "`<` needs a name"),
        ("grey -", "a single - means nothing"),
        ("x" * (MAX_QUERY_LENGTH + 1), "at most 2000 are allowed"),
        ("tag:" + "y" * 100 + ' loss<"', "`loss<` needs a number .* got nothing"),
    ],
)
def test_it_says_which_part_is_wrong_and_what_is_allowed(text, said):
    with pytest.raises(QueryError, match=said):
        parse(text)


pieces = st.sampled_from(
    [
        *("loss", "tag", "status", "duration", "progress", ":", "<", ">=", '"', "-", " ", "1", "1h"),
        *("%", "e", ".", "running"),
    ]
)
cards = st.builds(
    card,
    name=any_text,
    tags=st.lists(any_text, max_size=2).map(tuple),
    project=st.none() | any_text,
    loss=st.none() | st.floats(),
    step=st.none() | st.integers(),
    status=st.sampled_from(["running", "odd"]),
    summary=st.dictionaries(names | st.just("loss"), scalars, max_size=3),
)


@tries
@given(text=any_text | st.lists(pieces, max_size=12).map("".join), one=cards)
def test_whatever_is_typed_is_a_search_or_a_query_error(text, one):
    try:
        query = parse(text)
    except QueryError:
        return

    assert matches(query, one) in (True, False)


@tries
@given(word=st.text(st.characters(codec="utf-8", exclude_characters='"'), min_size=1, max_size=20), one=cards)
def test_a_phrase_and_its_negation_part_all_runs_in_two(word, one):
    assert matches(parse(f'"{word}"'), one) is not matches(parse(f'-"{word}"'), one)


def order(by, *runs):
    return [run.name for run in sort_cards(runs, by)]


def test_each_order_puts_first_what_a_person_looks_for():
    a = card("run-10", last_sign=5.0, created=1.0, loss=0.5, step=100, duration_s=9.0, status="finished")
    b = card("Run-2", last_sign=4.0, created=2.0, loss=0.4, step=900, duration_s=10.0, status="failed")
    c = card("z", last_sign=None, created=None, loss=None, step=None, duration_s=None, status="running")
    d = card("y", last_sign=None, created=None, loss=math.nan, step=None, duration_s=None, status="odd")

    assert order("last sign", c, b, a) == ["run-10", "Run-2", "z"]
    assert order("started", c, a, b) == ["Run-2", "run-10", "z"]
    assert order("name", c, a, b) == ["Run-2", "run-10", "z"]
    assert order("loss", c, d, a, b) == ["Run-2", "run-10", "y", "z"]
    assert order("progress", c, a, b) == ["Run-2", "run-10", "z"]
    assert order("duration", c, a, b) == ["Run-2", "run-10", "z"]
    assert order("status", d, a, b, c) == ["z", "Run-2", "run-10", "y"]


# ---------------------------------------------------------------- queries

NOW = 1e9
RUNS = [
    card("b", key="b", project="Faces", last_sign=NOW - 86_400 * 3, status="finished", loss=0.3),
    card("a", key="a", project="faces", last_sign=NOW - 60, loss=0.2),
    card("c", key="c", project=None, last_sign=None, status="lost", loss=None),
    card("d", key="d", project="Faces", last_sign=NOW, archived=True, status="finished", loss=0.1),
]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (RunQuery(), "dabc"),
        (RunQuery(project="Faces"), "db"),
        (RunQuery(text="project:faces loss<0.25"), "da"),
        (RunQuery(statuses=("finished", "lost")), "dbc"),
        (RunQuery(archived=False), "abc"),
        (RunQuery(sort="loss"), "dabc"),
        (RunQuery(sort="name", project="Faces", archived=False, statuses=("finished",)), "b"),
    ],
)
def test_a_query_finds_the_runs_for_which_all_of_it_holds(query, found):
    assert "".join(one.key for one in select_runs(RUNS, query, NOW)) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("optimiser:adam", "unknown name 'optimiser'; did you mean optimizer"),
        ("ema_deacy>0", "unknown name 'ema_deacy'; did you mean train.ema_decay"),
        ("zzzzzz=1", "unknown name 'zzzzzz'; no run has it"),
        ("best:eval/ac>1", "did you mean eval/acc"),
        ("= val_los < 1", "There is no metric 'val_los' .*did you mean val_loss"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_ones(text, said):
    with pytest.raises(QueryError, match=said):
        select_runs([card()], RunQuery(text=text), NOW)


def test_runs_are_sorted_by_settings_and_metrics_with_missing_ones_last():
    def run(name, acc=None, lr=None):
        found = {} if acc is None else {"acc": Evaluation(last=acc, best=acc + 1, direction="max")}
        return card(name, evaluations=found, config={} if lr is None else {"lr": lr})

    runs = [run("a", 0.5, 3), run("b"), run("c", math.nan, "x10"), run("d", 0.7, "x9"), run("e", 0.6, 1)]

    assert order("last:acc", *runs) == ["a", "e", "d", "c", "b"]
    assert order("best:acc", *runs) == ["d", "e", "a", "c", "b"]
    assert order("-best:acc", *runs) == ["a", "e", "d", "c", "b"]
    assert order("config:lr", *runs) == ["e", "a", "d", "c", "b"]
    assert order("-config:lr", *runs)[:2] == ["a", "e"]
    assert order("-name", *runs) == ["e", "d", "c", "b", "a"]


@pytest.mark.parametrize(
    ("text", "first", "whole"),
    [
        ("le", "learning_rate", "learning_rate"),
        ("tag:x -opt", "optimizer", "tag:x -optimizer"),
        ("lr>1", None, None),
    ],
)
def test_names_are_completed(text, first, whole):
    found = completions(text, names_in([card()]))

    assert (found[0] if found else None) == first
    assert (completed(text, found[0]) if found else None) == whole
