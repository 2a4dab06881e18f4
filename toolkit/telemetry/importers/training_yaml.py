"""The YAML or JSON file of a training: variables filled in, parsed, and refused in one sentence where it is wrong."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import yaml

from toolkit.telemetry.core.checks import OptionsError, shown
from toolkit.telemetry.importers.yaml_text import check


def read_training_yaml(path: Path) -> dict[str, Any]:
    """Return the configuration in a YAML or JSON file, with each `${VARIABLE}` replaced from the environment.

    They are replaced before the file is parsed, as in ai-toolkit, so a value may be a number.

    Raises:
        OptionsError: the file cannot be read or parsed, is not a mapping, or a variable is not set.
            The message does not name the file: the caller does.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionsError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OptionsError(f"is not valid UTF-8: {error.reason}") from error
    content = parse_config(_fill_in_environment(text), is_json=path.suffix.lower() == ".json")
    if not isinstance(content, dict):
        raise OptionsError("is not a mapping, as the configuration of a training must be")
    return content


def _fill_in_environment(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        variable = match.group(1)
        if variable not in os.environ:
            line = text.count("\n", 0, match.start()) + 1
            raise OptionsError(f"line {line}: the environment variable {variable} is not set")
        return os.environ[variable]

    return re.sub(r"\$\{([^}\n]{1,200})\}", value, text)


def parse_config(text: str, *, is_json: bool = False) -> object:
    """Return the content of a YAML or JSON file. Raises OptionsError if it is damaged, huge or too deep."""
    try:
        if is_json:
            return json.loads(text)
        check(text)
        return _Loader(text).get_single_data()
    except json.JSONDecodeError as error:
        raise OptionsError(f"line {error.lineno}: invalid JSON: {error.msg}") from error
    except yaml.MarkedYAMLError as error:
        # PyYAML's own message repeats the line, which may contain a secret.
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise OptionsError(f"{line}invalid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # PyYAML passes on Python's errors for a date such as 2001-99-99; these, too, may repeat a value.
        raise OptionsError(f"invalid {'JSON' if is_json else 'YAML'}: it cannot be parsed") from error


class _Loader(yaml.SafeLoader):
    """Refuses a key that is in a mapping twice, of which PyYAML takes the last one without a word."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and lines.setdefault((key.tag, key.value), line) != line:
                problem = f"the key {shown(key.value)} is in line {lines[key.tag, key.value]} already"
                raise yaml.composer.ComposerError(problem=problem, problem_mark=key.start_mark)
        return node
