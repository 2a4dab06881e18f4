"""Arguments that name a training's YAML, or the folder of a run that was started with one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.cli.chosen_run import find_run, no_run_in


class UnusableError(Exception):
    """The YAML or run cannot be used; the message follows the path."""


def run_at(path: Path) -> Path:
    """Return the run at `path`, or the newest one below it. Raises UnusableError if there is no run."""
    folder = find_run(path)
    if folder is None:
        raise UnusableError(no_run_in(path))
    return folder


def read_training_yaml(path: Path) -> Mapping[str, Any]:
    """Return the configuration in a YAML file, with each `${VARIABLE}` replaced from the environment.

    Raises:
        UnusableError: it is not valid YAML, not a mapping, or uses a variable that is not set.
        OSError: it cannot be read.
    """
    import yaml

    from toolkit.importers.yaml_text import check

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UnusableError("not valid UTF-8") from error
    try:
        filled_in = _with_variables(text)
        check(filled_in)
        config = yaml.safe_load(filled_in)
    except yaml.YAMLError as error:
        # PyYAML's own message repeats the line, which may contain a secret.
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise UnusableError(
            f"invalid YAML{where}: {getattr(error, 'problem', None) or 'it cannot be parsed'}"
        ) from error
    except ValueError as error:
        # PyYAML passes on Python's errors for a date such as 2001-99-99.
        raise UnusableError("invalid YAML: it contains an invalid value") from error
    if not isinstance(config, Mapping):
        raise UnusableError("not a mapping, as the YAML of a training must be")
    return config


def _with_variables(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise UnusableError(f"the environment variable {match[1]} is not set")
        return os.environ[match[1]]

    return re.sub(r"\$\{([^}\n]{1,200})\}", value, text)
