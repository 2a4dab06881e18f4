"""Rows of a table are read as far as they go."""

from __future__ import annotations

from tests.importers.reading import only_run, points_in
from toolkit.telemetry.importers.source import NO_STEP, read_all


def everything(path):
    source = only_run(path)
    batches = [*read_all(source)]
    counts = [dict(getattr(batch, kind)) for batch in batches for kind in ("passed_over", "not_numbers")]
    return points_in(batches), counts


def test_an_exported_table_with_odd_cells_is_read_as_far_as_it_goes(tmp_path):
    path = tmp_path / "points.csv"
    header = "run,session,event,step,time,metric,value\n"
    path.write_text(header + "a,inf,step,1,2.5,1,0.5\nb,nan,x,,,loss,nan\na,1,eval,2,,val,text\n")

    points, counts = everything(path)
    assert points == {(0, 0, "1"): [(1, "2.5", "0.5")], (1, 0, "loss"): [(NO_STEP, "nan", "nan")]}
    assert counts[0] == {(0, "rows without a number"): 1}
