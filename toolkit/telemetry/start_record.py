"""The start record: what is trained, how, with what, and on which machine."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from toolkit.telemetry.environment import describe_environment
from toolkit.telemetry.guard import Guard
from toolkit.telemetry.metadata import find_process, lora_metadata, model_metadata, training_metadata
from toolkit.telemetry.privacy.masking import mask_secrets


class EnvironmentProbe:
    """Describes the machine on a thread of its own: git and drivers may take their time, or never answer."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._found: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._run, name="telemetry-environment", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def result(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the description, waiting at most `timeout_s` for it; None where it is not there yet."""
        self._thread.join(timeout_s)
        return None if self._thread.is_alive() else self._found

    def _run(self) -> None:
        with self._guard.watch("describing the machine"):
            self._found = describe_environment(self._guard)


def start_fields(
    *,
    run_name: str,
    config: Any,
    lora: Mapping[str, Any] | None,
    model: Mapping[str, Any] | None,
    training: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the fields of a start record, secrets masked; what the caller does not say is taken from the config."""
    stated = config if isinstance(config, Mapping) else {}
    process = find_process(stated) or {}
    network = process.get("network")
    about_lora = {
        **lora_metadata(network if isinstance(network, Mapping) else {}),
        **_prefixed("lora_", lora),
    }
    about_model = {**model_metadata(process), **_prefixed("model_", model)}
    about_training = {**training_metadata(process), **(training or {})}
    fields: dict[str, Any] = {"run_name": run_name, **about_lora, **about_model, **about_training}
    if config is not None:
        fields["config"] = mask_secrets(config)
    return fields


def samples_per_step(fields: Mapping[str, Any]) -> float | None:
    """Return how many samples a step trains on, where the start record's fields say so."""
    effective = _count(fields.get("effective_batch_size"))
    if effective is not None:
        return effective
    batch, accumulation = (
        _count(fields.get("batch_size")),
        _count(fields.get("gradient_accumulation_steps", 1)),
    )
    return None if batch is None or accumulation is None else batch * accumulation


def _count(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and value > 0 else None


def _prefixed(prefix: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        key if key.startswith(prefix) else f"{prefix}{key}": value for key, value in (given or {}).items()
    }
