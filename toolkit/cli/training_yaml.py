"""A training's YAML, or the folder of a run that was started with one, as a subcommand is given it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.cli.chosen_run import find_run
from toolkit.runfolder.layout import METRICS_JSONL


class UnusableError(Exception):
    """There is nothing to work with; the sentence says why, and goes on behind the path."""


def run_at(path: Path) -> Path:
    """Return the run that `path` means.

    Raises:
        UnusableError: there is none.
    """
    folder = find_run(path)
    if folder is None:
        raise UnusableError(f"is no run folder and holds none: no {METRICS_JSONL} in it or directly below")
    return folder


def read_training_yaml(path: Path) -> Mapping[str, Any]:
    """Return the configuration in a YAML file, with each `${VARIABLE}` filled in as trainers do.

    Raises:
        UnusableError: it is no YAML, holds no mapping, or names a variable that is not set.
        OSError: it cannot be read.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UnusableError("is no text in UTF-8") from error
    try:
        config = yaml.safe_load(_with_variables(text))
    except yaml.YAMLError as error:
        # Its own message repeats the line, and a secret may stand there.
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise UnusableError(
            f"is no YAML{where}: {getattr(error, 'problem', None) or 'it cannot be read'}"
        ) from error
    except (ValueError, RecursionError) as error:
        # PyYAML lets through what Python says of a date such as 2001-99-99, or of a thousand brackets.
        raise UnusableError("is no YAML: it holds a value that is none, or is nested too deeply") from error
    if not isinstance(config, Mapping):
        raise UnusableError("holds no mapping, as a training's YAML does")
    return config


def _with_variables(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise UnusableError(f"the environment variable {match[1]} is not set")
        return os.environ[match[1]]

    return re.sub(r"\$\{([^}\n]{1,200})\}", value, text)
