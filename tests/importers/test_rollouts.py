"""Rollouts of verl and NeMo-RL as completions.

The files in tests/importers/rollouts were written by verl's `_dump_generations` (January 2026) and NeMo-RL's
`log_batched_dict_as_jsonl` (August 2026).
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from tests.importers.reading import only_run
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.importers import files
from toolkit.telemetry.importers.detect import find_sources
from toolkit.telemetry.importers.source import read_all

SAMPLES = Path(__file__).with_name("rollouts")


def completions(capsys, path, *more):
    assert main(["show", "--completions", str(path), "--rows", "100", "--json", *more]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_rollouts_of_verl_are_completions_with_their_scores(capsys):
    found = completions(capsys, SAMPLES / "verl" / "rollout")

    written = [
        json.loads(line)
        for step in (1, 2)
        for line in (SAMPLES / "verl" / "rollout" / f"{step}.jsonl").read_text("utf-8").splitlines()
    ]
    assert [
        (one["global_step"], one["prompt"], one["completion"], one["reward"], one["ground_truth"], one["acc"])
        for one in found
    ] == [(row["step"], row["input"], row["output"], row["score"], row["gts"], row["acc"]) for row in written]
    assert [one["global_step"] for one in completions(capsys, SAMPLES / "verl" / "rollout" / "2.jsonl")] == [
        2,
        2,
    ]


def test_rollouts_of_nemo_rl_are_completions_of_their_last_message(capsys):
    found = completions(capsys, SAMPLES / "nemo_rl")

    assert [(one["global_step"], one["split"], one["prompt"], one["reward"]) for one in found] == [
        (1, "train", "What is 2 + 2?", 1.0),
        (1, "train", "What is 3 × 3?", 0.0),  # noqa: RUF001 - a multiplication
        (2, "train", "What is 2 + 2?", 1.0),
        (2, "train", "What is 3 × 3?", 0.0),  # noqa: RUF001
        (2, "eval", "What is 1 + 1?", 1.0),
    ]
    assert found[2]["completion"].endswith("(step 2)")
    assert "token_ids" not in found[0]
    assert [one["completion"] for one in completions(capsys, SAMPLES / "nemo_rl", "--search", "1 + 1")] == [
        "2"
    ]


def test_pages_find_them_and_those_of_a_later_step(tmp_path):
    pytest.importorskip("numpy")
    from toolkit.telemetry.runs.columns.completion_reader import CompletionReader
    from toolkit.telemetry.runs.completions import CompletionQuery
    from toolkit.telemetry.runs.sources.foreign_log import ForeignLog

    shutil.copytree(SAMPLES / "verl" / "rollout", tmp_path / "rollout")
    (tmp_path / "rollout" / "2.jsonl").unlink()
    log = ForeignLog(only_run(tmp_path / "rollout"))
    reader = CompletionReader(log)
    query = CompletionQuery(sort="Highest reward")
    before = reader.find(query, wait_s=60.0)
    shutil.copy(SAMPLES / "verl" / "rollout" / "2.jsonl", tmp_path / "rollout")
    (tmp_path / "rollout" / "3.jsonl").write_text(
        '{"input": "a"}\nnot JSON\n{"input": "a", "output": "b", "score": 3}\n'
    )
    after = reader.find(query, wait_s=60.0)

    assert [row.step for row in before.rows] == [1, 1]
    assert [(row.step, row.reward) for row in after.rows[:2]] == [(3, 3.0), (2, 1.0)]
    assert after.matching == 5
    assert log.passed_over["lines that are no rollout"] == 2
    assert log.recent("reward", 10).tolist() == [0.25, 0.25, 3.0]


def test_files_beyond_the_limit_are_noted(monkeypatch):
    monkeypatch.setattr(files, "_MOST_FILES", 1)
    run = only_run(SAMPLES / "verl" / "rollout")

    assert {event.step for batch in read_all(run) for event in batch.events} == {1}
    assert run.info.notes == ["only the first 1 of its files are read"]


def test_a_reward_that_is_no_number_is_said_in_strict_json(tmp_path, capsys):
    (tmp_path / "1.jsonl").write_text('{"input": "a", "output": "b", "score": NaN, "seq": 3}\n')
    (found,) = completions(capsys, tmp_path)

    assert (found["reward"], found["non_finite"], found["x_seq"]) == (None, {"reward": "NaN"}, 3)
    (column,) = [column for batch in read_all(only_run(tmp_path)) for column in batch.columns]
    assert (column.metric, [math.isnan(value) for value in column.values]) == ("reward", [True])


def test_another_file_with_a_number_for_a_name_is_no_rollout(tmp_path):
    (tmp_path / "7.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n')
    run = only_run(tmp_path)
    # Training data, also with a line of which a look sees only the beginning; an empty file before a rollout.
    long = json.dumps({"input": "a" * 300_000, "output": "b"})
    data = (long, '{"instruction": "a", "input": "b", "output": "c"}', '{"idx": 1, "content": ["a", "b"]}')
    for number, line in enumerate(data):
        (tmp_path / f"data {number}").mkdir()
        (tmp_path / f"data {number}" / "1.jsonl").write_text(f"{line}\n")
        for path in (tmp_path / f"data {number}", tmp_path / f"data {number}" / "1.jsonl"):
            assert "rollouts" not in {run.info.format for run in find_sources(path).runs}
    (tmp_path / "data 0" / "1.jsonl").write_text("")
    (tmp_path / "data 0" / "2.jsonl").write_text(f'{long[:-1]}, "score": 1.0}}\n')
    assert only_run(tmp_path / "data 0").info.format == "rollouts"

    assert run.info.format == "table"
    assert [column.metric for batch in read_all(run) for column in batch.columns] == ["loss"]
