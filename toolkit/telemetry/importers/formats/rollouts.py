"""Rollouts that verl and NeMo-RL dump: JSONL files of prompts, answers and rewards, one file for each step."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.files import LinesSource, Stream
from toolkit.telemetry.importers.folders import Folder, Found, names_in
from toolkit.telemetry.importers.json_text import parsed
from toolkit.telemetry.importers.source import (
    MAX_NAME_CHARS,
    MAX_RECORD_BYTES,
    MAX_TEXT_CHARS,
    NO_TIME,
    Builder,
    Event,
    SourceInfo,
    as_number,
    run_info,
)

FORMAT: Final = "rollouts"
_NAME: Final = re.compile(r"(?:(train|val)_data_step)?(\d{1,15})\.jsonl", re.ASCII)
"""verl's `12.jsonl`, NeMo-RL's `train_data_step12.jsonl`."""
_HEAD: Final = 256 * 1024
_MOST_FIELDS: Final = 40
_VERL: Final = {"input": "prompt", "output": "completion", "score": "reward", "gts": "ground_truth"}
_NEMO: Final = {"rewards": "reward", "input_lengths": "input_length", "filtered_rewards": "filtered_reward"}


class RolloutSource(LinesSource):
    """The files of one folder, in the order of their steps."""

    def __init__(self, info: SourceInfo, folder: str, only: str = "") -> None:
        super().__init__(info)
        self._folder, self._only = folder, only

    def streams(self) -> Sequence[Stream]:
        """Return the files that are there now; what split and step one is of, its name says."""
        names = [self._only] if self._only else names_in(self.info.root / self._folder)
        found = sorted((match for name in names if (match := _NAME.fullmatch(name))), key=_order)
        return [Stream(os.path.normpath(f"{self._folder}/{match[0]}"), metric=match[0]) for match in found]

    def line(self, stream: Stream, line: bytes, state: dict[str, Any], out: Builder) -> None:
        """Add one completion, and count its reward."""
        record = parsed(line)
        fields = completion_in(record) if record is not None else None
        match = _NAME.fullmatch(stream.metric)
        if fields is None or match is None:
            out.pass_over("lines that are no rollout")
            return
        if match[1]:
            fields["split"] = "train" if match[1] == "train" else "eval"
        step = int(match[2])
        out.event(Event(kind="completion", step=step, payload=fields))
        reward = as_number(fields.get("reward"))
        if reward is not None:
            state["total"] = state.get("total", 0.0) + reward
            state["count"] = state.get("count", 0) + 1

    def parse(self, stream: Stream, data: bytes, offset: int, state: dict[str, Any], out: Builder) -> int:
        """Parse complete lines; at the end of a file add the mean of its rewards, once."""
        done = super().parse(stream, data, offset, state, out)
        match = _NAME.fullmatch(stream.metric)
        if done and match and state.get("count") and not state.get("is_added"):
            try:
                is_end = offset + done >= os.stat(self.info.root / stream.path).st_size
            except OSError:
                is_end = False
            if is_end:
                name = "eval/reward" if match[1] == "val" else "reward"
                out.add(name, int(match[2]), NO_TIME, state["total"] / state["count"])
                state["is_added"] = True
        return done


def completion_in(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a completion of ours; None if the record is no rollout."""
    # With a score or rewards: other files have questions and answers as well.
    if type(record.get("input")) is str and type(record.get("output")) is str and "score" in record:
        named = ((_VERL.get(name, name), value) for name, value in record.items() if name != "step")
    elif type(record.get("content")) is list and "idx" in record and "rewards" in record:
        # Every value is a list with one element: a batch of one.
        alone = {
            name: value[0] if type(value) is list and len(value) == 1 else value
            for name, value in record.items()
        }
        messages = [_text_of(message) for message in alone.pop("content") or ()]
        if not messages:
            return None
        alone = {"prompt": "\n".join(messages[:-1]), "completion": messages[-1], **alone}
        named = ((_NEMO.get(name, name), value) for name, value in alone.items())
    else:
        return None
    fields: dict[str, Any] = {}
    for name, value in named:
        # Numbers of each token have no place in a list of answers.
        if type(value) in (str, int, float, bool) and len(fields) < _MOST_FIELDS:
            fields[name[:MAX_NAME_CHARS]] = value[:MAX_TEXT_CHARS] if type(value) is str else value
    return fields


def _text_of(message: Any) -> str:
    text = message.get("content") if type(message) is dict else message
    return text if type(text) is str else ""


def sources_in(folder: Folder) -> Found:
    """Return the run of a folder with such files."""
    names = sorted((match for name in folder.files if (match := _NAME.fullmatch(name))), key=_order)
    # The first may be empty: it was opened just now.
    first = next((match[0] for match in names if folder.files[match[0]]), None)
    if first is None or not _is_rollout(folder, first):
        return Found()
    info = run_info(FORMAT, os.path.realpath(folder.path), folder.path.name, folder.root, [folder.relative])
    return Found([RolloutSource(info, folder.relative)], frozenset(match[0] for match in names))


def _order(match: re.Match[str]) -> tuple[int, str]:
    return int(match[2]), match[0]


def source_of_file(path: Path, head: bytes) -> RolloutSource | None:  # noqa: ARG001 - a line may be longer
    """Return the run of one such file; None if it is another."""
    if not _NAME.fullmatch(path.name) or not _is_rollout(Folder(path.parent, "."), path.name):
        return None
    info = run_info(FORMAT, os.path.realpath(path), path.stem, path.parent, [path.name])
    return RolloutSource(info, ".", path.name)


def _is_rollout(folder: Folder, name: str) -> bool:
    """Return whether the first line of a file is a rollout."""
    head = folder.head(name, _HEAD)
    if b"\n" not in head:
        head = folder.head(name, MAX_RECORD_BYTES)
    record = parsed(head.split(b"\n")[0])
    return record is not None and completion_in(record) is not None
