from __future__ import annotations

from benchmarks.answers.__main__ import with_parts


def test_a_part_of_the_document_is_replaced_and_the_others_stay():
    first = with_parts("# Figures\n", {"resume": "10 of 10", "why": "5 of 6"})
    again = with_parts(first, {"resume": "9 of 10"})

    assert first.index("10 of 10") < first.index("5 of 6")
    assert "10 of 10" not in again
    assert again.count("5 of 6") == again.count("\n9 of 10\n") == 1
