"""`telemetry why` of real trainings that were killed and resumed, broken in ways that its judge has no name for."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evaluations.resume import LOSSES, UNLISTED, contradictions, unlisted, without
from tests.lengths import in_make_faults, longer
from toolkit.telemetry.answers.evidence import read_evidence
from toolkit.telemetry.answers.resume import answer_resumes
from toolkit.telemetry.cli.main import main

ASKED = {(1, "labels"), (1, "data content")}
# tests/answers/test_resume.py judges what these record, in `make test`.
ASKED |= longer(set(), {(1, "ema"), (0, "second optimizer"), (0, "precision")})
CASES = {case.kind: case for case in unlisted(range(2)) if (case.seed, case.kind) in ASKED}
MAKES = """
import sys
from pathlib import Path
from evaluations.resume import make_all, unlisted
make_all([case for case in unlisted(range(2)) if case.name in sys.argv[2:]], Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return where the trainings are; a process of its own makes them, since it forks."""
    root = tmp_path_factory.mktemp("resumed")
    names = [case.name for case in CASES.values()]
    repository = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", MAKES, str(root), *names], cwd=repository, check=True, timeout=600)
    return root


@pytest.fixture
def ask(trained, capsys):
    """Return what asks the command about a training: its exit code, its words, and its answer for machines."""

    def asked(kind, folder=None):
        folder = folder or trained / CASES[kind].folder
        code = main(["why", str(folder)])
        words = " ".join(capsys.readouterr().out.split())
        assert main(["why", str(folder), "--json"]) == code
        return code, words, json.loads(capsys.readouterr().out)["resumes"][0]

    return asked


def test_other_losses_where_all_that_is_recorded_is_equal_are_an_answer_with_what_to_record(ask):
    code, words, answer = ask("labels")

    assert (code, answer["answer"], answer["area"]) == (1, "different", "not recorded")
    assert "batches, optimizer's state, settings, code give another loss. Not recorded: labels" in words
    assert any("labels=" in needed for needed in answer["needed"])


@in_make_faults
def test_a_part_of_the_state_that_no_loss_shows_is_named(ask):
    code, words, answer = ask("ema")

    assert {row["differs"] for row in answer["evidence"] if row["what"].startswith("loss")} == {False}
    assert (code, answer["area"]) == (1, "weights and state")
    assert "a part of the state is not that of the checkpoint (ema_norm: " in words


@in_make_faults
def test_each_optimizer_is_named(ask):
    _, words, answer = ask("second optimizer")

    assert answer["cause"] == "optimizer_lost"
    assert "the optimizer's state was lost (optimizer's states of embedding: 1 before, 0 after)" in words
    assert not [row for row in answer["evidence"] if row["differs"] and row["what"].endswith("of main")]


@in_make_faults
def test_losses_in_another_precision_overrule_the_state_that_was_loaded(ask):
    code, _, answer = ask("precision")

    assert {row["differs"] for row in answer["evidence"] if row["what"].startswith("loss")} == {True}
    assert (code, answer["area"]) == (1, "not recorded")


def test_other_data_under_the_same_path_are_seen_by_their_hash(ask):
    _, words, answer = ask("data content")

    assert (answer["cause"], answer["area"]) == ("data_changed", "data")
    assert "the data under the same path changed (content of text.bin: " in words


@pytest.mark.parametrize("kind", ["labels", "data content"])
def test_from_losses_alone_causes_are_candidates_without_a_number(trained, ask, tmp_path, kind):
    full, less = trained / CASES[kind].folder, tmp_path / "run"
    less.mkdir()
    shutil.copy(full / "run.json", less)
    records = [json.loads(line) for line in (full / "metrics.jsonl").read_text().splitlines()]
    kept = [without(record, LOSSES) for record in records]
    (less / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in kept if one))

    _, words, answer = ask(kind, less)

    assert answer["answer"] == "different"
    assert "It may be: " in words
    assert "To know it, record batches" in words
    assert "of the cause not sure." in words


def test_no_answer_contradicts_its_evidence(trained):
    for kind, case in CASES.items():
        for answer in answer_resumes(read_evidence(trained / case.folder)):
            assert not contradictions(answer), (kind, answer.sentence)
    assert set(CASES) <= set(UNLISTED)
