"""A job on two nodes with disks of their own: each node writes its folder, and together they are one run."""

from __future__ import annotations

import contextlib
import json
import signal
import socket

import pytest

from tests.faults.children import repair
from tests.faults.crash_checks import assert_nothing_is_missing, whole_run
from tests.fork_server import A_TRAINING
from tests.lengths import in_make_faults
from tests.records import read_records, with_event
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.node_folders import record_files

pytest.importorskip("torch.distributed", reason="torch is not installed")

TRAINS_ON_TWO_NODES = """
import torch
import torch.distributed as distributed

world, met, steps = int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
distributed.init_process_group("gloo", init_method=f"file://{met}", rank=int(os.environ["RANK"]), world_size=world)
rank = distributed.get_rank()
acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, ranks="all", resume=True)
step = 0
while step != steps:
    log.log_step(step, train_loss=torch.tensor(1.0 + rank), mine=rank)
    acknowledged.set(step)
    step += 1
    time.sleep(0.0005)
print(f"folder={log.run_folder} id={log.run_id}", flush=True)
sys.stdin.readline()
log.close()
distributed.destroy_process_group()
"""


@pytest.fixture
def start_nodes(tmp_path, start):
    """Start the ranks of a job of two nodes with two ranks each, whose log directories are two folders."""
    launches = []

    def start_all(source=TRAINS_ON_TWO_NODES, *, steps):
        launches.append(met := tmp_path / f"met-{len(launches)}")
        return [
            start(
                source,
                tmp_path / f"node{rank // 2}",
                4,
                met,
                steps,
                env={
                    "RANK": str(rank),
                    "WORLD_SIZE": "4",
                    "LOCAL_RANK": str(rank % 2),
                    "TELEMETRY_NODE": f"node{rank // 2}",
                    "GLOO_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": "1",
                },
                imported=A_TRAINING,
            )
            for rank in range(4)
        ]

    return start_all


@pytest.mark.slow
def test_ranks_on_another_node_write_a_part_of_the_same_run_and_lose_nothing_when_killed(
    tmp_path, start_nodes
):
    # The folder that rank 0 gets on its node has another run on the other one.
    with TelemetryLogger("run", log_dir=tmp_path / "node1", system=False) as other:
        other.log_step(0, train_loss=1.0)
    before = (tmp_path / "node1" / "run" / "metrics.jsonl").read_bytes()
    killed = start_nodes(steps=-1)
    for rank in killed:
        rank.wait_for_step(50)
    for rank in reversed(killed):
        rank.kill()

    resumed = start_nodes(steps=20)
    for rank in resumed:
        rank.wait_for_line("folder=")
    for rank in resumed:
        rank.tell("end")
    ended = [rank.end() for rank in resumed]

    assert [rank.code for rank in ended] == [0] * 4, [rank.err for rank in ended]
    whole, part = tmp_path / "node0" / "run", tmp_path / "node1" / "run@node1"
    assert [path.name for path in (tmp_path / "node0").iterdir()] == ["run"]
    assert sorted(path.name for path in (tmp_path / "node1").iterdir()) == ["run", "run@node1"]
    assert (tmp_path / "node1" / "run" / "metrics.jsonl").read_bytes() == before
    about, about_part = (json.loads((folder / "run.json").read_text()) for folder in (whole, part))
    assert about["run_id"] == about_part["run_id"]
    assert "part_of" not in about
    assert (about_part["part_of"], about_part["node"]) == ("node0", "node1")
    for manifest in (about, about_part):
        assert [(each["session"], each["status"]) for each in manifest["sessions"]] == [
            (1, "lost"),
            (2, "finished"),
        ]
    assert [path.name for path in (whole / "ranks").glob("*.jsonl")] == ["00001.jsonl"]
    assert sorted(path.name for path in (part / "ranks").glob("*.jsonl")) == ["00002.jsonl", "00003.jsonl"]
    assert sorted(path.name for path in part.iterdir()) == ["ranks", "run.json"]
    whole_run(whole)
    files = [whole / "metrics.jsonl", whole / "ranks" / "00001.jsonl"]
    files += [part / "ranks" / f"{rank:05d}.jsonl" for rank in (2, 3)]
    for rank, path in enumerate(files):
        records = read_records(path)
        assert_nothing_is_missing(records)
        steps = [(each["session"], each["global_step"]) for each in with_event(records, "step")]
        before = [step for session, step in steps if session == 1]
        assert before == list(range(len(before))), f"rank {rank}"
        assert len(before) > killed[rank].acknowledged
        assert [step for session, step in steps if session == 2] == list(range(20))
        assert {each["mine"] for each in with_event(records, "step")} == {rank}
        assert {"train_loss", "sec_per_step"} <= with_event(records, "step")[-1].keys()
        assert {each.get("rank", 0) for each in records} == {rank}


