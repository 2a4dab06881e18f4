"""A zip of a run that is safe to post: its redacted records, the table built from them, nothing else."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from toolkit.core.formatting import words
from toolkit.privacy.bundle_contents import README, REDACTIONS, Contents, list_of_redactions, readme
from toolkit.privacy.harmless_words import is_plain
from toolkit.privacy.model_names import PUBLIC_ORGANISATIONS
from toolkit.privacy.pseudonyms import PLACEHOLDER
from toolkit.privacy.redaction import Redactor
from toolkit.runfolder.blocks import blocks_of
from toolkit.runfolder.codec import encode
from toolkit.runfolder.labels import (
    MAX_NAME_LENGTH,
    MAX_TAG_LENGTH,
    Labels,
    LabelsError,
    read_labels,
    write_labels,
)
from toolkit.runfolder.layout import (
    CONTROL,
    LABELS,
    MANIFEST,
    METRICS_CSV,
    METRICS_JSONL,
    ONE_LOGGER_FILE,
    RANKS,
    SAMPLES,
    TENSORBOARD,
    safe_run_name,
)
from toolkit.runfolder.manifest import Manifest, ManifestError, read_manifest, write_manifest
from toolkit.runfolder.reader import BadLine, lines_of, parse_line
from toolkit.runfolder.records import Record
from toolkit.runfolder.repair import build_table, table_form

_RANK_FILE = re.compile(r"[0-9]{5}\.jsonl")
_KNOWN: Final = frozenset(
    {
        CONTROL,
        TENSORBOARD,
        ONE_LOGGER_FILE,
        SAMPLES,
        "artifacts",
        "checkpoints",
        "completions",
        "files",
        "media",
        "tables",
    }
)
"""Names that may appear in the list of omitted files; any other name may be private itself."""
_NUMBERS: Final = frozenset({int, float, bool, type(None)})
_MOST_SHAPES: Final = 4_096
_MOST_TEXTS: Final = 40
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_FIRST_DAY: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold; the real times are only in the records."""


