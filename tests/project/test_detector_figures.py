from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.diagnose_eval import __main__ as command
from benchmarks.diagnose_eval import goals, injected_learning, peers, reliability, second_reading, tables
from benchmarks.diagnose_eval.corpus import DEFAULT, CorpusError, Evaluator, splits_of
from benchmarks.diagnose_eval.cross_validation import folds_of, repositories_that_move, validate
from benchmarks.diagnose_eval.delay import delays, seen_from
from benchmarks.diagnose_eval.early_warning import first_beginning, first_of_ours, first_said
from benchmarks.diagnose_eval.ours import follow, predictions
from benchmarks.diagnose_eval.scores import counts_of, precision, recall, worse
from benchmarks.figures import put_between_marks
from tests.lengths import in_make_faults
from toolkit.telemetry.diagnostics.examiner import examine

CORPUS = Path(os.environ.get("TELEMETRY_CORPUS") or DEFAULT)


@pytest.fixture(scope="module")
def kept():
    return json.loads(tables.RESULT.read_text(encoding="utf-8"))


def test_the_document_shows_the_kept_results(kept):
    document = tables.DOCUMENT.read_text(encoding="utf-8")

    assert put_between_marks(document, tables.document(kept), tables.BEGIN) == document, "make diagnose-eval"


def test_the_results_do_not_identify_the_machine(kept):
    text = json.dumps(kept)

    assert "/tmp" not in text
    assert str(Path.home()) not in text


@in_make_faults
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_figure_is_worse_than_the_document_says(kept):
    try:
        splits = splits_of(CORPUS)
        evaluator = Evaluator(CORPUS)
    except CorpusError as error:
        pytest.skip(f"no labelled curves here ({error}); TELEMETRY_CORPUS says where they are")
    compared = 0
    for split in splits:
        before = kept["splits"].get(split.name)
        if before is None or not set(split.left_out) <= set(before["left_out"]):
            continue
        # A run that was not there when the figures were made has none to compare with.
        split = split.without(before["left_out"])
        now = counts_of(evaluator.score(split, {run: predictions(split.rows(run)) for run in split.labels}))
        compared += 1

        assert worse(now, before["ours"]) == [], "a detector got worse; if it is meant: make diagnose-eval"
    if not compared:
        pytest.skip(f"the curves at {CORPUS} are not those of the document, or not all of them")


# ---------------------------------------------------------------- the evaluation itself, on a made corpus

EVALUATOR = """
def load_steps(path):
    return []

def evaluate(corpus, predictions, min_severity, list_errors):
    import json, os
    with open(os.path.join(corpus, "labels.json")) as file:
        labels = json.load(file)
    for run in labels:
        assert os.path.exists(os.path.join(corpus, "runs", run + ".jsonl"))
    hit = sum(any(p["kind"] == "nan" for p in predictions[run]) for run in labels)
    nan = dict(labels=len(labels), hit=hit, fp=0, runs=len(labels), run_tp=hit, run_fp=0)
    clean = dict(n=1, fa=0, hit=0, by_kind={})
    return dict(kinds={"nan": nan}, clean=clean, quiet=dict(n=1, alarms=0, hit=0), errors=[("FN", "nan", "b", 1, 2)])
"""


@pytest.fixture
def corpus(tmp_path):
    split = tmp_path / "corpus" / "open"
    (split / "runs").mkdir(parents=True)
    (split.parent / "evaluate.py").write_text(EVALUATOR)
    label = {"kind": "nan", "start_step": 30, "end_step": 40, "certainty": "sure"}
    labels = {run: {"labels": [label], "clean": False} for run in ("a", "b", "gone")}
    (split / "labels.json").write_text(json.dumps(labels))
    (split / "manifest.csv").write_text("run_id,source_repo\na,x/one\nb,x/two\ngone,x/two\n")
    for run in ("a", "b"):
        lines = [
            json.dumps(
                {
                    "event": "step",
                    "global_step": step,
                    "train_loss": float("nan") if step > 30 else 3.0 / step,
                }
            )
            for step in range(1, 41)
        ]
        assert "NaN" in lines[-1]
        (split / "runs" / f"{run}.jsonl").write_text("\n".join(lines) + "\n")
    return split.parent


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Where the command writes, in place of the project's own files."""
    result, document = tmp_path / "detectors.json", tmp_path / "detectors.md"
    document.write_text(
        f"# Ours\n\n{reliability.BEGIN}\n\nlast year\n\n<!-- end of the figures -->\n\n"
        f"{tables.BEGIN}\n\nlast year\n\n<!-- end of the figures -->\n\nThe rest.\n"
    )
    monkeypatch.setattr(reliability, "RESULT", tmp_path / "confidence.json")
    monkeypatch.setattr(reliability, "TABLE", tmp_path / "table.py")
    monkeypatch.setattr(tables, "RESULT", result)
    monkeypatch.setattr(tables, "DOCUMENT", document)
    monkeypatch.setattr(
        command.injected, "measure", lambda: {"kinds": {}, "clean_runs": 0, "false_alarms": {}}
    )
    no_kinds = {"runs": 2, "repositories": 2, "kinds": {}}
    monkeypatch.setattr(command.cross_validation, "measure", lambda splits, evaluator: no_kinds)
    monkeypatch.setattr(command, "_PARTS", {"second_reading": second_reading.measure})
    monkeypatch.setattr(peers, "packages", lambda: ([], ["x: not measured, it is not installed"]))
    monkeypatch.setattr(peers, "baselines", lambda corpus: ([], [], []))
    return result, document


