"""The command of a further run: that of another run, with other settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from toolkit.telemetry.runfolder.key_values import USUAL_NAMES


def command_with(line: Sequence[str], settings: Mapping[str, str]) -> str | None:
    """Return a command line with these settings; None if it does not name each of them.

    `--lr 1e-4`, `--lr=1e-4` and `train.lr=1e-4` are understood.
    """
    words = list(line)
    for key, value in settings.items():
        last = key.rpartition(".")[2]
        names = {last, *(name for name, usual in USUAL_NAMES.items() if usual == last)}
        for at, word in enumerate(words):
            option, equals, _ = word.partition("=")
            if option.lstrip("-").rpartition(".")[2].replace("-", "_") not in names:
                continue
            if equals:
                words[at] = f"{option}={value}"
                break
            if word.startswith("-") and at + 1 < len(words):
                words[at + 1] = value
                break
        else:
            return None
    return shlex.join(words)
