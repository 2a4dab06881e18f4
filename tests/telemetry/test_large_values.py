"""A call with far more than a record can hold does no more work than the record is worth, and says what is missing."""

from __future__ import annotations

import json

import pytest

from tests.records import read_records
from tests.telemetry.logged import make_logger
from toolkit.telemetry.privacy import masking
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.codec import bounded, decode, encode
from toolkit.telemetry.runfolder.records import MAX_RECORD_BYTES

TOKEN = "hf_" + "aBcDeFgHiJ" * 3 + "kLmN"
PROSE = "the loss of token number seven goes down: slowly = surely. "


@pytest.fixture
def looked_at(monkeypatch):
    """How long the texts are that secrets are looked for in, one after the other."""
    lengths = []
    real = masking.mask_text

    def counting(text, **how):
        lengths.append(len(text))
        return real(text, **how)

    monkeypatch.setattr(masking, "mask_text", counting)
    return lengths


def logged(tmp_path, log_it, event):
    log = make_logger(tmp_path, log_every=1)
    log_it(log)
    log.close()
    return read_records(log.run_folder / "metrics.jsonl", event)[-1]


# ------------------------------------------------------------ how much is looked at


def test_ten_thousand_metrics_are_looked_at_as_far_as_a_record_holds_them(tmp_path, looked_at):
    metrics = {f"layer_{number}/norm_of_the_gradient": number + 0.125 for number in range(10_000)}
    record = logged(tmp_path, lambda log: log.log_step(1, train_loss=0.5, **metrics), "step")
    kept = [name for name in record if name.startswith("layer_")]

    assert 500 < len(kept) < 2_500
    assert sum(length > 0 for length in looked_at) < 3_000
    assert record["train_loss"] == 0.5
    assert record["unencodable"] == {"…": f"{10_000 - len(kept)} more fields"}
    assert record["layer_0/norm_of_the_gradient"] == 0.125


@pytest.mark.parametrize(
    "config",
    [
        {"one": PROSE * 200_000, "lr": "1e-4"},
        {"many": [PROSE * 2_000] * 100, "lr": "1e-4"},
        {"nested": {f"k{n}": {f"k{m}": PROSE * 20 for m in range(100)} for n in range(100)}, "lr": "1e-4"},
        {**{f"k{n}": PROSE * 20 for n in range(20_000)}},
    ],
    ids=["one text", "long texts", "many texts", "many settings"],
)
def test_a_configuration_of_many_megabytes_is_looked_at_as_far_as_a_record_holds_it(
    tmp_path, looked_at, config
):
    record = logged(tmp_path, lambda log: log.log_start(config=config), "start")

    assert sum(looked_at) < 8 * MAX_RECORD_BYTES
    assert record["cut"]
    assert record["config"].get("lr", "1e-4") == "1e-4"
    assert record["run_name"]


def test_a_long_completion_is_looked_at_once(tmp_path, looked_at):
    completion = PROSE * 2_200
    record = logged(tmp_path, lambda log: log.log_completion(1, "why?", completion), "completion")

    assert len(completion) > 120_000
    assert sum(looked_at) < 1.4 * MAX_RECORD_BYTES
    assert record["cut"] == ["completion"]
    assert record["completion"].startswith(PROSE)
    assert record["completion"].endswith(PROSE)
    assert f" of {len(completion):,} characters left out" in record["completion"]


# ------------------------------------------------------------ what is said of the rest


def cut_plainly(text, kept):
    return text[:kept]


def test_a_text_says_how_long_it_was_however_often_it_is_cut():
    fields = {"config": {"a": PROSE * 10_000, "b": [PROSE] * 3_000}}
    once = bounded(fields, cut_plainly)
    twice = bounded({**once, "others": [[PROSE] * 300] * 40}, cut_plainly)

    assert once["config"]["a"].endswith(f"… [{len(PROSE) * 10_000} characters]")
    assert twice["config"]["a"].endswith(f"… [{len(PROSE) * 10_000} characters]")
    assert len(twice["config"]["a"]) < len(once["config"]["a"])
    assert "config/a" in once["cut"]
    assert {"config/a", "config/b"} <= set(twice["cut"])


def test_every_missing_field_is_counted_at_whichever_place_it_was_left_out():
    fields = {f"metric_number_{n}": n / 7 for n in range(9_000)}
    record = decode(encode({"event": "step", **bounded(fields, cut_plainly)}))
    # Texts full of what JSON has to escape are longer than they look.
    escaped = {f"metric_number_{n}": "\x01" * 60 for n in range(9_000)}
    shortened = decode(encode({"event": "step", **bounded(escaped, cut_plainly)}))

    for one in (record, shortened):
        kept = sum(name.startswith("metric_") for name in one)
        named = [name for name in one["unencodable"] if name != "…"]
        more = int(one["unencodable"]["…"].split()[0])
        assert kept + len(named) + more == 9_000


# ------------------------------------------------------------ secrets at the edge


@pytest.mark.parametrize("kept", [64, 256, 1_024, 4_096, 16_384])
def test_a_secret_that_a_cut_goes_through_is_hidden_whole(kept):
    masker = Masker({"MY_SERVICE_PASSWORD": "correct horse battery staple"})
    for secret in (TOKEN, "correct horse battery staple", "password=correct-horse-4711"):
        for before in range(0, len(secret) + 1, 5):
            text = f"{'x ' * kept}"[: kept - before - 1] + f" {secret} " + PROSE * 2_000
            shown = masker.cut(text, kept)

            assert not any(part in shown for part in ("hf_a", "corr", "horse")), shown[-60:]


def test_no_half_of_a_secret_is_written_of_a_configuration_that_is_cut(tmp_path):
    texts = [("y " * 40_000)[: 16_384 - n] + f" {TOKEN} " + PROSE * 3_000 for n in range(0, 40, 3)]
    record = logged(tmp_path, lambda log: log.log_start(config={"texts": texts}), "start")

    assert "hf_" not in json.dumps(record)
