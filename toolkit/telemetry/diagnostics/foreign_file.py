"""The records of a JSONL or CSV file of another program, as the detectors take them."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.telemetry.diagnostics.metric_aliases import LOSS, VAL_LOSS, name_of
from toolkit.telemetry.importers.formats.table_file import NoRecordsError, TableFile
from toolkit.telemetry.runfolder.records import EPOCH, EVAL, STEP, Record

__all__ = ["ForeignFile", "NoRecordsError"]


class ForeignFile(TableFile):
    """The records of one file, with `global_step` and `event` as ours have them."""

    def chunks(self) -> Iterator[list[Record]]:
        """Yield the records in order, some thousand at a time; unreadable lines are counted.

        Raises:
            OSError: the file is missing, unreadable, or no regular file.
            NoRecordsError: it is a CSV file without a header.
        """
        for chunk in super().chunks():
            for record in chunk:
                if "event" not in record:
                    record["event"] = _kind_of(record)
            yield chunk


def _kind_of(record: Record) -> str:
    if "train_runtime" in record:
        # The last line of a Hugging Face log: its train_loss is the mean over the whole run.
        return EPOCH
    has_only_val = name_of(VAL_LOSS, record) in record and name_of(LOSS, record) not in record
    return EVAL if has_only_val else STEP
