"""The parts of a training that have begun and not ended, for hooks, which cannot put a `with` around things."""

from __future__ import annotations

from toolkit.telemetry.spans.span import AnySpan
from toolkit.telemetry.training.part import Part


class OpenParts:
    """Begins and ends parts by name, the innermost last; of each name one is open at a time."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Part, AnySpan]] = {}

    def has(self, name: str) -> bool:
        """Return whether such a part is open."""
        return name in self._open

    def begin(self, name: str, part: Part) -> None:
        """Begin a part; one of its name that is still open ends."""
        self.end(name)
        self._open[name] = part, part.__enter__()

    def end(self, *names: str) -> None:
        """End parts, those that are open."""
        for name in names:
            found = self._open.pop(name, None)
            if found is not None:
                found[0].__exit__(None, None, None)

    def end_with_inner(self, name: str, error: BaseException | None = None) -> None:
        """End the part of that name and what is still open inside it; nothing where there is none."""
        if name in self._open:
            self.end_all(error, within=name)
            self._end_one(name, error)

    def drop(self, name: str) -> None:
        """End a part that was not done to its end, so that it is not counted."""
        found = self._open.pop(name, None)
        if found is not None:
            found[1].stop()

    def end_all(
        self, error: BaseException | None, *, within: str | None = None, undone: str | None = None
    ) -> None:
        """End all, or those within one, because the training is over or `error` went through them.

        Without an error, a part called `undone` is one that was not done to its end.
        """
        for name in reversed([*self._open]):
            if name == within:
                return
            if error is None and name == undone:
                self.drop(name)
            else:
                self._end_one(name, error)

    def _end_one(self, name: str, error: BaseException | None) -> None:
        part, _ = self._open.pop(name)
        if error is None:
            part.__exit__(None, None, None)
        else:
            part.__exit__(type(error), error, error.__traceback__)
