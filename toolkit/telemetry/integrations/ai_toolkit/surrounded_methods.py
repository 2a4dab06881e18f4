"""Calls of ours around the methods of a trainer's objects, until they are taken away again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from toolkit.telemetry.integrations.replaced_methods import ReplacedMethods


class SurroundedMethods:
    """Each method is called exactly as it was called, and what it returns or raises goes on as it is."""

    def __init__(self) -> None:
        self._replaced = ReplacedMethods()

    def around(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[..., object] | None = None,
        after: Callable[..., object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
    ) -> None:
        """Call `before` with the method's arguments, and `after` with its result and them, or `failed` with its error.

        A method that this ai-toolkit does not have is left out.
        """
        original = getattr(owner, name, None)
        if not callable(original):
            return

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                if failed is not None:
                    failed(error)
                raise
            if after is not None:
                after(result, *args, **kwargs)
            return result

        self._replaced.put(owner, name, call)

    def put_back(self) -> None:
        """Leave the objects as they were."""
        self._replaced.put_back()
