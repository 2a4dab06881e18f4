"""What is read of a run: every session, exact, and as far as its files go."""

import json
import tracemalloc

from tests.made_runs import append
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.answers.evidence import read_evidence
from toolkit.telemetry.diagnostics.metric_aliases import LOSS


def _logged(folder, steps, **more):
    with TelemetryLogger("r", log_dir=folder, log_every=1, **more) as log:
        log.log_start(config={"lr": 0.1, "batch_size": 4})
        for step in steps:
            log.log_step(step, train_loss=1 / (step + 3), lr=0.1)
        log.log_eval(steps[-1], val_loss=0.25)


def test_both_sessions_keep_their_own_steps_to_the_last_digit(tmp_path):
    _logged(tmp_path, range(1, 9))
    _logged(tmp_path, range(5, 13), resume=True)

    found = read_evidence(tmp_path / "r")

    assert found.is_ours
    assert [list(session.steps) for session in found.sessions] == [list(range(1, 9)), list(range(5, 13))]
    assert found.sessions[1].values_of(LOSS)[7] == 1 / 10
    assert found.sessions[0].evals[0]["val_loss"] == 0.25
    assert found.settings["learning_rate"] == 0.1
    assert "host" in found.sessions[0].start
    assert found.problem is None


def test_another_tools_log_that_goes_back_has_two_sessions_with_times_and_without(tmp_path):
    rows = [(step, 1.0 / step, 100.0 + at) for at, step in enumerate([1, 2, 3, 4, 3, 4, 5])]
    lines = [json.dumps({"step": step, "loss": loss, "time": time}) for step, loss, time in rows]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    table = ["step,loss", *(f"{step},{loss}" for step, loss, _ in rows)]
    (tmp_path / "log.csv").write_text("\n".join(table) + "\n")

    for name in ("log.jsonl", "log.csv"):
        found = read_evidence(tmp_path / name)
        assert [list(session.steps) for session in found.sessions] == [[1, 2, 3, 4], [3, 4, 5]], name
        assert found.sessions[1].values_of(LOSS) == {3: 1 / 3, 4: 0.25, 5: 0.2}


def test_an_evaluation_in_a_row_of_its_own_begins_no_session(tmp_path):
    history = []
    for step in (10, 20, 30, 40):
        history += [{"step": step, "epoch": step / 10, "loss": 1.0 / step, "learning_rate": 0.1}]
        history += [{"step": step, "epoch": step / 10, "eval_loss": 2.0 / step}] if step % 20 == 0 else []
    state = {"log_history": history, "global_step": 40, "epoch": 4.0, "max_steps": 40, "best_metric": None}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))

    found = read_evidence(tmp_path)

    assert len(found.sessions) == 1
    assert found.sessions[0].values_of(LOSS) == {10: 0.1, 20: 0.05, 30: 1 / 30, 40: 0.025}


def test_what_a_start_could_not_wait_for_is_part_of_it(tmp_path):
    records = [
        {"event": "start", "session": 1, "batch_size": 4, "config": {"lr": 0.1}},
        {"event": "start", "session": 1, "batch_size": 9, "model_total_params": 12},
        {"event": "environment", "session": 1, "packages": {"torch": "2.0"}, "seeds": {"torch": 3}},
        {"event": "step", "session": 1, "global_step": 1, "train_loss": 1.0},
    ]
    append(tmp_path, records)

    (session,) = read_evidence(tmp_path).sessions

    assert session.start["packages"] == {"torch": "2.0"}
    assert session.start["seeds"] == {"torch": 3}
    assert session.settings == {"batch_size": 4, "learning_rate": 0.1, "model_total_params": 12}


def test_results_are_kept_with_the_steps_of_their_records(tmp_path):
    folder = tmp_path / "run"
    records = [
        {"event": "step", "global_step": 1, "loss": 1, "gpu_memory": 4.5},
        {"event": "step", "global_step": 2, "val_loss": 2.5, "loss": True},
        {"event": "step", "global_step": 3, "loss": None, "non_finite": {"loss": "Infinity"}},
    ]
    with (append(folder, records) / "metrics.jsonl").open("a") as file:
        file.write('{"ev')
    (folder / "run.json").write_text("{}")

    (session,) = read_evidence(folder).sessions

    assert list(session.columns) == ["loss", "val_loss"]
    assert (session.column("loss"), session.column("val_loss")) == ({1: 1.0, 3: float("inf")}, {2: 2.5})
    assert list(session.steps) == [1, 2, 3]


def test_what_is_no_run_is_said_in_a_sentence(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")

    assert "no run is there" in read_evidence(tmp_path).problem
    assert "cannot be read" in read_evidence(tmp_path / "missing").problem


def test_a_record_costs_two_numbers_for_each_result_however_many_there_are(tmp_path):
    steps = 20_000
    lines = (
        f'{{"event":"step","session":1,"time":{step}.5,"global_step":{step},"train_loss":{1 / step},"lr":0.1}}\n'
        for step in range(1, steps + 1)
    )
    (tmp_path / "metrics.jsonl").write_text("".join(lines))

    tracemalloc.start()
    found = read_evidence(tmp_path)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(found.sessions[0].values_of(LOSS)) == steps
    # Steps, and a step and a value of both metrics, with room to grow: a million records of two runs stay below 300 MB.
    assert kept < 64 * steps