def test_an_evaluation_writes_the_results_and_the_document(corpus, written, capsys):
    result, document = written

    assert command.main(["--corpus", str(corpus), "--list-errors"]) == 0
    split = json.loads(result.read_text())["splits"]["open"]
    assert (split["runs"], split["of"], split["left_out"]) == (2, 3, ["gone"])
    assert split["ours"]["kinds"]["nan"]["found"] == 2
    assert split["live"] == {"same": 2, "reported": 2, "on_time": 2}
    assert split["delays"]["nan"]["records"] == 1
    text = document.read_text()
    assert "2 of 3 labelled runs were available" in text
    assert text.count("last year") == 1, "no finding to calibrate: that part stays as it is"
    assert text.endswith("The rest.\n")
    assert "x: not measured, it is not installed" in text
    assert "FN nan b 1 2" in capsys.readouterr().out


def test_a_folder_of_labels_and_runs_is_a_corpus_too(corpus, written):
    assert command.main(["--corpus", str(corpus / "open"), "--only-print"]) == 0
    assert not written[0].exists()


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (lambda corpus: corpus.rename(corpus.parent / "elsewhere"), "no such folder"),
        (lambda corpus: (corpus / "open" / "labels.json").unlink(), "holds no labels.json"),
        (
            lambda corpus: (corpus / "open" / "runs").rename(corpus / "elsewhere"),
            "has labels.json and no folder runs",
        ),
        (
            lambda corpus: [path.unlink() for path in (corpus / "open" / "runs").iterdir()],
            "holds no labelled run",
        ),
    ],
)
def test_a_message_names_what_is_missing(corpus, written, break_it, sentence, capsys):
    break_it(corpus)

    assert command.main(["--corpus", str(corpus)]) == 2
    assert sentence in capsys.readouterr().err
    assert not written[0].exists()


def test_a_lower_count_of_hits_and_a_higher_count_of_alarms_are_worse():
    nan = {"labels": 7, "found": 7, "false": 0, "runs": 7, "runs_found": 7, "runs_false": 0}
    quiet = {"clean": {"runs": 41, "alarms": 0, "hit": 0}, "unsure": {"runs": 99, "alarms": 3, "hit": 3}}
    before = {"kinds": {"nan": nan}, **quiet}
    now = {
        "kinds": {"nan": {**nan, "found": 6}, "spike": {**dict.fromkeys(nan, 0), "false": 2}},
        "clean": {"runs": 41, "alarms": 1, "hit": 1},
        "unsure": {"runs": 99, "alarms": 2, "hit": 2},
    }

    assert worse(before, before) == []
    assert worse(now, before) == [
        "nan: found 6, was 7",
        "spike: false 2, was 0",
        "clean runs: alarms 1, was 0",
        "clean runs: hit 1, was 0",
    ]


def test_ratios_of_nothing_are_undefined():
    nothing = dict.fromkeys(("labels", "found", "false", "runs", "runs_found", "runs_false"), 0)

    assert precision(nothing) is None
    assert recall(nothing, "runs_") is None
    assert precision({**nothing, "found": 3, "false": 1}) == 0.75


def test_an_overfit_can_be_seen_from_the_fourth_evaluation_that_is_higher():
    losses = [3.0, 2.0, 2.1, 2.3, 2.4, 2.5, 2.6]
    rows = [{"global_step": 10 * place, "val_loss": loss} for place, loss in enumerate(losses)]

    assert seen_from({"kind": "overfit", "start_step": 10, "end_step": 60}, rows) == 50


def test_a_plateau_can_be_seen_when_it_is_half_of_the_run():
    rows = [{"global_step": step, "train_loss": 1.0} for step in range(100)]

    assert seen_from({"kind": "plateau", "start_step": 40, "end_step": 99}, rows) == 79
    assert seen_from({"kind": "plateau", "start_step": 0, "end_step": 99}, rows) == 19
    assert seen_from({"kind": "plateau", "start_step": 90, "end_step": 99}, rows) is None


def test_the_delay_of_a_spike_counts_from_its_first_record():
    rows = [
        {"event": "step", "global_step": step, "train_loss": 1.0 + 0.01 * (step % 3)} for step in range(200)
    ]
    for step in range(120, 130):
        rows[step]["train_loss"] = 1.5
    label = {"kind": "spike", "start_step": 120, "end_step": 129, "certainty": "sure"}
    unsure = {**label, "start_step": 20, "end_step": 30, "certainty": "unsure"}
    examined = follow(rows)

    found = delays([label, unsure], rows, examined)

    assert examined.agrees
    [delay] = found["instability"]
    assert 1 <= delay.records <= 4
    assert delay.share == pytest.approx(delay.records / 199)


