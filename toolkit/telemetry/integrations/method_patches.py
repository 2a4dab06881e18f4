"""Patches methods of single objects of a framework, and removes the patches again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.integrations.open_phases import exit_arguments
from toolkit.telemetry.logger.training.phases import Phase

Method = Callable[..., Any]
_MISSING: Final = object()


class MethodPatches:
    """The patches of one training; classes and other objects are never touched.

    A patched method is called with the arguments it was given, and its result and exceptions pass through unchanged.
    A method that the object does not have is skipped. A copy of the object gets its own, unpatched methods.
    """

    def __init__(self, guard: Guard | None = None) -> None:
        self.guard = guard or Guard()
        self._patches: list[tuple[Any, str, Method, Any]] = []
        self._session = SimpleNamespace(is_active=True)

    def around(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[..., object] | None = None,
        after: Callable[..., object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
        ended: Callable[[BaseException | None], object] | None = None,
    ) -> None:
        """Call `before` with the method's arguments, `after` with its result and arguments, or `failed`, and `ended`.

        Failures in these hooks are swallowed and counted. Once the patch is removed they are no longer called, even
        through a reference to the patched method.
        """
        session, doing = self._session, f"following {name}"

        def patch(original: Method) -> Method:
            def call(*args: Any, **kwargs: Any) -> Any:
                if not session.is_active:
                    return original(*args, **kwargs)
                if before is not None:
                    self.guard.call(doing, before, *args, **kwargs)
                try:
                    result = original(*args, **kwargs)
                except BaseException as error:
                    for hook in (failed, ended):
                        if hook is not None:
                            self.guard.call(doing, hook, error)
                    raise
                if after is not None:
                    self.guard.call(doing, after, result, *args, **kwargs)
                if ended is not None:
                    self.guard.call(doing, ended, None)
                return result

            return call

        self.wrap(owner, name, patch)

    def time(self, owner: Any, name: str, make: Callable[[], Phase]) -> None:
        """Put a phase from `make` around each call of a method."""
        running: list[Phase | None] = []

        def begin(*_: Any, **__: Any) -> None:
            # One for each call, also if it cannot begin.
            running.append(None)
            phase = make()
            phase.__enter__()
            running[-1] = phase

        def end(error: BaseException | None) -> None:
            phase = running.pop()
            if phase is not None:
                phase.__exit__(*exit_arguments(error))

        self.around(owner, name, before=begin, ended=end)

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
        """Restore the methods, except where another patch was put on top since."""
        self._session.is_active = False
        self._session = SimpleNamespace(is_active=True)
        while self._patches:
            owner, name, method, before = self._patches.pop()
            own = vars(owner)
            if own.get(name) is method and before is _MISSING:
                del own[name]
            elif own.get(name) is method:
                own[name] = before


class _PatchedMethod(functools.partial[Any]):
    """A function in place of a bound method, with the method's name and signature.

    `copy.deepcopy` and `pickle` replace it by the method itself: the function would act on the original object.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _identity, (self.__wrapped__,)  # type: ignore[attr-defined]  # set by `update_wrapper`


def _identity(method: Method) -> Method:
    return method
