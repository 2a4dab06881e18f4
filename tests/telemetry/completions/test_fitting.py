"""Texts that are too long for a record: their ends stay, and the record says what is missing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from toolkit.telemetry.logger.records.completions.fitting import fit
from toolkit.telemetry.runfolder.codec import decode, encode
from toolkit.telemetry.runfolder.records import MAX_RECORD_BYTES


def encoded(fields):
    """Return the fields as they stand in a record that is encoded and read again."""
    line = encode(
        {"event": "completion", "time": 1.7e9, "elapsed": 1.0, "seq": 123456, "session": 1, **fit(fields)}
    )
    assert len(line) <= MAX_RECORD_BYTES
    return decode(line), len(line)


def test_a_short_text_leaves_its_room_to_the_long_ones():
    record, _ = encoded({"prompt": "p" * 100_000, "chosen": "c" * 500, "rejected": "r" * 100_000})

    assert record["chosen"] == "c" * 500
    assert len(record["prompt"]) > 30_000
    assert len(record["rejected"]) > 30_000
    assert record["cut"] == ["prompt", "rejected"]


def test_a_character_that_takes_more_bytes_counts_for_more():
    # Three bytes each in UTF-8; a control character takes six in JSON.
    for text in ("漢" * 60_000, "\x01" * 60_000, '"\\\n' * 30_000, "\ud83d" * 60_000, "🙂" * 60_000):
        record, size = encoded({"completion": text, "reward": 1.0})

        assert record["cut"] == ["completion"]
        assert record["reward"] == 1.0
        assert size > 0.8 * MAX_RECORD_BYTES


def test_next_to_large_other_fields_something_of_the_text_stays():
    record, _ = encoded({"completion": "x" * 100_000, "logprobs": [0.123456789] * 10_000})

    assert set(record["cut"]) == {"completion", "logprobs"}
    assert record["completion"].startswith("x" * 4_000)
    assert record["logprobs"][:2] == [0.123456789] * 2


@settings(max_examples=longer(5, 60), deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["prompt", "completion", "chosen", "rejected", "note"]),
        st.builds(lambda text, times: text * times, st.text(max_size=40), st.integers(0, 4_000)),
    )
)
def test_whatever_the_texts_are_the_record_is_no_longer_than_a_record(texts):
    record, _ = encoded(texts)

    assert set(texts) <= set(record)
    for name, text in texts.items():
        if name not in record.get("cut", ()):
            assert record[name] == text.encode("utf-8", "backslashreplace").decode()


def test_of_a_secret_where_a_text_is_cut_nothing_is_left():
    token = "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3f2G"
    record, _ = encoded({"completion": "x " * 80_000})
    ends = record["completion"].split("characters left out] … ")[1]
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA7bq1/x9Yt\n" * 40 + "-----END PRIVATE KEY-----"

    # The cut goes through the secret wherever in it the last part that is kept begins.
    for secret, part in ((token, "3f2G"), (key, "MIIE")):
        for rest in range(0, len(secret), len(secret) // 8):
            for middle in ("x " * 60_000, "x " * 200_000):
                text = middle + secret + " z" * ((len(ends) - rest) // 2)
                assert part not in fit({"completion": text})["completion"]


def test_a_secret_at_the_first_cut_does_not_take_the_rest_along():
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA7bq1/x9Yt\n" * 40 + "-----END PRIVATE KEY-----"
    shortened = fit({"completion": "x " * 21_300 + key + " y" * 80_000})["completion"]

    assert "MIIE" not in shortened
    assert "characters left out] …" in shortened
    assert shortened.endswith(" y")
