"""No secret that a training script hands over gets into the run's own files."""

from __future__ import annotations

import json
import logging
import re

import pandas as pd
import pytest

from tests.privacy.planted import HARMLESS
from tests.records import read_records
from tests.telemetry.logged import make_logger, records_of
from toolkit.telemetry.compat.wandb_media import MediaTarget, Table
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.privacy.record_masking import RecordMasker
from toolkit.telemetry.runfolder.records import MAX_RECORD_BYTES

PIN = 918273645546372819
TOKEN = "hf_" + "aBcDeFgHiJ" * 3 + "kLm7"


def everything_in(folder):
    return b"".join(path.name.encode() + path.read_bytes() for path in folder.rglob("*") if path.is_file())


def step_with_a_text(log):
    log.log_step(1, train_loss=0.5, note=f"used {TOKEN}")


def span_that_fails(log):
    try:
        with log.span(
            "upload", url=f"https://bob:{TOKEN}@example.com", deep={"headers": [f"Bearer {TOKEN}"]}
        ):
            raise ValueError(f"401 for {TOKEN}")
    except ValueError:
        pass


def names_of_metrics(log):
    """In records, in what is folded into them, and in what only a folded step has."""
    for step in range(60):
        log.log_step(step, 0.5, **{f"loss/{TOKEN}": 0.1 * step, "seq": 7.0, "cut": 1.5})
        log.log_step(step, 0.5, **({TOKEN: 1.0} if step % 20 == 7 else {}))


def exception_with_everything(log):
    password = TOKEN
    try:
        with log.capture_errors():
            try:
                raise KeyError(TOKEN)
            except KeyError as cause:
                error = ValueError(f"401 for {password}")
                error.__notes__ = [f"asked with {TOKEN}"]
                error.exceptions = [OSError(TOKEN)]
                raise error from cause
    except ValueError:
        pass


def media(log):
    log.log_image(TOKEN, b"\x89PNG", caption=TOKEN)
    log.log_histogram(TOKEN, [1.0, 2.0])
    log.log_table(TOKEN, [[1]])


def failure_of_telemetrys_own(log):
    log.guard.report("mirroring", OSError(f"refused {TOKEN}"))


