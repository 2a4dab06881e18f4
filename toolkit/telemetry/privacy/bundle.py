"""A zip of a run that is safe to post: what may be shared of its records, and the table built from them."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from toolkit.telemetry.privacy.diff_masking import mask_diff
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.privacy.redaction import Redactor
from toolkit.telemetry.privacy.secret_shapes import mask_text
from toolkit.telemetry.privacy.shareable import Shareable
from toolkit.telemetry.privacy.source_masking import mask_code
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.evidence.code_snapshot import texts_of
from toolkit.telemetry.runfolder.evidence.output_log import OutputLog
from toolkit.telemetry.runfolder.labels import MAX_NAME_LENGTH, Labels, LabelsError, read_labels, write_labels
from toolkit.telemetry.runfolder.layout import (
    CODE,
    LABELS,
    MANIFEST,
    METRICS_CSV,
    METRICS_JSONL,
    OUTPUT_LOG,
    OWN_NAMES,
    RANKS,
    SAMPLES,
    other_ranks,
    rank_file,
    safe_run_name,
)
from toolkit.telemetry.runfolder.manifest import (
    Manifest,
    ManifestError,
    Session,
    read_manifest,
    write_manifest,
)
from toolkit.telemetry.runfolder.reader import BadLine, blocks_of, lines_of, parse_line
from toolkit.telemetry.runfolder.table.csv_table import build_table, table_form

INCLUDED: Final = ("text", "output", "code")
"""What a bundle has only if it is asked for."""
LEFT_OUT: Final = "left_out.json"
README: Final = "README.txt"
NAME: Final = "shared-run"
"""The name of every shared run, unless texts are included."""

_KNOWN: Final = frozenset(
    {
        *OWN_NAMES,
        *(SAMPLES, "artifacts", "checkpoints", "completions", "files", "media", "tables"),
    }
)
"""Names that may appear in the list of omitted files; any other name may be private itself."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_LINES_AT_ONCE: Final = 10_000
_FIRST_DAY: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold; the real times are only in the records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a bundle."""

    folder: str
    """The folder that it unpacks to."""
    members: tuple[str, ...]
    records: Mapping[str, int]
    """How many records each of its record files has."""
    left_out: tuple[str, ...]
    """Files."""
    lines_left_out: int
    fields: Mapping[str, int]
    """How many values were left out, by field."""
    names_replaced: int
    """How many names of metrics and settings read `name_1`, `name_2`."""


class RunBundle:
    """A run as it can be shared, read a megabyte at a time; with what of `INCLUDED` is asked for, redacted.

    Raises:
        OSError: the records are missing or cannot be read.
    """

    def __init__(self, folder: Path, *, include: Collection[str] = ()) -> None:
        self._folder = Path(os.path.abspath(folder))
        self._left_out: list[str] = []
        self._manifest = self._read_manifest()
        sessions = self._manifest.sessions if self._manifest else ()
        redactor = Redactor(names=[session.host for session in sessions])
        text, output, code = (redactor if name in include else None for name in INCLUDED)
        self._redactor, self._output_redactor, self._code_redactor = text, output, code
        self._shareable = Shareable(
            redactor=self._redactor,
            # A relative path starts where the training ran, most likely next to its logs.
            local_folders=(Path(), self._folder, *list(self._folder.parents)[:2]),
        )
        ours = {LABELS: text, OUTPUT_LOG: output, CODE: code}
        self._left_out += _names_of_others(self._folder, [name for name, is_in in ours.items() if is_in])
        self._counts: dict[str, int] = {}
        self._bad_lines = 0
        display_name = self._manifest.display_name if self._manifest else self._folder.name
        self._display_name = self._redactor.redact_text(display_name) if self._redactor else NAME
        self.name = safe_run_name(self._display_name)

    def preview(self) -> Contents:
        """Return what the bundle would contain, without writing anything."""
        with tempfile.TemporaryDirectory(prefix="share-") as folder:
            return self._write_folder(Path(folder))

    def write(self, target: Path) -> Contents:
        """Write the bundle to `target`, a new file that only its owner can read, and return its contents.

        Raises:
            OSError: it exists already, or cannot be written.
        """
        with tempfile.TemporaryDirectory(prefix=".share-", dir=target.parent) as temporary:
            folder = Path(temporary)
            contents = self._write_folder(folder)
            with (
                os.fdopen(os.open(target, _NEW, 0o600), "wb") as file,
                zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
            ):
                for name in contents.members:
                    # Neither when it was made nor by whom.
                    entry = zipfile.ZipInfo(f"{self.name}/{name}", _FIRST_DAY)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    entry.create_system, entry.external_attr = 3, 0o644 << 16
                    with (
                        (folder / name).open("rb") as source,
                        archive.open(entry, "w", force_zip64=True) as member,
                    ):
                        shutil.copyfileobj(source, member, 1024 * 1024)
        return contents

    def _write_folder(self, folder: Path) -> Contents:
        """Write the run as it is shared into an empty folder."""
        members = [METRICS_JSONL, METRICS_CSV]
        self._write_records(folder, METRICS_JSONL)
        build_table(folder / METRICS_JSONL, folder / METRICS_CSV, form=table_form(self._folder))
        for path in _rank_files(self._folder):
            members.append(path.relative_to(self._folder).as_posix())
            self._write_records(folder, members[-1])
        if self._manifest is not None:
            write_manifest(folder, self._shared_manifest(self._manifest))
            members.append(MANIFEST)
        labels = self._shared_labels()
        if labels is not None:
            write_labels(folder, labels)
            members.append(LABELS)
        if self._output_redactor is not None and self._write_output(folder / OUTPUT_LOG):
            members.append(OUTPUT_LOG)
        if self._code_redactor is not None:
            for name, text in texts_of(self._folder).items():
                # Masked when it was kept, perhaps by an older version; paths and names may be in it.
                text = mask_diff(text, _mask_code, {}) if name.endswith(".diff") else text
                text = "\n".join(_mask_code(name, text.split("\n")))
                _write(folder / name, self._code_redactor.redact_text(text).encode("utf-8", "replace"))
                members.append(name)
        contents = Contents(
            folder=self.name,
            members=(*members, LEFT_OUT, README),
            records=dict(self._counts),
            left_out=tuple(self._left_out),
            lines_left_out=self._bad_lines,
            fields=dict(self._shareable.left_out.most_common()),
            names_replaced=self._shareable.renamed,
        )
        _write(folder / LEFT_OUT, _list_of(contents))
        _write(folder / README, _readme(contents).encode())
        return contents

    def _write_records(self, folder: Path, name: str) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        with (folder / name).open("xb") as file:
            file.writelines(self._lines(name))

    def _write_output(self, target: Path) -> bool:
        """Write what was printed, as it is shared; return whether there is any."""
        with OutputLog(self._folder) as log, target.open("x", encoding="utf-8") as file:
            assert self._output_redactor is not None
            for start in range(0, log.count, _LINES_AT_ONCE):
                for line in log.lines(start, start + _LINES_AT_ONCE):
                    file.write(f"{self._output_redactor.redact_text(mask_text(line.text))}\n")
            return log.exists

    def _lines(self, name: str) -> Iterator[bytes]:
        """Yield the lines of a record file as they are shared; invalid ones are counted and omitted."""
        self._counts[name] = 0
        for block in blocks_of(self._folder / name):
            self._bad_lines += block.long_line is not None
            for position, line in lines_of(block):
                record = parse_line(position, line)
                if isinstance(record, BadLine):
                    self._bad_lines += 1
                    continue
                self._counts[name] += 1
                yield encode(self._shareable.record(record))

    def _read_manifest(self) -> Manifest | None:
        try:
            return read_manifest(self._folder)
        except FileNotFoundError:
            return None
        except (OSError, ManifestError):
            self._left_out.append(f"{MANIFEST}, which cannot be read")
            return None

    def _shared_manifest(self, manifest: Manifest) -> Manifest:
        shareable = self._shareable
        return replace(
            manifest,
            run_id=shareable.text(manifest.run_id, "run_id") or NAME,
            name=self.name,
            display_name=self._display_name,
            project=shareable.value(manifest.project, "project"),
            tags=tuple(shareable.value(list(manifest.tags), "tags")),
            sessions=tuple(self._shared_session(session) for session in manifest.sessions),
            control={},
            diagnostics=shareable.value(dict(manifest.diagnostics), "diagnostics"),
            summary=shareable.value(dict(manifest.summary), "summary"),
            config=None if manifest.config is None else shareable.value(dict(manifest.config), "config"),
            evaluations={shareable.name(name): value for name, value in manifest.evaluations.items()},
            other={},
        )

    def _shared_session(self, session: Session) -> Session:
        return Session(
            session=session.session,
            started=session.started,
            pid=session.pid,
            ended=session.ended,
            status=self._shareable.value(session.status, "status") or "unknown",
            reason=self._shareable.value(session.reason, "reason"),
        )

    def _shared_labels(self) -> Labels | None:
        """Return what people wrote about the run: free text, and therefore only included with the others."""
        if self._redactor is None:
            return None
        try:
            labels = read_labels(self._folder)
        except LabelsError:
            self._left_out.append(f"{LABELS}, which cannot be read")
            return None
        if labels == Labels():
            return None
        name, tags, notes = self._redactor.redact([labels.display_name, labels.tags, labels.notes])
        return Labels(display_name=name and name[:MAX_NAME_LENGTH], tags=tags, notes=notes)


def _mask_code(name: str, lines: list[str]) -> list[str]:
    return mask_code(name, lines, Masker().mask_lines)


def _list_of(contents: Contents) -> bytes:
    """Return what was left out as JSON: fields and numbers, never the values."""
    listed = {
        "fields": dict(contents.fields),
        "names_replaced": contents.names_replaced,
        "lines": contents.lines_left_out,
        "files": list(contents.left_out),
    }
    return orjson.dumps(listed, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _readme(contents: Contents) -> str:
    return f"""\
