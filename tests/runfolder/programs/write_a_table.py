"""Writes records and their rows at full speed until it is killed.

python write_a_table.py FOLDER
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.table.csv_table import CsvTable

folder, rng, seq = Path(sys.argv[1]), random.Random(5), 0
mirror = CsvTable(folder / "metrics.jsonl", folder / "metrics.csv")
with (folder / "metrics.jsonl").open("ab", buffering=0) as records:
    while True:
        batch = []
        for _ in range(rng.randint(1, 30)):
            record = {
                "event": "step",
                "time": 1.7e9 + seq / 3,
                "seq": seq,
                "global_step": seq,
                "train_loss": 1 / (seq + 3),
                "lr": 1e-4 / 3,
            }
            if rng.random() < 0.02:
                record["note"] = 'a "quoted", text ' * rng.choice([1, 10, 60, 110])
            if rng.random() < 0.0005:
                record |= dict.fromkeys(("a", "b", "c"), "longer than a page" * 100)
            if rng.random() < 0.01 and seq < 1000:
                record[f"new/{seq}"] = 1.5
            batch.append(record)
            seq += 1
        records.write(b"".join(map(encode, batch)))
        mirror.write(batch)
