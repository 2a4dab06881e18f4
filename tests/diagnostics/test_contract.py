"""What holds for every detector, on a run with the fault that it is for."""

from __future__ import annotations

import functools

import pytest

from tests.diagnostics.synthetic_runs import changed, detect, detect_in_chunks
from tests.diagnostics.what_is_said import fault_of, import_tables
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE, REPORTED_BY_RUNS

LOSSES = ("train_loss", "val_loss")
OF_SEVERAL_FILES = {"rank_nan", "rank_dead", "rank_hung", "rank_silent"}
"""They need the files of other ranks, and have their own tests."""
KINDS = sorted(set(import_tables()) - OF_SEVERAL_FILES)


fault = functools.cache(fault_of)


@functools.cache
def found_in(kind):
    return detect(fault(kind)[0], kind)


def test_every_kind_that_records_show_has_a_fault_here():
    assert sorted(set(CATALOGUE) - set(REPORTED_BY_RUNS) - OF_SEVERAL_FILES) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_the_fault_is_found_after_it_began_and_not_before(kind):
    records, begins = fault(kind)
    before = [record for record in records if record.get("global_step", 0) < begins]

    assert [finding for finding in found_in(kind) if finding.noticed_step >= begins]
    assert detect(before, kind) == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nan"])
def test_three_records_say_nothing(kind):
    records, begins = fault(kind)
    later = [record for record in records if record.get("global_step", 0) >= begins]

    assert detect(later[:3], kind) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_findings_are_the_same_however_many_records_come_at_once(kind):
    # tests/diagnostics/test_examiner.py gives them one by one.
    assert detect_in_chunks(fault(kind)[0], 37, kind) == found_in(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-2, 1e5])
def test_the_unit_of_the_losses_does_not_matter(kind, scale):
    records, _ = fault(kind)
    scaled = records
    for name in LOSSES:
        scaled = changed(scaled, name, lambda step, value: value * scale)

    assert [_place(finding) for finding in detect(scaled, kind)] == [*map(_place, found_in(kind))]


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_other_types_change_nothing(kind):
    records, _ = fault(kind)
    names = {name for record in records for name in record} - {"event", "global_step", "session", "rank"}
    odd = [None, "text", [1], {"a": 1}]
    mixed = []
    for number, record in enumerate(records):
        mixed.append(record)
        if number % 20 == 19:
            mixed.append(
                {
                    **dict.fromkeys(names, odd[number // 20 % 4]),
                    **{k: record[k] for k in record if k not in names},
                }
            )

    assert [finding.kind for finding in detect(mixed, kind)] == [finding.kind for finding in found_in(kind)]


def _place(finding):
    return finding.kind, finding.severity, finding.start_step, finding.noticed_step, finding.state
