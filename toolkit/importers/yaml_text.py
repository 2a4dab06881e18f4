"""YAML of other programs: plain data only, and never much of it."""

from __future__ import annotations

from typing import Any, Final

import yaml

_LARGEST: Final = 1024**2
_MOST_NODES: Final = 50_000


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Makes a text of whatever a tag asks to construct, and refuses aliases beyond a few."""

    nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Count nodes: each alias may repeat a large part of the document."""
        self.nodes += 1
        if self.nodes > _MOST_NODES:
            raise yaml.YAMLError("too many nodes")
        return super().compose_node(parent, index)


def _as_text(loader: Any, suffix: str, node: Any) -> Any:  # noqa: ARG001
    return f"<{suffix}>"


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", _as_text)
_Loader.add_multi_constructor("!", _as_text)


def load(data: bytes) -> dict[str, Any]:
    """Return the mapping in a YAML document; empty if there is none, or it is damaged or too large."""
    if len(data) > _LARGEST or data.count(b"*") > 1000:
        return {}
    try:
        found = _Loader(data).get_single_data()
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return {}
    return {str(key): value for key, value in found.items()} if type(found) is dict else {}
