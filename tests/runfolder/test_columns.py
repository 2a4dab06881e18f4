"""A record as a row: every field in its column, no text that a spreadsheet would run, no cell of two lines."""

import csv
import io
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import tries
from toolkit.telemetry.runfolder.codec import decode, encode
from toolkit.telemetry.runfolder.table.columns import FIRST_COLUMNS, MAX_COLUMNS, Columns, cell, no_formula

texts = st.text(st.characters(codec="utf-8"), max_size=30)


def table(*records):
    """Return the records as the text of a whole table."""
    columns = Columns()
    for record in records:
        columns.add_new_of(record)
    return "\n".join([columns.header(), *(",".join(columns.row(record)) for record in records)]) + "\n"


def cells_of(text):
    return list(csv.reader(io.StringIO(text, newline="\n"), strict=True))


def test_a_table_begins_with_the_columns_people_look_for():
    columns = Columns()

    assert columns.names == list(FIRST_COLUMNS)
    assert columns.names[:2] == ["event", "time"]
    assert {"global_step", "train_loss", "val_loss", "lr", "grad_norm", "nan_inf_detected"} <= set(
        columns.names
    )


def test_new_fields_get_columns_in_order_of_appearance():
    columns = Columns()

    assert columns.add_new_of({"event": "step", "b": 1, "a": 2}) == 2
    assert columns.add_new_of({"a": 1, "c": 1}) == 1
    assert columns.add_new_of({"a": 1, "c": 1}) == 0
    assert columns.names[len(FIRST_COLUMNS) :] == ["b", "a", "c"]


def test_the_end_of_a_training_on_gpus_brings_no_column_of_its_own():
    columns = Columns()
    columns.add_new_of({"event": "start", "run_name": "r"})
    columns.add_new_of({"event": "system", "gpu/0/mem_used_gb": 1.0, "gpu/1/mem_used_gb": 1.0})
    end = {"event": "end", "status": "finished", "reason": "finished", "seconds": 1.0, "records": 3,
           "records_lost": 0, "telemetry_errors": 0, "cpu_mem_peak_mb": 9.0, "gpu/1/mem_peak_gb": 2.0}  # fmt: skip

    assert columns.add_new_of(end) == 0, "a large table would have to be rewritten while the process ends"
    assert columns.row(end)[columns.names.index("gpu/1/mem_peak_gb")] == "2.0"


def test_columns_that_were_added_can_be_taken_away_and_come_again():
    columns = Columns()
    columns.add_new_of({"a": 1})
    before = columns.snapshot()
    columns.add_new_of({"b": 1, "c": 1})
    columns.restore(before)

    assert columns.names[len(FIRST_COLUMNS) :] == ["a"]
    assert columns.add_new_of({"c": 1, "a": 1, "b": 1}) == 2
    assert columns.row({"b": 5, "c": 6})[len(FIRST_COLUMNS) :] == ["", "6", "5"]


def test_a_table_has_a_bounded_number_of_columns_and_counts_the_rest():
    columns = Columns()
    record = {f"metric/{i}": i for i in range(5000)}
    columns.add_new_of(record)

    assert len(columns.names) == MAX_COLUMNS
    assert len(columns.row(record)) == MAX_COLUMNS
    assert len(columns.left_out) == MAX_COLUMNS
    for start in range(0, 50_000, 5000):
        columns.add_new_of({f"other/{start + i}": 1 for i in range(5000)})
    assert len(columns.left_out) == MAX_COLUMNS


@tries
@given(
    number=st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**64 - 1) | st.booleans()
)
def test_a_number_is_written_as_a_number_and_comes_back_exactly(number):
    text = cell(number)

    assert not text.startswith("'")
    assert (
        (text == "True") if number is True else (text == "False") if number is False else eval(text) == number
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (-1.5, "-1.5"), (-3, "-3")],
)
def test_numbers_are_written_to_cells_as_pandas_reads_them(number, text):
    record = decode(encode({"event": "step", "train_loss": number}))
    columns = Columns()
    columns.add_new_of(record)

    assert columns.row(record)[columns.names.index("train_loss")] == text
    found = pd.read_csv(io.StringIO(table(record)))["train_loss"][0]
    assert found == number or (math.isnan(found) and math.isnan(number))