WAYS = {
    "start": lambda log: log.log_start(
        config={"x": TOKEN}, lora={"a": TOKEN}, model={"url": TOKEN}, training={"args": [TOKEN]}, note=TOKEN
    ),
    "event": lambda log: log.log_event("login", note=TOKEN, answer={"headers": [TOKEN]}),
    "name of an event": lambda log: log.log_event(TOKEN, x=1),
    "name of a field": lambda log: log.log_event("login", **{TOKEN: 1}),
    "step": step_with_a_text,
    "eval": lambda log: log.log_eval(1, {"note": TOKEN}),
    "epoch": lambda log: log.log_epoch(1, note=TOKEN),
    "sample": lambda log: log.log_sample(1, f"samples/{TOKEN}.png", prompt=f"a photo, {TOKEN}"),
    "checkpoint": lambda log: log.log_checkpoint(1, f"out/{TOKEN}", why=TOKEN),
    "completion": lambda log: log.log_completion(1, prompt=TOKEN, completion=TOKEN),
    "span": span_that_fails,
    "name of a span": lambda log: log.span(f"load {TOKEN}").__enter__().__exit__(None, None, None),
    "event of a span": lambda log: internals(log).event_outside_spans("x", {"note": TOKEN}),
    "names of metrics": names_of_metrics,
    "names of folded metrics": names_of_metrics,
    "media": media,
    "table": lambda log: log.log_table("t", [{"a": TOKEN, TOKEN: b"x " + TOKEN.encode(), "b": [TOKEN]}]),
    "DataFrame": lambda log: log.log({"t": pd.DataFrame({"a": [1, TOKEN], TOKEN: [0.5, Exception(TOKEN)]})}),
    "table of W&B": lambda log: Table(columns=["a", TOKEN], data=[[TOKEN, 1]]).save(
        MediaTarget(log=log, key=TOKEN, step=1)
    ),
    "summary": lambda log: log.summary.update({"best": TOKEN, "deep": {TOKEN: [TOKEN]}}),
    "exception": exception_with_everything,
    "failure of telemetry": failure_of_telemetrys_own,
    "reason of the end": lambda log: log.close(f"gave up on {TOKEN}"),
    "error of the end": lambda log: log.close("failed", error=ValueError(TOKEN)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_secret_is_masked_whichever_way_it_comes(way, tmp_path, caplog):
    caplog.set_level(logging.CRITICAL)
    log = make_logger(
        tmp_path,
        csv=True,
        one_logger_file=True,
        log_every=7 if "folded" in way else 1,
    )
    WAYS[way](log)
    log.close()

    written = everything_in(tmp_path)
    assert TOKEN.encode() not in written
    assert b"***" in written


@pytest.mark.parametrize("log_every", [1, 5])
def test_a_metric_of_a_name_that_has_a_meaning_is_kept_under_another(log_every, tmp_path):
    """In a record of numbers alone, and where only a folded step had it; a number may be a password."""
    log = make_logger(tmp_path, log_every=log_every)
    for step in range(20):
        log.log_step(
            step, 0.5, **({"cut": 1.5, "seq": 7.0, "password": PIN} if step % 5 == 2 else {"a": 1.0})
        )
    steps = [record for record in records_of(log, "step") if "x_cut" in record]
    log.close()

    assert len(steps) >= 3
    assert {(record["x_cut"], record["x_seq"]) for record in steps} == {(1.5, 7.0)}
    assert not any("cut" in record for record in steps)
    assert str(PIN).encode() not in everything_in(tmp_path)


def test_a_secret_in_what_the_run_is_called_is_masked_and_the_run_still_found_again(tmp_path):
    for session in (1, 2):
        log = make_logger(tmp_path, f"run {TOKEN}", project=TOKEN, tags=(TOKEN, "plain"), resume=session == 2)
        log.close()

    (folder,) = tmp_path.iterdir()
    assert TOKEN.encode() not in everything_in(tmp_path)
    manifest = json.loads((folder / "run.json").read_text())
    assert len(manifest["sessions"]) == 2
    assert manifest["project"] == manifest["tags"][0]
    assert re.fullmatch(r"\*\*\*-[0-9a-f]{8}", manifest["project"])
    assert manifest["tags"][1:] == ["plain"]


@pytest.mark.parametrize(
    "names", [("SDXLv10Rank64Alpha32Steps3000", "FluxDevRank16Alpha8Steps1500XL"), (TOKEN, TOKEN[:-1] + "8")]
)
def test_two_runs_stay_two_whatever_their_names_look_like(names, tmp_path):
    for name in names:
        log = make_logger(tmp_path, name, resume=True)
        log.log_step(1, 0.5, **{f"acc/{one}": 1.0 for one in names})
        log.close()

    metrics = [
        record for folder in tmp_path.iterdir() for record in read_records(folder / "metrics.jsonl", "step")
    ]
    assert len([*tmp_path.iterdir()]) == 2
    assert [len([name for name in step if name.startswith("acc/")]) for step in metrics] == [2, 2]
    assert (TOKEN in names) is (names[0].encode() not in everything_in(tmp_path))


def test_a_secret_that_the_script_puts_into_the_environment_later_is_masked(tmp_path, monkeypatch):
    log = make_logger(tmp_path)
    log.log_event("before", note="nothing to see")
    monkeypatch.setenv("ACME_SERVICE_TOKEN", "correct horse 4711")
    log.log_event("after", note="it is correct horse 4711")

    assert records_of(log, "after")[0]["note"] == "it is ***"
    log.close()


def test_harmless_texts_are_logged_as_they_are(tmp_path):
    log = make_logger(tmp_path)
    for text in HARMLESS:
        log.log_event("text", note=text, deep=[{"x": text}])

    assert [record["note"] for record in records_of(log, "text")] == HARMLESS
    assert [record["deep"][0]["x"] for record in records_of(log, "text")] == HARMLESS
    log.close()


def test_a_text_that_no_record_has_room_for_is_masked_as_far_as_it_is_kept(tmp_path):
    log = make_logger(tmp_path)
    log.log_event("long", note=f"{TOKEN} " + "word " * 300_000)
    log.close()

    (record,) = read_records(log.run_folder / "metrics.jsonl", "long")
    assert record["note"].startswith("*** word word")
    assert f"[{len(TOKEN) + 1 + 1_500_000} characters]" in record["note"]
    assert record["cut"] == ["note"]
    assert len(json.dumps(record)) < MAX_RECORD_BYTES


def test_a_private_key_that_was_taken_apart_into_lines_is_masked():
    body = ["MIIEpAIBAAKCAQEA7v0nXqJd5lTz3rC9wS8yQ4uG1bH2kL6mN0pR7sT9vX1zB3dF", "short="]
    printed = ["before", "-----BEGIN RSA PRIVATE KEY-----", *body, "-----END RSA PRIVATE KEY-----", "behind"]

    masked = RecordMasker().mask_fields({"output": printed})["output"]
    cut_off = RecordMasker().mask_fields({"output": printed[2:]})["output"]
    unended = RecordMasker().mask_fields({"output": printed[:4]})["output"]

    assert masked == ["before", "***", "***", "***", "***", "behind"]
    assert cut_off == ["***", "***", "***", "behind"]
    assert unended == ["before", "***", "***", "***"]