A training run, as far as it can be posted.

metrics.jsonl    the records of the run, one JSON object a line
metrics.csv      the same as one wide table: pandas.read_csv opens it
run.json         what the run is, and how it ended
left_out.json    how many values of which field were left out

Put this folder into a folder of runs, and the dashboard shows it:
  telemetry doctor .
  python run_dashboard.py --log-dir <the folder above this one>

Names of metrics and settings that are not made of ordinary words read name_1, name_2: {contents.names_replaced:,}.
Values left out: {sum(contents.fields.values()):,}. Invalid lines left out: {contents.lines_left_out:,}.
Files left out: {", ".join(contents.left_out) or "none"}.
"""


def _write(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def _rank_files(folder: Path) -> list[Path]:
    try:
        return [rank_file(folder, rank) for rank in other_ranks(folder)]
    except OSError:
        return []


def _names_of_others(folder: Path, included: Iterable[str]) -> list[str]:
    """Return the omitted files of the run folder, by name if the name is one of ours."""
    ours = {METRICS_JSONL, METRICS_CSV, MANIFEST, RANKS, *included}
    try:
        others = sorted(name for name in os.listdir(folder) if name not in ours)
    except OSError:
        return []
    named = [name for name in others if name in _KNOWN]
    more = len(others) - len(named)
    return [*named, *([f"{more} other file{'s' if more > 1 else ''} or folders"] if more else [])]
