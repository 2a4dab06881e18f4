"""A zip of a run that is safe to post: what may be shared of its records, and the table built from them."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

import orjson

from toolkit.telemetry.privacy.diff_masking import mask_diff
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.privacy.redaction import Redactor
from toolkit.telemetry.privacy.secret_shapes import mask_text
from toolkit.telemetry.privacy.shareable import Shareable
from toolkit.telemetry.privacy.source_masking import mask_code
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.evidence.code_snapshot import CODE, texts_of
from toolkit.telemetry.runfolder.evidence.output_log import OutputLog
from toolkit.telemetry.runfolder.labels import MAX_NAME_LENGTH, Labels, LabelsError, read_labels, write_labels
from toolkit.telemetry.runfolder.layout import (
    CONTROL,
    LABELS,
    MANIFEST,
    METRICS_CSV,
    METRICS_JSONL,
    ONE_LOGGER_FILE,
    OUTPUT_LOG,
    OUTPUT_TIMES,
    RANKS,
    SAMPLES,
    TENSORBOARD,
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

LEFT_OUT: Final = "left_out.json"
README: Final = "README.txt"
NAME: Final = "shared-run"
"""The name of every shared run, unless texts are included."""

_RANK_FILE = re.compile(r"[0-9]{5}\.jsonl")
_KNOWN: Final = frozenset(
    {
        *(CONTROL, LABELS, TENSORBOARD, ONE_LOGGER_FILE, SAMPLES, OUTPUT_LOG, OUTPUT_TIMES),
        *("artifacts", "checkpoints", CODE, "completions", "files", "media", "tables"),
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
    records: Mapping[str, int]
    """How many records each of its record files has."""
    members: tuple[str, ...]
    fields: Mapping[str, int]
    """How many values were left out, by field."""
    renamed: int
    """How many names of metrics and settings were replaced."""
    lines_left_out: int
    left_out: tuple[str, ...]
    """Files."""


class RunBundle:
    """A run as it can be shared, read a megabyte at a time; with `with_text`, its other texts too, redacted.

    With `with_output`, also what rank 0 printed, redacted, without the times of its lines.

    Raises:
        OSError: the records are missing or cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        *,
        organisations: Iterable[str] = (),
        with_text: bool = False,
        with_output: bool = False,
        with_code: bool = False,
    ) -> None:
        self._folder = Path(os.path.abspath(folder))
        self._left_out: list[str] = []
        self._manifest = self._read_manifest()
        sessions = self._manifest.sessions if self._manifest else ()
        redactor = Redactor(names=[session.host for session in sessions])
        self._redactor = redactor if with_text else None
        self._output_redactor = redactor if with_output else None
        self._code_redactor = redactor if with_code else None
        self._shareable = Shareable(
            redactor=self._redactor,
            organisations=organisations,
            # A relative path starts where the training ran, most likely next to its logs.
            local_folders=(Path(), self._folder, *list(self._folder.parents)[:2]),
        )
        self._files = [METRICS_JSONL, *_rank_files(self._folder)]
        ours = {LABELS: with_text, OUTPUT_LOG: with_output, CODE: with_code}
        self._left_out += _names_of_others(self._folder, [name for name, is_in in ours.items() if is_in])
        self._counts: dict[str, int] = {}
        self._bad_lines = 0
        display_name = self._manifest.display_name if self._manifest else self._folder.name
        self._display_name = self._redactor.redact_text(display_name) if self._redactor else NAME
        self.name = safe_run_name(self._display_name)

    def preview(self) -> Contents:
        """Return what the bundle would contain, without writing anything."""
        with tempfile.TemporaryFile() as file, tempfile.TemporaryDirectory(prefix="share-") as folder:
            return self._write_zip(file, Path(folder))

    def write(self, target: Path) -> Contents:
        """Write the bundle to `target`, completely or not at all, and return its contents.

        Raises:
            FileExistsError: it exists already.
            OSError: it cannot be written.
        """
        if os.path.lexists(target):
            raise FileExistsError(f"{target} exists already")
        with tempfile.TemporaryDirectory(prefix=".share-", dir=target.parent) as temporary:
            folder = Path(temporary)
            unfinished = folder / "bundle.zip"
            # Readable by its owner only, until they have reviewed it.
            with os.fdopen(os.open(unfinished, _NEW, 0o600), "wb") as file:
                contents = self._write_zip(file, folder)
            _put_in_place(unfinished, target)
        return contents

    def _write_zip(self, file: BinaryIO, folder: Path) -> Contents:
        members: list[str] = []

        def add(name: str, path: Path) -> None:
            with path.open("rb") as source, archive.open(self._entry(name), "w", force_zip64=True) as member:
                shutil.copyfileobj(source, member, 1024 * 1024)
            path.unlink()
            members.append(name)

        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in self._files:
                path = folder / Path(name).name
                with path.open("xb") as lines:
                    lines.writelines(self._lines(name))
                if name == METRICS_JSONL:
                    build_table(path, folder / METRICS_CSV, form=table_form(self._folder))
                add(name, path)
                if name == METRICS_JSONL:
                    add(METRICS_CSV, folder / METRICS_CSV)
            if self._manifest is not None:
                write_manifest(folder, self._shared_manifest(self._manifest))
                add(MANIFEST, folder / MANIFEST)
            labels = self._shared_labels()
            if labels is not None:
                write_labels(folder, labels)
                add(LABELS, folder / LABELS)
            if self._output_redactor is not None and self._write_output(folder / OUTPUT_LOG):
                add(OUTPUT_LOG, folder / OUTPUT_LOG)
            if self._code_redactor is not None:
                for name, text in texts_of(self._folder).items():
                    # Masked when it was kept, perhaps by an older version; paths and names may be in it.
                    text = mask_diff(text, _mask_code, {}) if name.endswith(".diff") else text
                    text = "\n".join(_mask_code(name, text.split("\n")))
                    archive.writestr(self._entry(name), self._code_redactor.redact_text(text))
                    members.append(name)
            contents = Contents(
                folder=self.name,
                records=dict(self._counts),
                members=(*members, LEFT_OUT, README),
                fields=dict(self._shareable.left_out.most_common()),
                renamed=self._shareable.renamed,
                lines_left_out=self._bad_lines,
                left_out=tuple(self._left_out),
            )
            archive.writestr(self._entry(LEFT_OUT), _list_of(contents))
            archive.writestr(self._entry(README), _readme(contents))
        return contents

    def _write_output(self, target: Path) -> bool:
        """Write what was printed, as it is shared; return whether there is any."""
        with OutputLog(self._folder) as log, target.open("x", encoding="utf-8") as file:
            assert self._output_redactor is not None
            for start in range(0, log.count, _LINES_AT_ONCE):
                for line in log.lines(start, start + _LINES_AT_ONCE):
                    file.write(f"{self._output_redactor.redact_text(mask_text(line.text))}\n")
            return log.exists

    def _entry(self, name: str) -> zipfile.ZipInfo:
        entry = zipfile.ZipInfo(f"{self.name}/{name}", _FIRST_DAY)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.create_system = 3
        entry.external_attr = 0o644 << 16
        return entry

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
        "names_replaced": contents.renamed,
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

Names of metrics and settings that are not made of ordinary words read name_1, name_2: {contents.renamed:,}.
Values left out: {sum(contents.fields.values()):,}. Invalid lines left out: {contents.lines_left_out:,}.
Files left out: {", ".join(contents.left_out) or "none"}.
"""


def _rank_files(folder: Path) -> list[str]:
    try:
        if not stat.S_ISDIR(os.lstat(folder / RANKS).st_mode):
            return []
        names = sorted(os.listdir(folder / RANKS))
    except OSError:
        return []
    return [f"{RANKS}/{name}" for name in names if _RANK_FILE.fullmatch(name)]


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


def _put_in_place(unfinished: Path, target: Path) -> None:
    """Rename a file to its final name, unless that exists by now."""
    try:
        os.link(unfinished, target)
    except FileExistsError:
        raise
    except OSError:
        # Some file systems have no hard links; then there is a gap of microseconds.
        if os.path.lexists(target):
            raise FileExistsError(f"{target} exists already") from None
        os.replace(unfinished, target)
