"""The samplers. A new one is a file next to this one and a line in `SAMPLERS`, or a plug-in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from toolkit.telemetry.core import plugins
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.disk import DiskSampler
from toolkit.telemetry.logger.machine.samplers.host import HostSampler
from toolkit.telemetry.logger.machine.samplers.nvml import NvmlSampler
from toolkit.telemetry.logger.machine.samplers.sampler import NothingToSample, Sample, Sampler, Value
from toolkit.telemetry.logger.machine.samplers.torch_memory import TorchMemorySampler

SAMPLERS: Final[tuple[Callable[[Path, Guard], Sampler], ...]] = (
    lambda _, guard: HostSampler(guard=guard),
    lambda log_dir, _: DiskSampler(log_dir),
    lambda _, guard: NvmlSampler(guard=guard),
    lambda _, guard: TorchMemorySampler(guard=guard),
    lambda log_dir, guard: PluginSampler(log_dir, guard),
)
"""Each makes a sampler from the log directory and the run's guard."""


def default_samplers(log_dir: Path, guard: Guard | None = None) -> list[Sampler]:
    """Return one sampler of each kind; making them reads nothing."""
    guard = guard or Guard()
    return [make(log_dir, guard) for make in SAMPLERS]


def load_plugins(guard: Guard | None = None) -> list[plugins.Plugin]:
    """Return the samplers of plug-ins: each is a function of the log directory that returns a sampler."""
    return plugins.load(
        "samplers", lambda value: "" if callable(value) else "it cannot be called", guard=guard
    )


class PluginSampler:
    """Asks the samplers of plug-ins, one after the other; one that fails is reported and not asked again."""

    name = "plugins"

    def __init__(self, log_dir: Path, guard: Guard) -> None:
        self._log_dir = log_dir
        self._guard = guard
        self._samplers: dict[plugins.Plugin, Sampler] | None = None

    def sample(self) -> Sample:
        """Return what all of them say; the first call finds and makes them."""
        if self._samplers is None:
            self._samplers = {}
            for plugin in load_plugins(self._guard):
                with self._guard.catch(f"making {plugin}"):
                    self._samplers[plugin] = plugin.call(plugin.value, self._log_dir)
        merged: dict[str, Value] = {}
        for plugin, sampler in list(self._samplers.items()):
            is_done = True
            with self._guard.catch(f"sampling {plugin}"):
                try:
                    merged.update(plugin.call(lambda sampler=sampler: dict(sampler.sample())))
                    is_done = False
                except plugins.PluginError as error:
                    if not isinstance(error.__cause__, NothingToSample):
                        raise
            if is_done:
                self._close(plugin)
        if not self._samplers:
            raise NothingToSample
        return merged

    def close(self) -> None:
        """Close those that are still asked."""
        for plugin in list(self._samplers or ()):
            self._close(plugin)

    def _close(self, plugin: plugins.Plugin) -> None:
        assert self._samplers is not None
        with self._guard.catch(f"closing {plugin}"):
            plugin.call(self._samplers.pop(plugin).close)
