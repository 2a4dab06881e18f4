"""Patches methods of single objects of a framework, and removes the patches again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.training.phases import Phase

Method = Callable[..., Any]
Following = Generator[None, Any, None]
"""What runs around one call of a method: its `yield` returns the result or raises the exception."""
_MISSING: Final = object()


class MethodPatches:
    """The patches of one training; classes and other objects are never touched.

    A patched method is called with the arguments it was given, and its result and exceptions pass through unchanged.
    A method that the object does not have is skipped. A copy of the object gets its own, unpatched methods.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._is_active = True
        self._patches: list[tuple[Any, str, Method, Any]] = []

    def follow(self, owner: Any, name: str, hook: Callable[..., Following | None]) -> None:
        """Run `hook` with the arguments of each call: up to its `yield` before the call, and on from there after it.

        Without a `yield` it runs before the call. Its failures are swallowed and counted. After `undo` it is no longer
        called, even through a reference to the patched method.
        """
        doing = f"following {name}"

        def patch(original: Method) -> Method:
            def call(*args: Any, **kwargs: Any) -> Any:
                if not self._is_active:
                    return original(*args, **kwargs)
                following = self.guard.call(doing, _begin, hook, args, kwargs)
                try:
                    result = original(*args, **kwargs)
                except BaseException as error:
                    self.guard.call(doing, _fail, following, error)
                    raise
                self.guard.call(doing, _end, following, result)
                return result

            return call

        self.wrap(owner, name, patch)

    def time(self, owner: Any, name: str, make: Callable[[], Phase]) -> None:
        """Put a phase from `make` around each call of a method."""

        def timed(*_: Any, **__: Any) -> Following:
            with make():
                yield

        self.follow(owner, name, timed)

    def wrap(self, owner: Any, name: str, patch: Callable[[Method], Method]) -> None:
        """Replace a method by `patch(method)`, which has to call it and must not fail by itself."""
        with self.guard.catch(f"patching {name}"):
            original = getattr(owner, name, None)
            if not callable(original):
                return
            replacement = patch(original)
            if replacement is original:
                return
            method = _PatchedMethod(replacement)
            functools.update_wrapper(method, original)
            # Not `setattr`: the object may handle attributes in its own way.
            own = vars(owner)
            self._patches.append((owner, name, method, own.get(name, _MISSING)))
            own[name] = method

    def undo(self) -> None:
        """Restore the methods, for good, except where another patch was put on top since."""
        self._is_active = False
        while self._patches:
            owner, name, method, before = self._patches.pop()
            own = vars(owner)
            if own.get(name) is method and before is _MISSING:
                del own[name]
            elif own.get(name) is method:
                own[name] = before


def _begin(hook: Callable[..., Following | None], args: Any, kwargs: Any) -> Following | None:
    following = hook(*args, **kwargs)
    if following is not None:
        next(following, None)
    return following


def _end(following: Following | None, result: Any) -> None:
    if following is not None:
        with suppress(StopIteration):
            following.send(result)


def _fail(following: Following | None, error: BaseException) -> None:
    if following is None:
        return
    trace = error.__traceback__
    try:
        following.throw(error)
    except StopIteration:
        pass
    except BaseException as raised:
        # A generator raises `StopIteration` as the cause of another exception.
        if raised is not error and raised.__cause__ is not error:
            raise
    finally:
        # The hook's frames are no part of what the method raised.
        error.__traceback__ = trace


class _PatchedMethod(functools.partial[Any]):
    """A function in place of a bound method, with the method's name and signature.

    `copy.deepcopy` and `pickle` replace it by the method itself: the function would act on the original object.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _identity, (self.__wrapped__,)  # type: ignore[attr-defined]  # set by `update_wrapper`


def _identity(method: Method) -> Method:
    return method
