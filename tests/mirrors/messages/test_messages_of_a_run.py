"""Real runs and real receivers: what is sent, when, to which receiver, and what the records say about it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.children import LONGEST_PAUSE_S, Child
from tests.mirrors.messages.local_receivers import never_answer, raw_receiving, receiving
from tests.records import read_records
from tests.telemetry.logged import make_logger, records_of
from tests.waiting import wait_until
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.post import post
from toolkit.telemetry.mirrors.messages.message import RunState
from toolkit.telemetry.mirrors.messages.options import MessageOptions
from toolkit.telemetry.mirrors.messages.sink import MessageSink

SECRET = "lark-signing-secret-77"


def verifying_lark(secret=SECRET):
    """Return how Lark answers: it checks the signature and that the time is no more than an hour away."""

    def answer(got):
        said = got.json
        key = f"{said.get('timestamp')}\n{secret}".encode()
        expected = base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()
        is_in_time = abs(time.time() - int(said.get("timestamp", 0))) <= 3600
        if said.get("sign") != expected or not is_in_time:
            return b'{"code":19021,"msg":"sign match fail or timestamp is not within one hour from current time"}'
        return b'{"StatusCode":0,"StatusMessage":"success","code":0,"data":{},"msg":"success"}'

    return answer


GOOD = {"name": "val_loss is good", "when": "val_loss < 0.5", "severity": "info"}


def occasions(receiver):
    return [got.json["occasion"] for got in receiver.got]


def deliveries(log):
    return read_records(log.run_folder / "metrics.jsonl", "message")


@contextmanager
def logging_to(folder, *receivers, **options):
    log = make_logger(folder, "greyjacket", messages=list(receivers), **{"log_every": 1, **options})
    try:
        yield log
    finally:
        log.close()


def let_arrive(log, receiver, count):
    """Wait until `count` messages have arrived and are recorded: those that wait at the end are sent with it."""
    log.flush()
    wait_until(lambda: len(receiver.got) >= count and len(records_of(log, "message")) >= count)


def message_counts(records):
    """Return how many messages `records` report, by status, alone or combined with others."""
    counts = Counter()
    for record in records:
        counts[record["status"]] += record.get("tells_of", 1)
    return dict(counts)


def webhook(receiver, **options):
    return {"to": "webhook", "url": f"{receiver.url}/hook", **options}


def test_what_a_receiver_without_a_thread_does_not_get_is_recorded_and_another_one_gets_its_messages(
    tmp_path, monkeypatch
):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "telemetry-messages-to-webhook":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with receiving() as first, receiving() as other:
        both = [{"to": "webhook", "url": one.url, "when": ["finish"]} for one in (first, other)]
        with logging_to(tmp_path, *both) as log:
            log.log_step(1, train_loss=1.0)

    assert (len(first.got), occasions(other)) == (0, ["finish"])
    assert Counter(record["status"] for record in deliveries(log)) == {"failed": 1, "delivered": 1}


def test_a_run_is_reported_from_start_to_finish_and_each_delivery_is_recorded(tmp_path):
    with receiving() as receiver:
        with logging_to(tmp_path, webhook(receiver), project="jackets", alerts=[GOOD]) as log:
            log.log_start(training={"max_steps": 100}, description="Rank 8, hf_" + 34 * "a")
            for step in range(1, 101):
                log.log_step(step, train_loss=1.0 / step, lr=1e-4, sec_per_step=2.0)
            log.log_eval(100, val_loss=0.25)
            let_arrive(log, receiver, 2)

    assert sorted(occasions(receiver)) == ["finish", "milestone", "start"]
    assert "greyjacket: milestone val_loss is good" in [got.json["title"] for got in receiver.got]
    finish = receiver.got[-1].json
    assert finish["title"] == "greyjacket: finished"
    assert (finish["status"], finish["step"], finish["max_steps"]) == ("finished", 100, 100)
    assert (finish["train_loss"], finish["lr"]) == (0.01, 1e-4)
    assert finish["link"] == "http://localhost:8501/overview?run=greyjacket"
    assert (finish["run"]["id"], finish["run"]["project"]) == (log.run_id, "jackets")
    assert finish["run"]["description"].startswith("Rank 8, ")
    assert finish["text"].splitlines()[-1] == f"project jackets · {finish['run']['description']}"
    assert not any(b"hf_aaa" in got.body for got in receiver.got)
    records = read_records(log.run_folder / "metrics.jsonl")
    assert records[-1]["event"] == "end"
    reported = [record for record in records if record["event"] == "message"]
    assert [record["status"] for record in reported] == ["delivered"] * 3
    assert reported[-1]["about"] == ["end:1"]
    assert (reported[-1]["attempts"], reported[-1]["service"]) == (1, "webhook")


def test_a_critical_finding_is_reported_once(tmp_path):
    with receiving() as receiver:
        with logging_to(tmp_path, webhook(receiver, when="finding")) as log:
            for step in range(80):
                log.log_step(step, train_loss=math.nan if step >= 40 else 1.0 / (step + 1))
            log.flush()
            wait_until(lambda: receiver.got)

    [reported] = [got.json for got in receiver.got]
    assert reported["title"] == "greyjacket: critical finding: Not a number"
    text = reported["text"].splitlines()
    assert text[0].startswith("train_loss is NaN or infinite from step 40 on")
    assert [line.partition(":")[0] for line in text[1:3]] == ["Often", "Try"]
    assert reported["details"]["kind"] == "nan"


def test_a_wrong_signing_secret_is_printed_and_recorded(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("LARK_SECRET", "another-secret-entirely")
    with receiving(usual=verifying_lark()) as receiver:
        receivers = {"to": "lark", "url": receiver.url, "secret_env": "LARK_SECRET", "when": ["start"]}
        with logging_to(tmp_path, receivers) as log:
            log.log_step(1, train_loss=0.5)

    [reported] = deliveries(log)
    assert (reported["status"], reported["attempts"]) == ("failed", 1)
    assert "answered with code 19021: sign match fail" in reported["reason"]
    assert "sending messages to lark failed" in caplog.text
    assert "another-secret" not in caplog.text + json.dumps(reported)


# ------------------------------------------------------------ who gets nothing


def test_a_variable_that_is_not_set_is_reported_at_the_start(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("EMPTY_HOOK", " ")
    monkeypatch.setenv("WRONG_HOOK", "http://hooks.slack.com/services/s3cr3t")
    wishes = [{"to": "slack", "url_env": name} for name in ("NO_SUCH_HOOK", "EMPTY_HOOK", "WRONG_HOOK")]
    with logging_to(tmp_path, *wishes) as log:
        log.log_step(1, train_loss=0.5)
        errors = [record["message"] for record in records_of(log, "error")]

    assert "the environment variable that telemetry.messages[0].url_env names is not set" in errors[0]
    assert "telemetry.messages[1].url_env names is not set or empty" in errors[1]
    assert "telemetry.messages[2].url_env goes to hooks.slack.com over unencrypted http" in errors[2]
    assert "messages[0].url_env names is not set" in caplog.text
    assert "s3cr3t" not in caplog.text + json.dumps(errors)
    assert deliveries(log) == []


def test_other_ranks_send_nothing(tmp_path, monkeypatch):
    with receiving() as receiver:
        with logging_to(tmp_path, webhook(receiver, when="start")) as zero:
            zero.log_step(1, train_loss=0.5)
            monkeypatch.setenv("RANK", "1")
            monkeypatch.setenv("WORLD_SIZE", "2")
            with logging_to(tmp_path, webhook(receiver), ranks="all") as one:
                one.log_step(1, train_loss=0.5)

    assert occasions(receiver) == ["start"]


def test_a_script_that_is_terminated_says_so_by_default(tmp_path, start):
    with receiving() as receiver:
        child = start(
            """
            to = {"to": "webhook", "url": sys.argv[2], "when": ["finish", "failure"]}
            log = TelemetryLogger("run", log_dir=sys.argv[1], messages=[to])
            log.log_step(1, train_loss=1.0)
            print("waiting", flush=True)
            while True:
                # Python runs its handler after a call that the signal came too early to interrupt.
                time.sleep(0.1)
            """,
            tmp_path,
            receiver.url,
        )
        child.wait_for_line("waiting")
        child.process.send_signal(signal.SIGTERM)
        ended = child.end()

    assert ended.code == -signal.SIGTERM, ended.err
    assert occasions(receiver) == ["failure"]
    assert receiver.got[0].json["title"] == "run: ended by a signal"
    assert "SIGTERM" in receiver.got[0].json["text"]


@pytest.fixture
def start(tmp_path):
    """Start a child process; whatever is left of it is killed."""
    children = []

    def make(source, *arguments, **options):
        children.append(Child(source, *arguments, cwd=tmp_path, **options))
        return children[-1]

    yield make
    for child in children:
        if child.process.poll() is None:
            child.kill()


# ------------------------------------------------------------ secrets


@pytest.mark.parametrize(
    ("service", "url"),
    [
        ("slack", "https://hooks.slack.com/services/T01234567/B01234567/s3cr3ts3cr3ts3cr3ts3cr3t"),
        ("discord", "https://discord.com/api/webhooks/123456789012345678/s3cr3ts3cr3ts3cr3ts3cr3t"),
        ("lark", "https://open.feishu.cn/open-apis/bot/v2/hook/s3cr3ts3-cr3t-s3cr-3ts3-cr3ts3cr3ts3"),
        ("lark", "https://open.larksuite.com/open-apis/bot/v2/hook/s3cr3ts3-cr3t-s3cr-3ts3-cr3ts3cr3ts3"),
    ],
)
def test_a_secret_address_is_warned_about_once_and_is_in_no_file(tmp_path, caplog, service, url):
    from toolkit.telemetry import TelemetryLogger

    # Nothing happens that it wants to know, so that nothing is sent to it.
    receivers = [{"to": service, "url": url, "when": ["milestone"]}]
    config = {"config": {"name": "r", "telemetry": {"log_dir": str(tmp_path), "messages": receivers}}}
    with TelemetryLogger.from_config(config) as log:
        log.log_step(1, train_loss=1.0)

    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 3
    assert [path for path in files if b"s3cr3t" in path.read_bytes()] == []
    assert (
        caplog.text.count(
            "telemetry.messages[0].url is a secret: anyone who knows this address can post there"
        )
        == 1
    )
    assert "s3cr3t" not in caplog.text


# ------------------------------------------------------------ receivers that do not behave


def test_a_receiver_that_hangs_holds_up_neither_the_loop_nor_the_end(tmp_path, caplog, monkeypatch):
    # Longer than a machine that is busy elsewhere holds up a call.
    monkeypatch.setitem(post.__kwdefaults__, "timeout_s", 600.0)
    with raw_receiving(never_answer) as receiver:
        with receiving() as other:
            log = make_logger(
                tmp_path, "r", log_every=1, close_timeout=2.0, messages=[webhook(receiver), webhook(other)]
            )
            slowest = 0.0
            for step in range(500):
                began = time.perf_counter()
                log.log_step(step, train_loss=1.0 / (step + 1))
                slowest = max(slowest, time.perf_counter() - began)
            wait_until(lambda: receiver.connections)
            began = time.monotonic()
            log.close()
            closing = time.monotonic() - began

    assert slowest < LONGEST_PAUSE_S
    assert closing < 2.0 + LONGEST_PAUSE_S
    by_receiver = {}
    for record in deliveries(log):
        by_receiver.setdefault(record["receiver"], []).append(record)
    assert message_counts(by_receiver["webhook-2"]) == {"delivered": 2}
    assert message_counts(by_receiver["webhook"]) == {"failed": 2}
    assert "before the run closed" in caplog.text
    assert [record["event"] for record in read_records(log.run_folder / "metrics.jsonl")][-1] == "end"


# ------------------------------------------------------------ once only


def test_a_resumed_run_repeats_no_milestone_and_reports_what_did_not_arrive(tmp_path):
    wishes = {"when": ["milestone"]}
    rules = [GOOD, {**GOOD, "name": "better", "when": "val_loss < 0.3"}]
    with receiving((403, {}, b"no")) as receiver:
        for session, values in enumerate(([0.4], [0.6, 0.4, 0.2], [0.6, 0.2])):
            with logging_to(tmp_path, webhook(receiver, **wishes), alerts=rules, resume=bool(session)) as log:
                for value in values:
                    log.log_eval(session + 1, val_loss=value)
                    log.flush()

    titles = ["greyjacket: milestone val_loss is good"] * 2 + ["greyjacket: milestone better"]
    assert [got.json["title"] for got in receiver.got] == titles
    assert [record["status"] for record in deliveries(log)] == ["failed", "delivered", "delivered"]


def test_a_record_that_is_read_again_is_not_reported_again(tmp_path):
    put = []
    with receiving() as receiver:
        sink = MessageSink(
            MessageOptions.from_block("m", webhook(receiver, when="milestone")),
            run_state=RunState(run_name="r"),
            folder="r",
            record_file=tmp_path / "metrics.jsonl",
            put=lambda event, fields: put.append(fields),
            guard=Guard(),
        )
        sink.start()
        batch = [
            {"event": "finding", "seq": n, "session": 1, "kind": f"rule:{n}", "severity": "info"}
            for n in range(1, 4)
        ]
        sink.write(batch[:2])
        wait_until(lambda: len(put) == 2)
        sink.write(batch)
        wait_until(lambda: len(put) == 3)
        sink.close()

    assert [got.json["title"] for got in receiver.got] == [f"r: milestone {n}" for n in range(1, 4)]


# ------------------------------------------------------------ whole processes


TRAINING = Path(__file__).parent / "programs" / "train_and_send_messages.py"


def training_yaml(folder):
    return f"""
        config:
          name: greyjacket
          telemetry:
            log_dir: {folder}
            log_every: 1
            close_timeout: 60.0
            messages:
              - {{to: lark, url_env: LARK_HOOK, secret_env: LARK_SECRET, when: [start, finish, failure]}}
    """


def test_a_process_that_crashes_reports_why(tmp_path, start):
    with receiving(usual=verifying_lark()) as receiver:
        env = {"LARK_HOOK": receiver.url, "LARK_SECRET": SECRET}
        ended = start(TRAINING, training_yaml(tmp_path), "crash", env=env).end()

    assert ended.code == 1
    text = receiver.got[-1].json["content"]["text"]
    assert text.startswith("greyjacket: failed with RuntimeError\nRuntimeError: CUDA out of memory in ")
    assert "failed · step 12 of 20 (60%)" in text
    assert "jane" not in text
    assert "secret-project" not in text
    assert len(receiver.got) == 2


def test_an_interrupted_wait_for_a_receiver_still_writes_the_end(tmp_path, start):
    with raw_receiving(never_answer) as receiver:
        child = start(
            """
            log = TelemetryLogger("run", log_dir=sys.argv[1], close_timeout=100.0, messages=[
                {"to": "webhook", "url": sys.argv[2], "when": ["finish"]}
            ])
            log.log_step(1, train_loss=1.0)
            try:
                log.close()
            except KeyboardInterrupt:
                print("heard", flush=True)
            """,
            tmp_path,
            receiver.url,
        )
        wait_until(lambda: receiver.connections)
        child.process.send_signal(signal.SIGINT)
        ended = child.end()

    assert ended.out.splitlines()[-1] == "heard", ended.err
    records = read_records(tmp_path / "run/metrics.jsonl")
    assert (records[-1]["event"], records[-1]["status"]) == ("end", "finished")
    assert message_counts([record for record in records if record["event"] == "message"]) == {"failed": 1}
