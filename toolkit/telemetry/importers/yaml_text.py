"""YAML of other programs: plain data only, and never much of it.

The parser's events are flat, so depth and size are counted there. What comes after it recurses in C, and takes as long
for aliases, merge keys, numbers in base 60 or keys of equal hash as the author of a file wants.
"""

from __future__ import annotations

from typing import Any, Final

import yaml
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

from toolkit.telemetry.importers.budget import Budget, BudgetError

_LARGEST: Final = 1024**2
_DEEPEST: Final = 100
_MOST_VALUES: Final = 50_000
_MOST_DIRECTIVES: Final = 100
_LONGEST_NUMBER: Final = 400
_TAG: Final = "tag:yaml.org,2002:"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Makes a text of whatever a tag asks to construct, of numbers in base 60, and of every key."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Keep keys as they are written: numbers may all have the same hash."""
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
        return {self._key(key): self.construct_object(value, deep=deep) for key, value in node.value}

    def _key(self, node: Any) -> str:
        is_text = isinstance(node, yaml.ScalarNode)
        return str(node.value if is_text else self.construct_object(node, deep=True))[:1000]

    def number(self, node: Any) -> Any:
        """Return a number, but not in base 60, and not one of thousands of digits."""
        words = self.construct_scalar(node)
        if ":" in words or len(words) > _LONGEST_NUMBER:
            return words
        return self.construct_yaml_int(node) if node.tag == f"{_TAG}int" else self.construct_yaml_float(node)


def _as_text(loader: Any, suffix: str, node: Any) -> Any:  # noqa: ARG001
    return f"<{suffix}>"


_Loader.add_multi_constructor(f"{_TAG}python/", _as_text)
_Loader.add_multi_constructor("!", _as_text)
for _kind in ("int", "float"):
    _Loader.add_constructor(f"{_TAG}{_kind}", _Loader.number)


def check(data: bytes | str) -> None:
    """Look at a document before it is loaded.

    Raises:
        yaml.YAMLError: it is nested too deeply, or repeats with aliases far more than is written.
    """
    budget = Budget(len(data), values=_MOST_VALUES)
    words = data if isinstance(data, bytes) else data.encode("utf-8", "replace")
    if words.count(b"\n%") > _MOST_DIRECTIVES:
        raise yaml.MarkedYAMLError(problem="too many directives")
    known: dict[str, tuple[int, int]] = {}
    stack: list[tuple[int, int, str | None]] = [(0, 0, None)]
    """Of each open collection: how many values and characters it holds, what aliases repeat included; its anchor."""
    try:
        for event in yaml.parse(words, Loader=_Loader):
            if isinstance(event, CollectionStartEvent):
                if len(stack) > _DEEPEST:
                    raise BudgetError("nested too deeply")
                stack.append((1, 0, event.anchor))
                continue
            if isinstance(event, CollectionEndEvent):
                values, text, anchor = stack.pop()
            elif isinstance(event, ScalarEvent):
                values, text, anchor = 1, len(event.value), event.anchor
                budget.spend(values, text)
            elif isinstance(event, AliasEvent):
                # An anchor that is still open would repeat without end.
                if event.anchor not in known:
                    raise BudgetError("an alias of something that is not complete")
                (values, text), anchor = known[event.anchor], None
                budget.spend(values, text)
            else:
                continue
            if anchor is not None:
                known[anchor] = values, text
            above = stack[-1]
            stack[-1] = (above[0] + values, above[1] + text, above[2])
    except BudgetError as error:
        mark: Any = event.start_mark
        raise yaml.MarkedYAMLError(problem=str(error), problem_mark=mark) from error
    except yaml.YAMLError:
        # The loader stops there too, and says what is wrong.
        return


def load(data: bytes) -> dict[str, Any]:
    """Return the mapping in a YAML document; empty if there is none, or it is damaged or too large."""
    if len(data) > _LARGEST:
        return {}
    try:
        check(data)
        found = _Loader(data).get_single_data()
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return {}
    return found if type(found) is dict else {}
