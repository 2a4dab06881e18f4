"""Plug-ins: importers, mirrors, samplers, detectors and commands of other packages, found by their entry points.

Each registry has a table of its own for the built-in ones, and asks here for the others. The first question reads the
metadata of the installed packages, once in a process; a training asks on a background thread, except for the mirrors
that its options name. The variable `TELEMETRY_PLUGINS` names the packages that may bring some: `all`, which is the
default, `off`, or a list.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from toolkit.telemetry.core.guard import Guard, describe_error, warn

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KINDS: Final = ("importers", "mirrors", "samplers", "detectors", "commands")
"""The group of an entry point is `telemetry.` and one of these."""

_T = TypeVar("_T")


class PluginError(RuntimeError):
    """A plug-in failed; the message names it and its package."""


@dataclass(slots=True, eq=False)
class Plugin:
    """One entry point of another package."""

    kind: str
    name: str
    package: str
    """Name and version of the package that it comes from."""
    entry_point: EntryPoint
    value: Any = None
    """What the entry point refers to; None before it is loaded, and for one that is broken."""
    problem: str = ""
    """Why it is skipped, or what it raised last."""

    def __str__(self) -> str:
        return f"the plug-in {self.name!r} ({self.kind}) of {self.package}"

    def call(self, function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
        """Return what `function`, which is the plug-in's, returns.

        Raises:
            PluginError: it raised something, or wanted to end the process.
        """
        try:
            return function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            self.problem = describe_error(error)
            raise PluginError(f"{self}: {self.problem}") from error


def load(
    kind: str,
    problem_of: Callable[[Any], str],
    *,
    taken: Collection[str] = (),
    only: Collection[str] | None = None,
    guard: Guard | None = None,
) -> list[Plugin]:
    """Return the plug-ins of a kind that can be used; each of the others is reported once, and skipped.

    `problem_of` says what is wrong with a loaded value, if anything is; `taken` are the names of the built-in ones.
    With `only`, no others than those of these names are loaded.
    """
    usable = []
    for plugin in installed(kind):
        if only is not None and plugin.name not in only:
            continue
        if plugin.value is None and not plugin.problem:
            try:
                value = plugin.call(plugin.entry_point.load)
                plugin.problem = plugin.call(problem_of, value)
            except PluginError:
                value = None
            if plugin.name in taken:
                plugin.problem = "a built-in one has this name"
            plugin.value = None if plugin.problem else value
            if plugin.problem:
                _report(plugin, guard)
        usable += [] if plugin.value is None else [plugin]
    return usable


def _report(plugin: Plugin, guard: Guard | None) -> None:
    if guard is None:
        warn("%s is skipped: %s", plugin, plugin.problem)
    else:
        guard.report(f"loading {plugin}", PluginError(plugin.problem))


def installed(kind: str) -> list[Plugin]:
    """Return the plug-ins of a kind by name, without loading them."""
    if not _found:
        found = {name: list[Plugin]() for name in KINDS}
        for plugin in Guard().call("looking for plug-ins", _scan) or ():
            if all(other.name != plugin.name for other in found[plugin.kind]):
                found[plugin.kind].append(plugin)
        _found.update(found)
    return _found[kind]


def _scan() -> list[Plugin]:
    # Imported when used: `import toolkit.telemetry` does not need it.
    from importlib.metadata import entry_points

    wanted = [word.strip().lower() for word in os.environ.get("TELEMETRY_PLUGINS", "all").split(",")]
    found, of_all_packages = [], entry_points()
    for kind in KINDS:
        for entry_point in of_all_packages.select(group=f"telemetry.{kind}"):
            package = entry_point.dist
            if package is not None and not {"all", package.name.lower()}.isdisjoint(wanted):
                label = f"{package.name} {package.version}"
                found.append(Plugin(kind, entry_point.name, label, entry_point))
    return sorted(found, key=lambda plugin: (plugin.name, plugin.package))


_found: dict[str, list[Plugin]] = {}
