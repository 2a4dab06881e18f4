from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.diagnose_eval import reliability, tables
from benchmarks.diagnose_eval.corpus import DEFAULT, CorpusError, Evaluator, splits_of
from benchmarks.diagnose_eval.reliability import Sample, fit, interval, said_of
from benchmarks.figures import put_between_marks
from tests.lengths import in_make_faults
from toolkit.telemetry.diagnostics import thresholds
from toolkit.telemetry.diagnostics.confidence import CLEAR, DOUBTED, TAKEN_BACK, USUAL
from toolkit.telemetry.diagnostics.confidence_table import STRENGTHS

CORPUS = Path(os.environ.get("TELEMETRY_CORPUS") or DEFAULT)


@pytest.fixture(scope="module")
def kept():
    return json.loads(reliability.RESULT.read_text(encoding="utf-8"))


def test_the_document_shows_the_kept_results(kept):
    document = tables.DOCUMENT.read_text(encoding="utf-8")

    assert put_between_marks(document, reliability.document(kept), reliability.BEGIN) == document


def test_the_toolkit_has_the_fitted_numbers(kept):
    assert reliability.TABLE.read_text(encoding="utf-8") == reliability.source(kept)


@in_make_faults
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_findings_on_labelled_runs_are_right_as_often_as_they_say():
    try:
        splits, evaluator = splits_of(CORPUS), Evaluator(CORPUS)
    except CorpusError as error:
        pytest.skip(f"no labelled curves here ({error}); TELEMETRY_CORPUS says where they are")
    now = reliability.measure(splits, evaluator)

    assert now is not None
    for (said, *_), row in zip(STRENGTHS, now["strengths"], strict=True):
        low, high = interval(row["right"], row["of"])
        assert low <= said <= high, f"said {said}, and {row['right']} of {row['of']} are right"
    for when in reliability.TIMES:
        for row in now["reliability"][when]["held_out"]:
            low, high = interval(row["right"], row["of"])
            assert low <= row["said"] <= high, f"{when}: {row}"


# ---------------------------------------------------------------- the fit, on made findings


def sample(repository, is_right, *strengths, kind="spike"):
    last = strengths[-1]
    first = next((strength for strength in strengths if strength >= USUAL), None)
    return Sample(
        repository=repository,
        kind=kind,
        is_right=is_right,
        strengths=frozenset(strengths),
        first=first,
        last=last,
    )


def made(rights):
    """Return ten repositories with one finding of each strength, of which the first so many are right."""
    return [
        sample(f"{strength}/{number}", number < right, strength)
        for strength, right in zip((TAKEN_BACK, DOUBTED, USUAL, CLEAR), rights, strict=True)
        for number in range(10)
    ]


@pytest.mark.parametrize(
    "rights", [(0, 5, 9, 10), (10, 9, 5, 0), (5, 5, 5, 5), (0, 0, 0, 0), (10,) * 4, (0, 9, 3, 10)]
)
def test_the_confidence_rises_with_the_evidence_and_is_a_share(rights):
    rates = fit(made(rights))

    assert list(rates) == sorted(rates)
    assert all(0.0 <= rate < 1.0 for rate in rates)
    assert rates == fit(made(rights)[::-1])


def test_few_examples_are_drawn_to_the_overall_share():
    many = [sample(f"r{number}", number < 18, USUAL) for number in range(20)]

    rates = fit([*many, sample("one", False, TAKEN_BACK)])

    assert rates[USUAL] == 0.9
    assert rates[TAKEN_BACK] == 0.6
    assert rates[DOUBTED] == rates[CLEAR] == 0.9


def test_a_repository_counts_once_however_many_findings_it_has():
    few = [sample(f"r{number}", number < 5, USUAL) for number in range(10)]
    many = [*few, *(sample("r0", True, USUAL) for _ in range(100))]

    assert fit(few) == fit(many)


def test_findings_on_unsure_labels_count_nowhere():
    judged = made((0, 5, 9, 10))
    unsure = [sample("other", None, CLEAR) for _ in range(50)]

    assert fit([*judged, *unsure]) == fit(judged)
    assert len(said_of([*judged, *unsure], "last", reliability._by_strength, held_out=True)) == 40