A_RANK = """
from toolkit.telemetry.logger.writing import rank_folder

# The disk is known not to be shared.
rank_folder._WAIT_FOR_FOLDER_S = 0.0
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, ranks="all", system=len(sys.argv) > 2, system_every=1)
reported = []
threading.Thread(target=lambda: reported.extend(iter(sys.stdin.readline, "")), daemon=True).start()
log_for_ever(log, until=lambda: reported, pause_s=0.001, note="y" * 200)
log.close()
"""


def launched(rank: int, world_size: int = 16) -> dict[str, str]:
    """Return what a launcher without a process group sets on the second of two nodes."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29511",
        "TELEMETRY_NODE": "node1",
        "TELEMETRY_RUN_ID": "0123456789abcdef",
    }


def assert_has_all(path, *children, torn_lines=0):
    """Check that a rank's file has every step that a call of its processes acknowledged, by session."""
    records = read_records(path, bad_lines=torn_lines)
    assert_nothing_is_missing(records)
    steps = [(each["session"], each["global_step"]) for each in with_event(records, "step")]
    for session, child in enumerate(children, 1):
        mine = [step for number, step in steps if number == session]
        assert mine == list(range(len(mine)))
        assert len(mine) > child.acknowledged


@in_make_faults
def test_the_ranks_of_a_node_that_start_together_make_one_part_and_resume_it_together(tmp_path, start):
    sessions = []
    for _ in range(3):
        ranks = [start(A_RANK, tmp_path, env=launched(rank)) for rank in range(8, 16)]
        for rank in ranks:
            rank.wait_for_step(30)
        for rank in reversed(ranks):
            rank.kill()
        sessions.append(ranks)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run@node1"]

    part = tmp_path / "run@node1"
    repair(part)

    assert [*record_files(part)] == list(range(8, 16))
    for place, path in enumerate(record_files(part).values()):
        assert_has_all(path, *(ranks[place] for ranks in sessions))
    about = json.loads((part / "run.json").read_text())
    assert [session["session"] for session in about["sessions"]] == [1, 2, 3]


@in_make_faults
def test_a_rank_that_is_alone_on_its_node_writes_loss_step_time_and_machine(tmp_path, start):
    rank = start(A_RANK, tmp_path, "with system records", env=launched(8))
    path = tmp_path / "run@node1" / "ranks" / "00008.jsonl"
    wait_until(lambda: path.exists() and b'"event":"system"' in path.read_bytes(), rank, timeout_s=120.0)
    assert rank.end(line="end").code == 0

    records = read_records(path)
    assert (
        "cpu_percent" in with_event(records, "system")[-1]
        or "cpu_mem_rss_mb" in with_event(records, "system")[-1]
    )
    assert {"train_loss", "sec_per_step"} <= with_event(records, "step")[-1].keys()
    assert with_event(records, "start")[0]["run_id"] == "0123456789abcdef"
    assert json.loads((tmp_path / "run@node1" / "run.json").read_text())["status"] == "finished"


@in_make_faults
@pytest.mark.root
def test_a_part_on_a_full_disk_loses_nothing_when_its_rank_is_killed_and_resumed(start, mount_in_memory):
    disk = mount_in_memory("size=16m")
    killed = start(A_RANK, disk, env=launched(8))
    killed.wait_for_step(200)
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass
    killed.wait_for_step(killed.acknowledged + 500)
    killed.kill()
    path = disk / "run@node1" / "ranks" / "00008.jsonl"
    assert len(with_event(read_records(path, live=True), "step")) <= killed.acknowledged

    torn_lines = 0 if path.read_bytes().endswith(b"\n") else 1
    # The disk is still full when the run is resumed.
    resumed = start(A_RANK, disk, env=launched(8))
    resumed.wait_for_step(200)
    (disk / "ballast").unlink()
    resumed.wait_for_step(resumed.acknowledged + 200)
    assert resumed.end(line="end").code == 0

    # A line of which the disk took half is there again, whole.
    assert_has_all(path, killed, resumed, torn_lines=torn_lines)


