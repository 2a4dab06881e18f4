"""A process knows which one of its run it is: from torch.distributed, else from whoever launched it."""

import sys
import types

import pytest

from toolkit.telemetry.core.ranks import Rank, find_rank, given_run_id, is_chosen, launch_id, node_name
from toolkit.telemetry.runfolder.process import host_name


@pytest.fixture(autouse=True)
def _without_a_launcher(monkeypatch):
    for name in (
        "RANK",
        "WORLD_SIZE",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MASTER_ADDR", "MASTER_PORT", "OMPI_MCA_ess_base_jobid"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)


def distributed(rank, size, *, available=True, initialized=True):
    return types.SimpleNamespace(
        is_available=lambda: available,
        is_initialized=lambda: initialized,
        get_rank=lambda: rank,
        get_world_size=lambda: size,
    )


def test_a_process_alone_is_rank_zero_of_one():
    assert find_rank() == Rank(0, 1)
    assert launch_id() is None


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, Rank(3, 8)),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, Rank(2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Rank(1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "5", "SLURM_NTASKS": "9"}, Rank(1, 2)),
        ({"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "7"}, Rank(0, 1)),
        ({"RANK": "3"}, Rank(3, 4)),
        ({"RANK": "3", "WORLD_SIZE": "2"}, Rank(3, 4)),
        ({"RANK": "0", "WORLD_SIZE": "0"}, Rank(0, 1)),
        ({"WORLD_SIZE": "8"}, Rank(0, 1)),
    ],
)
def test_the_launcher_says_which_process_this_is(monkeypatch, environ, rank):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    assert find_rank() == rank


@pytest.mark.parametrize("nonsense", ["", " ", "-1", "x", "1.0", "٣", "0x1", "9" * 5000])
def test_a_rank_that_is_no_number_is_ignored(monkeypatch, nonsense):
    monkeypatch.setenv("RANK", nonsense)
    monkeypatch.setenv("SLURM_PROCID", "2")

    assert find_rank().rank == 2


def test_torchs_own_word_wins_over_the_launchers(monkeypatch):
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed(1, 4))

    assert find_rank() == Rank(1, 4)


@pytest.mark.parametrize("missing", [{"available": False}, {"initialized": False}])
def test_a_process_group_that_is_not_there_says_nothing(monkeypatch, missing):
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed(1, 4, **missing))

    assert find_rank() == Rank(7, 8)


def test_the_processes_of_one_launch_have_a_name_in_common(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    first = launch_id()
    monkeypatch.setenv("RANK", "3")

    assert first == launch_id() == "MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"

    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")

    assert launch_id() != first


@pytest.mark.parametrize(
    ("ranks", "chosen"),
    [
        ("zero", [0]),
        ("all", [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        ("every:1", [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        ("every:4", [0, 4, 8]),
        ("every:100", [0]),
        ("first_per_node", [0, 4, 8]),
    ],
)
def test_the_ranks_that_write_are_chosen(monkeypatch, ranks, chosen):
    found = []
    for rank in range(9):
        monkeypatch.setenv("LOCAL_RANK", str(rank % 4))
        if is_chosen(ranks, Rank(rank, 9)):
            found.append(rank)

    assert found == chosen


def test_without_a_local_rank_only_rank_0_is_known_to_be_the_first_of_its_node():
    assert [rank for rank in range(4) if is_chosen("first_per_node", Rank(rank, 4))] == [0]


def test_the_launcher_may_name_the_node_and_the_run(monkeypatch):
    for name in ("TELEMETRY_NODE", "TELEMETRY_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert (node_name(), given_run_id("run")) == (host_name(), None)

    monkeypatch.setenv("TELEMETRY_NODE", "node17")
    monkeypatch.setenv("TELEMETRY_RUN_ID", "job-4711")
    assert (node_name(), given_run_id("run")) == ("node17", "job-4711")

    monkeypatch.setenv("TELEMETRY_NODE", " ")
    monkeypatch.setenv("TELEMETRY_RUN_ID", "")
    assert (node_name(), given_run_id("run")) == (host_name(), None)


def test_a_second_run_of_a_job_gets_an_id_of_its_own_that_is_the_same_on_every_rank(monkeypatch):
    monkeypatch.setenv("TELEMETRY_RUN_ID", "job-4712")

    first, second, again = (given_run_id(name) for name in ("train", "eval", "train"))

    assert first == again == "job-4712"
    assert second == "job-4712-4522bb5a"