def test_a_held_out_repository_does_not_decide_about_itself():
    others = [sample(f"r{number}", True, USUAL) for number in range(10)]
    wrong = sample("wrong", False, USUAL)

    (before,) = {
        said
        for said, is_right in said_of([*others, wrong], "first", reliability._by_strength, held_out=True)
        if not is_right
    }

    assert before == fit(others)[USUAL] > fit([*others, wrong])[USUAL]


def test_a_finding_that_was_never_a_warning_has_no_first_confidence():
    samples = [*made((0, 5, 9, 10)), sample("quiet", False, DOUBTED)]

    first, last = (
        len(said_of(samples, when, reliability._by_strength, held_out=False)) for when in ("first", "last")
    )

    assert (first, last) == (20, 41)


def test_the_interval_of_a_share_contains_it():
    for right, of in ((0, 1), (1, 1), (0, 40), (20, 40), (40, 40), (61, 68)):
        low, high = interval(right, of)
        assert 0.0 <= low <= right / of <= high <= 1.0
    assert interval(61, 68) == pytest.approx((0.802, 0.949), abs=0.002)


# ---------------------------------------------------------------- the whole way, on a made corpus

EVALUATOR = """
def load_steps(path):
    return []

def evaluate(corpus, predictions, min_severity, list_errors):
    (run,) = predictions
    (found,) = predictions[run]
    row = dict(hit=int(run != "wrong"), fp=int(run == "wrong"))
    return dict(kinds={"instability" if found["kind"] == "spike" else found["kind"]: row})
"""


@pytest.fixture
def corpus(tmp_path):
    split = tmp_path / "corpus" / "open"
    (split / "runs").mkdir(parents=True)
    (split.parent / "evaluate.py").write_text(EVALUATOR)
    runs = ("a", "b", "wrong")
    (split / "labels.json").write_text(json.dumps({run: {"labels": []} for run in runs}))
    (split / "manifest.csv").write_text("run_id,source_repo\n" + "".join(f"{run},x/{run}\n" for run in runs))
    for run in runs:
        rows = [
            {"event": "step", "global_step": step, "train_loss": 1.5 - 0.004 * step + 0.01 * (step % 3)}
            for step in range(200)
        ]
        for step in range(120, 130):
            rows[step]["train_loss"] = 1.8 if run == "wrong" else 8.0
        (split / "runs" / f"{run}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return split.parent


def test_the_command_fits_and_writes_what_it_prints(corpus, tmp_path, monkeypatch, capsys):
    document = tmp_path / "detectors.md"
    document.write_text(
        f"# Ours\n\n{reliability.BEGIN}\n\nlast year\n\n<!-- end of the figures -->\n\nThe rest.\n"
    )
    table = tmp_path / "table.py"
    table.write_text("")
    monkeypatch.setattr(reliability, "ROOT", tmp_path)
    monkeypatch.setattr(reliability, "TABLE", table)
    monkeypatch.setattr(reliability, "RESULT", tmp_path / "confidence.json")
    monkeypatch.setattr(tables, "DOCUMENT", document)
    limit = thresholds.CONFIDENCE_TO_WARN

    assert reliability.main(["--corpus", str(corpus), "--only-print"]) == 0
    assert "last year" in document.read_text()
    assert reliability.main(["--corpus", str(corpus)]) == 0

    result = json.loads((tmp_path / "confidence.json").read_text())
    assert result["kinds"]["spike"] == {"right": 2, "of": 3, "unsure": 0, "repositories": 3}
    assert [row["of"] for row in result["strengths"]] == [0, 0, 1, 2]
    assert "table.py has changed" in capsys.readouterr().out
    assert '"spike": (2, 3),' in table.read_text()
    assert "last year" not in document.read_text()
    assert document.read_text().endswith("The rest.\n")
    assert limit == thresholds.CONFIDENCE_TO_WARN


def test_without_a_corpus_it_says_so(tmp_path, capsys):
    assert reliability.main(["--corpus", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err
