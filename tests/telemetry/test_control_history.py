"""Whether a request was answered before is found in the records, however many there are."""

from toolkit.runfolder.codec import encode
from toolkit.telemetry.control.history import was_answered


def test_an_answer_is_found_among_everything_else(tmp_path):
    path = tmp_path / "metrics.jsonl"
    filler = b"".join(encode({"event": "step", "seq": seq, "id": "a"}) for seq in range(60_000))
    answer = encode({"event": "control_change", "seq": 60_000, "id": "b", "status": "applied"})
    path.write_bytes(filler + answer + b"nonsense\n" + b'{"event":"control_change","id":"c"')

    assert was_answered(path, "b")
    assert not was_answered(path, "a")
    assert not was_answered(path, "c")


def test_a_run_without_records_has_answered_nothing(tmp_path):
    assert not was_answered(tmp_path / "absent", "b")

    (tmp_path / "empty").write_bytes(b"")

    assert not was_answered(tmp_path / "empty", "b")