def test_the_list_of_non_finite_numbers_is_no_column_of_its_own():
    columns = Columns()
    columns.add_new_of(decode(encode({"loss": math.nan})))

    assert columns.names[len(FIRST_COLUMNS) :] == ["loss"]


@pytest.mark.parametrize(
    "named", [3, None, [], {"loss": 3}, {"loss": None}, {"loss": ["NaN"]}, {"loss": "text"}]
)
def test_a_foreign_list_of_non_finite_numbers_leaves_the_cell_empty(named):
    columns = Columns()
    record = {"loss": None, "non_finite": named}
    columns.add_new_of(record)

    assert set(columns.row(record)) == {""}


@pytest.mark.parametrize(
    "start", ["=", "+", "-", "@", "\t", "\uff1d", "\uff0b", "\uff0d", "\uff20", " =", "\ufeff\u3000@"]
)
def test_a_text_that_a_spreadsheet_would_run_is_marked(start):
    evil = f'{start}HYPERLINK("http://evil","x")'

    rows = cells_of(table({evil: evil, "event": f"{start}1+1"}))

    assert rows[0][-1] == f"'{evil}"
    assert rows[1][-1] == f"'{evil}"
    assert rows[1][0] == f"'{start}1+1"


@tries
@given(text=texts)
def test_no_text_cell_begins_like_a_formula_or_breaks_its_line(text):
    for found in (cell(text), cell([text]), cell({text: text})):
        assert "\n" not in found
        assert "\r" not in found
        assert "\0" not in found
        shown = cells_of(found + "\n")[0][0] if found else ""
        assert not shown.startswith(("=", "+", "-", "@", "\t"))


@tries
@given(record=st.dictionaries(texts, texts | st.integers() | st.booleans(), min_size=1, max_size=8))
def test_any_names_and_texts_are_read_back_as_they_were(record):
    record.pop("non_finite", None)
    header, row = cells_of(table(record))

    assert len(set(header)) == len(header)
    for name, value in record.items():
        shown = _as_shown(name)
        if [_as_shown(other) for other in record].count(shown) == 1:
            assert row[header.index(shown)] == (_as_shown(value) if isinstance(value, str) else str(value))


def test_a_number_with_a_unit_is_no_formula_and_one_with_a_cell_is():
    plain = ["+5.0 s", "-1 min 05 s", "-3 %", "-2.5e-4"]

    assert [no_formula(text) for text in plain] == plain
    assert all(no_formula(text)[0] == "'" for text in ("+A1", "+5 A1", "-1 s+A1", "-1 sum(a)", "+5 s!a"))


def _as_shown(text):
    return no_formula(text.replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\0"))


def test_two_names_with_the_same_header_share_a_column():
    columns = Columns()
    columns.add_new_of({"a\nb": 1})

    assert columns.add_new_of({"a\\nb": 2}) == 0
    assert columns.row({"a\\nb": 2})[-1] == "2"


def test_columns_of_an_adopted_header_are_found_again_by_odd_names():
    odd = ["a\nb", "=x", "'=x", "'", '"', "a,b", "é\u2028", "", "y" * 5000, "z_" * 2500, "\\n"]
    record = {name: number for number, name in enumerate(odd)}
    columns = Columns()
    columns.add_new_of(record)
    adopted = Columns(next(csv.reader([columns.header()])))

    assert adopted.add_new_of(record) == 0
    assert adopted.names == columns.names
    assert adopted.row(record) == columns.row(record)


@pytest.mark.parametrize("text", ["x" * 60_000, "x y" * 20_000, "=" * 60_000, "é" * 30_000])
def test_a_long_text_is_cut_and_says_how_long_it_was(text):
    found = cell(text)

    assert len(found) < 2100
    assert f"[{len(text)} characters]" in found


def test_lists_and_mappings_are_one_cell_of_json():
    assert cells_of(cell({"a": [1, None, "x,\ny"]}) + "\n") == [['{"a":[1,null,"x,\\ny"]}']]


def test_a_start_brings_the_columns_of_the_end_also_behind_a_record_with_the_same_fields():
    columns = Columns()
    columns.add_new_of({"event": "step", "train_loss": 0.5})
    columns.add_new_of({"event": "start", "train_loss": 0.5})

    assert "status" in columns.names