class RunBundle:
    """A run, redacted so that it can be shared.

    It is read twice, a megabyte at a time: once to collect private names, and once to write it. What a live run writes
    in the meantime is omitted.

    Raises:
        OSError: the records are missing, cannot be read, or were replaced in the meantime.
    """

    def __init__(
        self,
        folder: Path,
        *,
        environ: Mapping[str, str] | None = None,
        allowed_organisations: Iterable[str] = PUBLIC_ORGANISATIONS,
    ) -> None:
        self._folder = Path(os.path.abspath(folder))
        self._redactor = Redactor(
            environ=environ,
            allowed_organisations=allowed_organisations,
            # A relative path starts where the training ran, most likely next to its logs.
            local_folders=(Path(os.curdir), self._folder, *list(self._folder.parents)[:2]),
        )
        self._manifest: Manifest | None = None
        self._labels: Labels | None = None
        self._left_out: list[str] = []
        self._ends: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._bad_lines = 0
        self._harmless: set[tuple[Any, ...]] = set()
        self._texts: dict[str, str] = {}
        self._learn()
        redacted = self._redactor.rewrite({"run_name": self._display_name()})
        self.name = safe_run_name("".join(redacted.values()))

    def preview(self) -> Contents:
        """Return what the bundle would contain, without writing anything."""
        for name in self._ends:
            for _ in self._redacted_lines(name):
                pass
        self._redacted_manifest()
        self._redacted_labels()
        return self._contents()

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
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in self._ends:
                path = folder / Path(name).name
                with path.open("xb") as lines:
                    lines.writelines(self._redacted_lines(name))
                self._add_file(archive, name, path)
                if name == METRICS_JSONL:
                    build_table(path, folder / METRICS_CSV, form=table_form(self._folder))
                    self._add_file(archive, METRICS_CSV, folder / METRICS_CSV)
                    (folder / METRICS_CSV).unlink()
                path.unlink()
            for name, write in ((MANIFEST, self._write_manifest), (LABELS, self._write_labels)):
                if write(folder):
                    self._add_file(archive, name, folder / name)
            contents = self._contents()
            archive.writestr(self._entry(REDACTIONS), list_of_redactions(contents))
            archive.writestr(self._entry(README), readme(contents))
        return contents

    def _add_file(self, archive: zipfile.ZipFile, name: str, path: Path) -> None:
        with path.open("rb") as source, archive.open(self._entry(name), "w", force_zip64=True) as member:
            shutil.copyfileobj(source, member, 1024 * 1024)

    def _entry(self, name: str) -> zipfile.ZipInfo:
        entry = zipfile.ZipInfo(f"{self.name}/{name}", _FIRST_DAY)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.create_system = 3
        entry.external_attr = 0o644 << 16
        return entry

    # ------------------------------------------------------------ reading

    def _learn(self) -> None:
        try:
            self._manifest = read_manifest(self._folder)
        except FileNotFoundError:
            pass
        except (OSError, ManifestError):
            self._left_out.append(f"{MANIFEST}, which cannot be read")
        try:
            self._labels = read_labels(self._folder)
        except LabelsError:
            self._left_out.append(f"{LABELS}, which cannot be read")
        for session in self._manifest.sessions if self._manifest else ():
            self._redactor.learn_name("host", session.host)
        for name in [METRICS_JSONL, *self._rank_files()]:
            end = 0
            for block in blocks_of(self._folder / name):
                end = block.cursor.offset
                for position, line in lines_of(block):
                    record = parse_line(position, line)
                    if isinstance(record, BadLine):
                        continue
                    self._redactor.learn_metrics(record)
                    if _shape(record) is None:
                        self._redactor.learn(record)
            self._ends[name] = end
        self._left_out += _names_of_others(self._folder)

    def _rank_files(self) -> list[str]:
        try:
            if not stat.S_ISDIR(os.lstat(self._folder / RANKS).st_mode):
                return []
            names = sorted(os.listdir(self._folder / RANKS))
        except OSError:
            return []
        return [f"{RANKS}/{name}" for name in names if _RANK_FILE.fullmatch(name)]

    def _redacted_lines(self, name: str) -> Iterator[bytes]:
        """Yield the redacted lines of a record file; invalid lines are counted and omitted."""
        count = 0
        end = self._ends[name]
        for block in blocks_of(self._folder / name):
            self._bad_lines += block.long_line is not None
            for position, line in lines_of(block):
                if position >= end:
                    break
                record = parse_line(position, line)
                if isinstance(record, BadLine):
                    self._bad_lines += 1
                    continue
                count += 1
                yield self._redacted_line(record)
            if block.cursor.offset >= end:
                break
        self._counts[name] = count

    def _redacted_line(self, record: Record) -> bytes:
        shape = _shape(record)
        if shape in self._harmless:
            # Encoded again all the same: a line may contain a key twice, of which a reader sees one.
            return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        redacted: Record = self._redactor.rewrite(record)
        if shape is not None and redacted == record:
            # Nearly all records are numbers under the same names: checking the names once is enough.
            if len(self._harmless) >= _MOST_SHAPES:
                self._harmless.clear()
            self._harmless.add(shape)
        elif len(self._texts) < _MOST_TEXTS:
            self._note_texts(redacted, str(record.get("event"))[:40])
        return encode(redacted)

    def _note_texts(self, value: Any, field: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                self._note_texts(inner, f"{field}/{key}")
        elif isinstance(value, list):
            for inner in value:
                self._note_texts(inner, field)
        elif isinstance(value, str) and len(self._texts) < _MOST_TEXTS and _is_worth_a_look(field, value):
            self._texts.setdefault(value, field)

    # ------------------------------------------------------------ what is not a record

    def _display_name(self) -> str:
        return self._manifest.display_name if self._manifest else self._folder.name

    def _redacted_manifest(self) -> Manifest | None:
        manifest = self._manifest
        if manifest is None:
            return None
        redacted = self._redactor.rewrite(
            {
                "run_id": manifest.run_id,
                "display_name": manifest.display_name,
                "project": manifest.project,
                "tags": list(manifest.tags),
                "control": dict(manifest.control),
                "diagnostics": dict(manifest.diagnostics),
                "summary": dict(manifest.summary),
                "config": None if manifest.config is None else dict(manifest.config),
                "other": dict(manifest.other),
                "sessions": [
                    {"host": session.host, "boot_id": session.boot_id, "reason": session.reason}
                    | {"perf_tag": session.perf_tag, "session_tag": session.session_tag}
                    for session in manifest.sessions
                ],
            }
        )
        sessions = tuple(
            replace(session, journal=None, lock=None, pid_started=None, pid_namespace=None, **changes)
            for session, changes in zip(manifest.sessions, redacted.pop("sessions"), strict=True)
        )
        tags = tuple(redacted.pop("tags"))
        return replace(manifest, name=self.name, tags=tags, sessions=sessions, **redacted)

    def _write_manifest(self, folder: Path) -> bool:
        manifest = self._redacted_manifest()
        if manifest is not None:
            write_manifest(folder, manifest)
        return manifest is not None

    def _redacted_labels(self) -> Labels | None:
        labels = self._labels
        if labels is None or labels == Labels():
            return None
        texts = {
            "display_name": labels.display_name,
            "tags": None if labels.tags is None else list(labels.tags),
            "notes": labels.notes,
            "acknowledged": list(labels.acknowledged),
            "muted": list(labels.muted),
            "other": dict(labels.other),
        }
        self._redactor.learn(texts)
        texts = self._redactor.rewrite(texts)
        self._note_texts({"notes": texts["notes"]}, "labels")
        name, tags = texts["display_name"], texts["tags"]
        return Labels(
            display_name=None if name is None else name[:MAX_NAME_LENGTH],
            tags=None if tags is None else tuple(tag[:MAX_TAG_LENGTH] for tag in tags),
            notes=texts["notes"],
            archived=labels.archived,
            baseline=labels.baseline,
            acknowledged=tuple(texts["acknowledged"]),
            muted=tuple(texts["muted"]),
            colour=labels.colour,
            other=texts["other"],
        )

    def _write_labels(self, folder: Path) -> bool:
        labels = self._redacted_labels()
        if labels is not None:
            write_labels(folder, labels)
        return labels is not None

    def _contents(self) -> Contents:
        members = [*self._ends]
        members.insert(1, METRICS_CSV)
        members += [MANIFEST] if self._manifest else []
        members += [LABELS] if self._labels not in (None, Labels()) else []
        places = sorted(
            ((kind, field[:200], times) for (kind, field), times in self._redactor.places.items()),
            key=lambda place: (place[0], -place[2], place[1]),
        )
        return Contents(
            folder=self.name,
            records=dict(self._counts),
            members=(*members, REDACTIONS, README),
            replaced=dict(self._redactor.replaced.most_common()),
            places=tuple(places),
            lines_left_out=self._bad_lines,
            left_out=tuple(self._left_out),
            texts=tuple((field, text) for text, field in self._texts.items()),
        )


def _shape(record: Record) -> tuple[Any, ...] | None:
    """Return event and field names of a record that contains only numbers; None if it contains a text."""
    event = record.get("event")
    if type(event) is not str:
        return None
    is_numbers = all(type(value) in _NUMBERS for name, value in record.items() if name != "event")
    return (event, *record) if is_numbers else None


def _is_worth_a_look(field: str, text: str) -> bool:
    """Return whether a person should review `text`: it may contain something private that no program recognises."""
    if field.rpartition("/")[2] in _OURS or field.startswith("start/packages/"):
        return False
    words = re.split(r"[\s/\\,;:'\"()]+", PLACEHOLDER.sub(" ", text))
    return not all(not word or is_plain(word) or _A_NUMBER.fullmatch(word) for word in words)


_OURS: Final = words("id type module fingerprint os run_id session_tag commit clock")
_A_NUMBER = re.compile(r"[0-9a-f.:+TZe-]{1,40}")


def _names_of_others(folder: Path) -> list[str]:
    """Return the omitted files of the run folder, by name if the name is one of ours."""
    ours = {METRICS_JSONL, METRICS_CSV, MANIFEST, LABELS, RANKS}
    try:
        others = sorted(name for name in os.listdir(folder) if name not in ours)
    except OSError:
        return []
    named = [name for name in others if name in _KNOWN]
    more = len(others) - len(named)
    return [
        *named,
        *(
            [f"{more} other file or folder" if more == 1 else f"{more} other files or folders"]
            if more
            else []
        ),
    ]


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
