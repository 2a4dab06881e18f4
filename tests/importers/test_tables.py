"""Rows of a table are read column by column, and mean what single rows mean."""

from __future__ import annotations

import random

from tests.importers.reading import only_run, points_in
from toolkit.telemetry.importers.formats import table_file
from toolkit.telemetry.importers.source import NO_STEP, read_all

CELLS = ["0.5", "1e400", "-7", "", " 2.5", "nan", "-inf", "Infinity", "9" * 20, "1_0", "0x1p3", "٣"]
TEXTS = ["yes", "2024-01-01", "true", "", "\N{SNOWMAN}", " "]


def tables():
    """Yield tables of every kind of cell, most of them with one odd thing only."""
    for seed in range(60):
        chance = random.Random(seed)
        names = chance.sample(
            ["loss", "epoch", "time", "note", "global_step", "x y", "lr"], chance.randint(1, 5)
        )
        names.insert(chance.randrange(len(names) + 1), chance.choice(["step", "Step", "nothing"]))
        delimiter = chance.choice(",;\t")
        cells = chance.sample(CELLS, 1 + seed % 4)
        lines = [delimiter.join(names)]
        for row in range(chance.randint(1, 30)):
            found = {
                "step": str(row),
                "Step": f"{row}.0",
                "note": chance.choice(TEXTS),
                "time": f"17{row:08}.25",
            }
            lines.append(delimiter.join(found.get(name, chance.choice(cells)) for name in names))
        odd = ["", delimiter * 9, '"two', 'lines"', "short", f"{'1' + delimiter} ", "no number", "\r"]
        for _ in range(seed % 3):
            lines.insert(chance.randint(1, len(lines)), chance.choice(odd))
        yield (chance.choice(["\n", "\r\n"]).join(lines) + "\n").encode()


def everything(path):
    source = only_run(path)
    batches = [*read_all(source)]
    counts = [dict(getattr(batch, kind)) for batch in batches for kind in ("passed_over", "not_numbers")]
    return points_in(batches), counts


def test_rows_taken_together_are_the_rows_taken_one_by_one(tmp_path, monkeypatch):
    path = tmp_path / "metrics.csv"
    taken = 0
    take = table_file.TableSource._take_rows

    def counted(*arguments):
        nonlocal taken
        is_taken = take(*arguments)
        taken += is_taken
        return is_taken

    for data in tables():
        path.write_bytes(data)
        with monkeypatch.context() as patch:
            patch.setattr(table_file.TableSource, "_take_rows", lambda *_: False)
            expected = everything(path)
        with monkeypatch.context() as patch:
            patch.setattr(table_file.TableSource, "_take_rows", counted)
            assert everything(path) == expected, data

    assert taken > 10


def test_an_exported_table_with_odd_cells_is_read_as_far_as_it_goes(tmp_path):
    path = tmp_path / "points.csv"
    header = "run,session,event,step,time,metric,value\n"
    path.write_text(header + "a,inf,step,1,2.5,1,0.5\nb,nan,x,,,loss,nan\na,1,eval,2,,val,text\n")

    points, counts = everything(path)
    assert points == {(0, 0, "1"): [(1, "2.5", "0.5")], (1, 0, "loss"): [(NO_STEP, "nan", "nan")]}
    assert counts[0] == {(0, "rows without a number"): 1}