THE_STORE_IS_SILENT = """
from datetime import timedelta
import torch
import torch.distributed as distributed
from toolkit.telemetry.logger.writing import rank_folder

rank_folder._WAIT_FOR_RANK_ZERO_S = 1.0
# Who waits for an answer waits longer than the test.
store = distributed.TCPStore("127.0.0.1", int(sys.argv[2]), None, False, timeout=timedelta(days=1))
distributed.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
print("met", flush=True)
sys.stdin.readline()
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, ranks="all", system=False, control=False)
for step in range(50):
    log.log_step(step, train_loss=1.0)
log.close()
print("has logged", flush=True)
sys.stdin.readline()
"""

A_STORE = """
import torch.distributed as distributed

store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
print(f"port={store.port}", flush=True)
sys.stdin.readline()
"""


@in_make_faults
def test_a_store_that_does_not_answer_holds_up_no_rank(tmp_path, start):
    server = start(A_STORE, imported=A_TRAINING)
    port = server.wait_for_line("port=").partition("=")[2].strip()
    ranks = [
        start(
            THE_STORE_IS_SILENT,
            tmp_path / f"node{rank}",
            port,
            env={"RANK": str(rank), "TELEMETRY_NODE": f"node{rank}", "GLOO_SOCKET_IFNAME": "lo"},
            imported=A_TRAINING,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        rank.wait_for_line("met")
    server.process.send_signal(signal.SIGSTOP)
    for rank in ranks:
        rank.tell("log")
    for rank in ranks:
        rank.wait_for_line("has logged")
    server.process.send_signal(signal.SIGCONT)
    for rank in ranks:
        rank.tell("end")
    ended = [rank.end() for rank in ranks]

    assert [rank.code for rank in ended] == [0, 0], [rank.err for rank in ended]
    whole_run(tmp_path / "node0" / "run", steps=range(50))
    assert "found no run of this launch" in ended[1].err
    assert not (tmp_path / "node1").exists()


LAUNCHED_BY_TORCHRUN = """
import torch.distributed as distributed

from toolkit.telemetry.logger.writing import rank_folder

rank_folder._WAIT_FOR_RANK_ZERO_S = 120.0
distributed.init_process_group("gloo")
rank = distributed.get_rank()
with TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, ranks=sys.argv[2], system=False) as log:
    for step in range(20):
        log.log_step(step, train_loss=1.0, mine=rank)
    distributed.barrier()
distributed.destroy_process_group()
"""


@in_make_faults
@pytest.mark.parametrize(
    ("ranks", "first", "second"),
    [("all", [0, 1], [2, 3]), ("first_per_node", [0], [2]), ("every:3", [0], [3]), ("zero", [0], None)],
)
def test_torchrun_on_two_nodes_writes_the_chosen_ranks_of_each(tmp_path, start, ranks, first, second):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    agents = [
        start(
            LAUNCHED_BY_TORCHRUN,
            tmp_path / f"node{node}",
            ranks,
            launcher=[
                *("-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2"),
                *("--master-addr=127.0.0.1", f"--master-port={port}"),
            ],
            env={"TELEMETRY_NODE": f"node{node}", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        )
        for node in range(2)
    ]
    ended = [agent.end(300) for agent in agents]

    assert [agent.code for agent in ended] == [0, 0], [agent.err for agent in ended]
    whole_run(tmp_path / "node0" / "run", steps=range(20))
    assert [*record_files(tmp_path / "node0" / "run")] == first
    if second is None:
        assert not (tmp_path / "node1").exists()
        return
    part = tmp_path / "node1" / "run@node1"
    assert [*record_files(part)] == second
    for rank, path in record_files(part).items():
        records = read_records(path)
        assert_nothing_is_missing(records)
        assert [(each["global_step"], each["mine"]) for each in with_event(records, "step")] == [
            (step, rank) for step in range(20)
        ]
    assert json.loads((part / "run.json").read_text())["part_of"] == "node0"
