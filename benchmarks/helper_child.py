"""The helper process of the trial: follows a run's records, writes its table and examines them.

It ends after its standard input, a pipe that the training process holds open, or that process itself has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).resolve().parent.parent
FINDINGS: Final = "findings.jsonl"
"""Its findings. Only the training process may write to the record file, and it does not read them in this trial."""

_INTERVAL_S: Final = 0.5
"""As long as the threads pause."""
_READ_BYTES: Final = 256 * 1024
_LOWEST_PRIORITY: Final = 19


class Helper:
    """A helper process for the run in `folder`, as the training process sees it."""

    def __init__(self, folder: Path, *, own_session: bool = True, only_pipe: bool = False) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.helper_child", str(folder)),
                str(0 if only_pipe else os.getpid()),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Else Ctrl-C reaches it too.
            start_new_session=own_session,
        )

    def close(self, timeout_s: float = 60.0) -> int:
        """Have it take what is left and end; return its exit status."""
        pipe: IO[bytes] | None = self.process.stdin
        assert pipe is not None
        pipe.close()
        return self.process.wait(timeout_s)


def follow(folder: Path, parent: int) -> None:
    """Follow the run in `folder` until process `parent` has ended; 0 trusts the pipe alone."""
    import json
    import select

    from toolkit.diagnostics.examiner import Examiner
    from toolkit.mirrors.csv_mirror import CsvMirror
    from toolkit.mirrors.findings import fields_of
    from toolkit.runfolder.csv_table import SHORT
    from toolkit.runfolder.key_values import KeyValues
    from toolkit.runfolder.layout import METRICS_JSONL, PRIVATE
    from toolkit.runfolder.reader import Cursor, read_from

    record_file = folder / METRICS_JSONL
    table, examiner, key_values = CsvMirror(folder, mode=PRIVATE.file, form=SHORT), Examiner(), KeyValues()
    # The detectors take all records; the table leaves out those that it has a row for.
    table.start_at()
    cursor = Cursor()
    with open(folder / FINDINGS, "a", encoding="utf-8") as findings:
        is_last = False
        while not is_last:
            if select.select([0], [], [], _INTERVAL_S)[0]:
                is_last = not os.read(0, 1)
            # A process that the trainer forked holds the pipe open, too.
            is_last = is_last or (parent != 0 and os.getppid() != parent)
            while record_file.exists():
                chunk = read_from(record_file, cursor, max_bytes=_READ_BYTES)
                if chunk.records:
                    # One reading serves all of them; the threads read the file twice.
                    table.write(chunk.records)
                    key_values.take(chunk.records)
                    for finding in examiner.take(chunk.records):
                        findings.write(json.dumps(fields_of(finding), default=str) + "\n")
                        findings.flush()
                if chunk.next_offset == cursor.offset and not chunk.replaced:
                    break
                cursor = chunk.cursor
    table.close()


if __name__ == "__main__":
    os.nice(_LOWEST_PRIORITY)
    follow(Path(sys.argv[1]), int(sys.argv[2]))
