"""What people call a run, without the secrets that a template may have put there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from toolkit.privacy.masking import mask_secrets

_OptionsT = TypeVar("_OptionsT", bound=Any)
_LABELS = ("project", "tags", "perf_tag", "session_tag")


def without_secrets(options: _OptionsT) -> _OptionsT:
    """Return `options` with those that name the run, and end up in run.json, masked."""
    given = {name: getattr(options, name) for name in _LABELS}
    masked = mask_secrets(given)
    changed = {
        # What could not be looked through is a text of stars, also in the place of a list: then nothing is kept of it.
        name: masked[name] if type(masked[name]) is type(given[name]) else type(given[name])()
        for name in _LABELS
        if masked[name] != given[name]
    }
    return replace(options, **changed) if changed else options
