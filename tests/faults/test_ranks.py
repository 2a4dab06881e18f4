"""Several processes of one training: rank 0 writes the run, the others nothing, or a file each where asked."""

from __future__ import annotations

import pytest

from tests.faults.children import PROGRAMS, repair
from tests.faults.crash_checks import assert_nothing_is_missing, whole_run
from tests.fork_server import A_TRAINING
from tests.lengths import is_long
from tests.records import read_records, with_event

pytest.importorskip("torch.distributed", reason="torch is not installed")

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]

LAUNCH = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}


@pytest.mark.slow
def test_of_two_ranks_only_the_first_writes_and_every_rank_that_is_asked_to_has_a_file_of_its_own(
    tmp_path, start
):
    if is_long():
        ranks = [start(PROGRAMS / "train_on_two_ranks.py", tmp_path / "logs", launcher=TORCHRUN)]
    else:
        # As torchrun starts them, but for three imports of torch.
        ranks = [
            start(
                PROGRAMS / "train_on_two_ranks.py",
                tmp_path / "logs",
                env={**LAUNCH, "RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
                imported=A_TRAINING,
            )
            for rank in range(2)
        ]
    ended = [rank.end(200) for rank in ranks]

    assert not any(rank.code for rank in ended), [rank.err for rank in ended]
    said = "".join(rank.out for rank in ended)
    assert said.count("reached 39.0") == 4, "both ranks trained to the end, twice"
    assert said.count("[telemetry] Logging to") == 2
    for log_dir in ("zero", "all"):
        assert [path.name for path in (tmp_path / "logs" / log_dir).iterdir() if path.is_dir()] == ["run"]
    alone = tmp_path / "logs" / "zero" / "run"
    assert not (alone / "ranks").exists()
    assert {record["mine"] for record in with_event(whole_run(alone, steps=range(20)), "step")} == {0}
    run = tmp_path / "logs" / "all" / "run"
    assert [path.name for path in (run / "ranks").iterdir()] == ["00001.jsonl"]
    first = whole_run(run, steps=range(20))
    other = read_records(run / "ranks" / "00001.jsonl")
    assert_nothing_is_missing(other)
    assert all("rank" not in record for record in first)
    assert all(record["rank"] == 1 for record in other)
    assert [(step["global_step"], step["mine"]) for step in with_event(other, "step")] == [
        (n, 1) for n in range(20)
    ]


LOGS_50_STEPS = """
with TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, ranks="all", resume=True, system=False) as log:
    for step in range(50):
        log.log_step(step, train_loss=1.0)
        time.sleep(0.01)
    # No rank is over before the last one has found the run, as in a job whose ranks wait for each other.
    print("has logged", flush=True)
    sys.stdin.readline()
"""


def test_the_files_of_all_ranks_go_on_when_a_run_is_resumed(tmp_path, start):
    for _ in range(2):
        ranks = [start(LOGS_50_STEPS, tmp_path, env={**LAUNCH, "RANK": str(rank)}) for rank in range(2)]
        for rank in ranks:
            rank.wait_for_line("has logged")
        for rank in ranks:
            rank.tell("end")
        assert [rank.end().code for rank in ranks] == [0, 0]

    other = read_records(tmp_path / "run" / "ranks" / "00001.jsonl")
    assert_nothing_is_missing(other)
    for records in (whole_run(tmp_path / "run"), other):
        steps = [(record["session"], record["global_step"]) for record in with_event(records, "step")]
        assert steps == [(session, step) for session in (1, 2) for step in range(50)]


LOGS_FOR_EVER = """
log_for_ever(TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, ranks="all", system=False))
"""


def test_ranks_that_are_killed_lose_nothing(tmp_path, start):
    ranks = [start(LOGS_FOR_EVER, tmp_path, env={**LAUNCH, "RANK": str(rank)}) for rank in range(2)]
    for rank in ranks:
        rank.wait_for_step(500)
    for rank in reversed(ranks):
        rank.kill()

    repair(tmp_path / "run")

    whole_run(tmp_path / "run", steps=range(ranks[0].acknowledged + 1))
    other = read_records(tmp_path / "run" / "ranks" / "00001.jsonl")
    assert_nothing_is_missing(other)
    steps = [record["global_step"] for record in with_event(other, "step")]
    assert steps[: ranks[1].acknowledged + 1] == list(range(ranks[1].acknowledged + 1))


def test_a_launcher_that_uses_its_names_again_does_not_lead_a_rank_into_a_killed_run(tmp_path, start):
    killed = start(LOGS_FOR_EVER, tmp_path, env={**LAUNCH, "RANK": "0"})
    killed.wait_for_step(10)
    killed.kill()
    other = start(LOGS_FOR_EVER, tmp_path, env={**LAUNCH, "RANK": "1"})
    first = start(LOGS_FOR_EVER, tmp_path, env={**LAUNCH, "RANK": "0"})
    # The other one looks for a rank 0 that lives.
    for rank in (first, other):
        rank.wait_for_step(10)
    for rank in (first, other):
        rank.kill()

    assert not (tmp_path / "run" / "ranks").exists()
    assert (tmp_path / "run-2" / "ranks" / "00001.jsonl").exists()
