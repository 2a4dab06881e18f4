"""Reads a training configuration file, YAML or JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from toolkit.core.checks import OptionsError, wrong
from toolkit.importers.yaml_text import check


def read_config_file(path: Path, *, name: str | None = None) -> dict[str, Any]:
    """Return the content of `path`, with `${VARIABLE}` and `[name]` replaced.

    Variables are replaced before the file is parsed, as in ai-toolkit, so a value may be a number.
    `[name]` becomes `name`, or `config.name` by default.

    Raises:
        OptionsError: the file cannot be read or parsed, a variable is not set, or there is no name.
            The message does not name the file: the caller does.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionsError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OptionsError(f"is not valid UTF-8: {error.reason}") from error
    parse = _parse_json if path.suffix.lower() == ".json" else _parse_yaml
    content = parse(_fill_in_environment(text))
    if not isinstance(content, dict):
        raise OptionsError("must be a mapping with the keys job and config")
    filled: dict[str, Any] = _fill_in_name(content, _job_name(content, name))
    return filled


def _fill_in_environment(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        variable = match.group(1)
        if variable not in os.environ:
            line = text.count("\n", 0, match.start()) + 1
            raise OptionsError(f"line {line}: the environment variable {variable} is not set")
        return os.environ[variable]

    return re.sub(r"\$\{([^}]+)\}", value, text)


def _parse_json(text: str) -> object:
    try:
        content: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionsError(f"line {error.lineno}: invalid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise OptionsError(f"invalid JSON: {error}") from error
    return content


def _parse_yaml(text: str) -> object:
    try:
        check(text)
        content: object = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise OptionsError(f"{line}invalid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise OptionsError(f"invalid YAML: {error}") from error
    except ValueError as error:
        # PyYAML passes on Python's errors for a date such as 2001-99-99.
        raise OptionsError(f"invalid YAML: {error}") from error
    return content


def _job_name(content: Mapping[str, Any], name: str | None) -> str:
    config = content.get("config")
    configured = config.get("name") if isinstance(config, dict) else None
    chosen = name if name is not None else configured
    if not isinstance(chosen, str) or not chosen.strip():
        raise wrong("config.name", chosen, "a text that is not empty")
    if "[name]" in chosen:
        raise OptionsError(f"config.name is {chosen!r}: set the value of [name] with --name")
    return chosen


def _fill_in_name(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return value.replace("[name]", name)
    if isinstance(value, dict):
        return {key: _fill_in_name(item, name) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_in_name(item, name) for item in value]
    return value
