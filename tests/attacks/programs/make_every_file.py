"""Makes every file that we make, under each umask, and writes down their modes.

python make_every_file.py FOLDER UMASK...
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.compat import wandb
from toolkit.telemetry.runfolder.control import write_request
from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runfolder.reader import Cursor
from toolkit.telemetry.runs.columns.column_cache import ColumnCache
from toolkit.telemetry.runs.columns.run_columns import RunColumns
from toolkit.telemetry.runs.sources.local_store import LocalStore


def make(place, umask):
    os.umask(umask)
    os.chdir(place)
    log = TelemetryLogger(
        "r", log_dir=place / "deep" / "logs", system=False, tensorboard=True, one_logger_file=True
    )
    log.log_start(config={"note": "configuration"})
    for step in range(20):
        with log.span("forward"):
            log.log_step(step, train_loss=1.0)
    log.log_completion(3, prompt="p", completion="c")
    log.log_image("picture", [[[0, 0, 0]]], step=3)
    log.log_table("table", [{"a": 1}], step=3)
    log.flush()
    made = {}
    for session in json.loads((log.run_folder / "run.json").read_text())["sessions"]:
        made["journal"] = os.stat(session["journal"]).st_mode & 0o777
    write_request(log.run_folder, log_every=50)
    log.close()
    main(["repair", str(log.run_folder)])
    main(["export", "--to", "zip", str(log.run_folder), "-o", "shared.zip"])
    main(["export", "--to", "trace", str(log.run_folder), "-o", "trace.json"])
    for format_name in ("tensorboard", "wandb", "csv"):
        out = str(place / "exported" / format_name)
        assert main(["export", str(log.run_folder), "--to", format_name, "--out", out]) == 0
    run = wandb.init(dir=place / "deep", name="w", mode="offline", telemetry={"system": False, "csv": False})
    run.log({"rows": wandb.Table(columns=["a"], data=[[1]]), "page": wandb.Html("text")})
    wandb.finish()
    store = LocalStore([place / "deep" / "logs"], cache_dir=None)
    store.label("r", Labels(notes="private"))
    ColumnCache(place / "cache" / "ours").prepare(
        store.card("r").path / "metrics.jsonl", RunColumns(), Cursor()
    )()
    store.delete("r")
    made |= {
        str(path.relative_to(place)): path.lstat().st_mode & 0o777
        for path in place.rglob("*")
        if not path.is_symlink()
    }
    (place / "made.json").write_text(json.dumps(made))


for umask in sys.argv[2:]:
    if not (pid := os.fork()):
        place = Path(sys.argv[1]) / umask
        place.mkdir()
        make(place, int(umask, 8))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