def test_an_event_that_was_not_reported_has_no_delay():
    rows = [
        {"event": "step", "global_step": step, "train_loss": 1.0 + 0.01 * (step % 3)} for step in range(200)
    ]
    label = {"kind": "spike", "start_step": 120, "end_step": 129, "certainty": "sure"}

    assert delays([label], rows, follow(rows)) == {}


def test_no_repository_is_in_two_folds():
    repositories = {f"run-{number}": f"repository-{number // 3}" for number in range(60)}

    folds = folds_of(repositories, seed=1)

    assert sorted(run for fold in folds for run in fold) == sorted(repositories)
    homes = [{repositories[run] for run in fold} for fold in folds]
    assert sum(len(home) for home in homes) == 20


def test_a_threshold_is_scored_on_repositories_it_was_not_chosen_on():
    repositories = {f"run-{number}": f"repository-{number}" for number in range(20)}
    found, missed = {"spike": (1, 1, 0, 1, 1, 0)}, {"spike": (1, 0, 0, 1, 0, 0)}
    # The low value is right on the first run only, the high one on all others.
    low = {run: found if run == "run-0" else missed for run in repositories}
    high = {run: missed if run == "run-0" else found for run in repositories}

    result = validate("spike", {1.0: low, 2.0: high}, repositories)

    assert set(result["chosen"]) == {2.0}
    assert {total[:3] for total in result["totals"]} == {(20, 19, 0)}


def test_a_repository_that_a_figure_hangs_on_is_named():
    repositories = {"a": "x/one", "b": "x/two", "c": "x/two"}
    of = {"a": {"spike": (1, 0, 1, 1, 0, 0)}, "b": {"spike": (2, 2, 0, 1, 1, 0)}, "c": {}}

    assert repositories_that_move("spike", of, repositories) == [
        ("x/two", pytest.approx(-2 / 3), pytest.approx(-2 / 3)),
        ("x/one", pytest.approx(1 / 3), pytest.approx(1 / 3)),
    ]


def test_a_goal_is_met_missed_or_undecided_by_its_events():
    def of(*counts):
        return {"totals": [[*counts, *counts]], "repositories": 1}

    kinds = {"nan": of(12, 12, 0), "val_spike": of(9, 7, 1), "throughput_drop": of(1, 1, 0)}
    clean = {"ours": {"clean": {"alarms": 2, "runs": 50}}}

    text = "\n".join(
        goals.section({"cross_validation": {"kinds": kinds}, "splits": {"a": clean, "b": clean}})
    )

    assert "1.00 / 1.00 (12 of 12, 0) | 6 of 7, 0 | met |" in text
    assert "0.88 / 0.78 (7 of 9, 1) | 2 of 3, 0 | **not met**; 9 events from 1 repository |" in text
    assert "undecided; 1 event from 1 repository" in text
    assert "0.04 (4 on 100 runs) | 0.00 (0 on 30 runs) | **not met** |" in text


@pytest.mark.parametrize("kind", sorted(injected_learning.FAULTS))
def test_an_injected_fault_is_found_and_its_look_alike_is_not(kind):
    records, begins = next(injected_learning.FAULTS[kind](1))

    assert any(found.kind == kind and found.noticed_step >= begins for found in examine(records))
    assert [
        found for found in examine(next(injected_learning.LOOK_ALIKES[kind](1))) if found.kind == kind
    ] == []


def test_a_warning_counts_from_the_record_that_caused_it():
    rows = [
        {"event": "step", "global_step": step, "train_loss": 1.0 + 0.01 * (step % 3)} for step in range(200)
    ]
    for step in range(120, 130):
        rows[step]["train_loss"] = 1.5

    def needs_ten_more(rows):
        return [{"kind": "spike", "start_step": 120}] if len(rows) > 130 else []

    assert 121 <= first_of_ours(rows) <= 124
    assert first_of_ours(rows[:120]) is None
    assert first_said(needs_ten_more)(rows) == 120
    assert first_beginning(needs_ten_more)(rows) == 130
    assert first_beginning(needs_ten_more)(rows[:130]) is None


def test_a_peer_that_is_not_installed_is_reported_as_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    assert peers.packages() == (
        [],
        [
            f"{name}: not measured, it is not installed"
            for name in ("runmedic", "trainpulse", "training-doctor")
        ],
    )


@pytest.mark.parametrize("name", ["runmedic", "trainpulse", "training-doctor"])
def test_a_peer_that_is_installed_finds_a_nan(name):
    tools = {tool.name: tool for tool in peers.packages()[0]}
    if name not in tools:
        pytest.skip(f"{name} is not installed; make bench installs it")
    rows = [
        {
            "event": "step",
            "global_step": step,
            "train_loss": float("nan") if step > 80 else 2.0 + 0.1 * (step % 5),
        }
        for step in range(1, 101)
    ]

    assert {"kind": "nan", "start_step": 81} in [
        {key: event[key] for key in ("kind", "start_step")} for event in tools[name].predict(rows)
    ]
