"""Follows a data loader of torch: the ids of each batch that it gives, or a fingerprint of what is in it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard, MisuseError
from toolkit.telemetry.logger.records.batch_values import content_row, row_of
from toolkit.telemetry.runfolder.evidence.batches import BatchRow

_METHOD: Final = "_get_iterator"
_AHEAD: Final = "DataLoaderShard"
"""Accelerate's loader, which fetches a batch before it gives the one before it, to know which is the last."""
_AROUND: Final = (_AHEAD, "SkipDataLoader")


class LoaderBatches:
    """Gives `take` a row for each batch of the loaders that are followed, when a loop gets the batch.

    Only an attribute of the loader object is set, until `stop`: its type, samplers, order and random numbers stay as
    they are. Workers fetch ahead, so the ids that a sampler chose wait until their batch comes out.
    """

    def __init__(self, take: Callable[[BatchRow], None], guard: Guard) -> None:
        self.take, self.guard = take, guard
        self.taken = 0
        """Batches so far."""
        self._followed: list[Any] = []

    def follow(self, loader: Any, *, is_ahead: bool = False) -> None:
        """Follow a loader of torch or Accelerate from its next iteration on.

        `is_ahead` if whoever iterates over it fetches a batch before the turn of the one before it is over.
        """
        kind = type(loader).__name__
        base = loader.base_dataloader if kind in _AROUND else loader
        if hasattr(base, _METHOD) and not type(base).__module__.startswith("accelerate"):
            skipped = loader.skip_batches if kind in _AROUND else 0
            vars(base)[_METHOD] = _Maker(self, base, is_ahead or kind == _AHEAD, skipped)
            self._followed.append(base)

    def stop(self) -> None:
        """Leave the loaders as they were."""
        while self._followed:
            own = vars(self._followed.pop())
            if getattr(own.get(_METHOD), "batches", None) is self:
                del own[_METHOD]


class _Maker:
    """Makes the iterators of a loader, in place of its method."""

    def __init__(self, batches: LoaderBatches, loader: Any, is_ahead: bool, skipped: int) -> None:
        self.batches, self.loader, self.is_ahead, self.skipped = batches, loader, is_ahead, skipped

    def __reduce__(self) -> Any:
        # A copy of the loader has its own method again.
        return _own_method, (self.loader,)

    def __call__(self) -> Any:
        loader = self.loader
        caller = sys._getframe(1).f_locals.get("self")  # noqa: SLF001 - an attribute does not know its owner
        if getattr(caller, "__dict__", {}).get(_METHOD) is self:
            # A shallow copy of the loader, which shares this.
            loader = caller
        make = _own_method(loader)
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        sampler = vars(loader).get(name)
        is_stream = sampler is None or getattr(loader, "_dataset_kind", None) != 0
        if is_stream or not getattr(loader, "in_order", True) or "torchdata" in type(loader).__module__:
            return _Followed(self, make(), None)
        indices = _Indices(sampler)
        try:
            # Only while the iterator takes it over.
            vars(loader)[name] = indices
            return _Followed(self, make(), indices)
        finally:
            vars(loader)[name] = sampler


def _own_method(loader: Any) -> Any:
    return getattr(type(loader), _METHOD).__get__(loader)


class _Indices:
    """A sampler whose indices can be had a second time, when their batch is there."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        self.again: deque[Any] = deque()
        for one in self._sampler:
            # A copy: some samplers fill one list again and again.
            self.again.append(list(one) if type(one) is list else one)
            yield one

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class _Followed:
    """An iterator of a loader that gives a row for each batch; whatever else is asked of it, the iterator answers."""

    def __init__(self, maker: _Maker, made: Any, indices: _Indices | None) -> None:
        self._maker, self._made, self._indices = maker, made, indices
        self._begin()

    def _begin(self) -> None:
        self._held: deque[BatchRow | None] = deque()
        self._to_skip = self._maker.skipped

    @property  # type: ignore[misc]  # Lightning asks for the iterator's type
    def __class__(self) -> Any:
        return type(self._made)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def __len__(self) -> int:
        return len(self._made)

    def __iter__(self) -> _Followed:
        return self

    def _reset(self, *args: Any, **kwargs: Any) -> None:
        # Workers that stay begin another epoch.
        self._begin()
        self._made._reset(*args, **kwargs)  # noqa: SLF001 - called in its place

    def __next__(self) -> Any:
        guard = self._maker.batches.guard
        try:
            batch = next(self._made)
        except StopIteration:
            guard.call("following a data loader", self._give, 0)
            raise
        except BaseException:
            # Which ids belong to what comes next is not certain.
            self._indices = None
            raise
        guard.call("following a data loader", self._note, batch)
        return batch

    def _note(self, batch: Any) -> None:
        # Never before its batch is there: this must not be what draws the next index.
        ids = self._indices.again.popleft() if self._indices is not None and self._indices.again else None
        self._held.append(_row(ids) or content_row(batch))
        self._give(1 if self._maker.is_ahead else 0)

    def _give(self, stay: int) -> None:
        batches = self._maker.batches
        while len(self._held) > stay:
            row = self._held.popleft()
            if self._to_skip > 0:
                self._to_skip -= 1
            elif row is not None:
                batches.taken += 1
                batches.take(row)


def _row(ids: Any) -> BatchRow | None:
    if not isinstance(ids, (list, int, str)) and not hasattr(ids, "tolist"):
        return None
    try:
        return row_of(ids)
    except MisuseError:
        # Pairs of an index and a size, for example.
        return None
