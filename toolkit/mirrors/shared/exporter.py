"""What an exporter is: a block of options that makes a sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from toolkit.core.sink import Sink
    from toolkit.mirrors.shared.exported_run import ExportedRun


class Exporter:
    """The base of a frozen dataclass with the options of one exporter; its keys are keys of the `telemetry:` block."""

    NEEDS: ClassVar[tuple[str, str]] = ("", "")
    """The option that switches it on, which is also the name of its extra, and a module that it then needs."""

    def make_sink(self, run: ExportedRun) -> Sink | None:
        """Return the exporter, or None if the options do not ask for it; only then its module is imported."""
        raise NotImplementedError

    def sends(self) -> Sequence[str]:
        """Return the options that send something off the machine; the exporter is not made in offline mode then."""
        return ()

    def offline_changes(self) -> Mapping[str, Any]:
        """Return the options that offline mode changes, with their values."""
        return {}
