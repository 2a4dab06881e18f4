"""The `telemetry:` block in a whole training YAML, and the keys of ai-toolkit that mean the same."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from toolkit.telemetry.core.checks import OptionsError, path, shown
from toolkit.telemetry.core.config_mapping import mapping_in, resolved
from toolkit.telemetry.core.fields import options_of
from toolkit.telemetry.logger.options.telemetry_options import TelemetryOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from toolkit.telemetry.logger.options.options_dict import OptionsDict


_TELLING: Final = ("enabled", "mode", "log_every")
"""Options that give away a block whose lines are not indented."""


def _found_block(config: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
    """Return the block, and a sentence about what looks like a mistake."""
    inner = _mapping(config.get("config"))
    places = [(f"config.process[{i}]", process) for i, process in enumerate(_processes(config))]
    places += [("config", inner), ("the top level", config)]
    holding = [(where, place) for where, place in places if "telemetry" in place]
    for where, place in holding:
        block = place["telemetry"]
        if block is None and not place.keys().isdisjoint(_TELLING):
            return None, f"nothing is logged: telemetry at {where} is empty; indent the options after it"
        if not isinstance(block, (bool, Mapping, type(None))):
            raise OptionsError(
                f"telemetry at {where} is {shown(block)}; it must be a mapping such as {{enabled: true}}"
            )
        # Each process of a job may have one.
        others = [other for other, _ in holding if other.partition("[")[0] != where.partition("[")[0]]
        also = f"telemetry is also at {' and at '.join(others)}: the block at {where} counts alone"
        block = {"enabled": block} if isinstance(block, bool) else block or {}
        return block, also if others else ""
    return None, _without_block(places)


def _without_block(places: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return a sentence if a YAML without a block seems to want one."""
    known = options_of(TelemetryOptions)
    for where, place in places:
        for name, value in place.items():
            if _is_almost_telemetry(name) and value is not False:
                return f"nothing is logged: {name!r} at {where} is not the block `telemetry:`"
            if _is_ours(_mapping(value).get("telemetry")):
                return f"nothing is logged: {name}.telemetry at {where} belongs to the top level"
        flat = [name for name in place if name in known]
        if len(flat) > 1 and isinstance(place.get("enabled"), bool):
            return f"nothing is logged: {', '.join(flat)} at {where} belong into a block `telemetry:`"
    return ""


def _is_almost_telemetry(name: Any) -> bool:
    # `telemetry_off:` is how someone switches a block off.
    low = name.lower() if isinstance(name, str) else ""
    return low.strip("_- ") == "telemetry" or (
        "telemetry" not in low and bool(get_close_matches(low, ["telemetry"], cutoff=0.8))
    )


def _is_ours(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and options_of(TelemetryOptions).keys() >= value.keys()


def options_from_config(config: Mapping[str, Any], **overrides: Unpack[OptionsDict]) -> TelemetryOptions:
    """Return the options of a whole training YAML; without a `telemetry:` block the run is not logged.

    ai-toolkit's own keys keep their meaning: a process's `log_dir` turns on TensorBoard files there, and `logging`
    sets W&B, its project and run name, and `log_every` unless the block does.

    Raises:
        OptionsError: a key or value is wrong.
    """
    found = mapping_in(resolved(config))
    if found is None:
        raise OptionsError(f"the training config is a {type(config).__name__}; it must be a mapping")
    config = found
    block, mistake = _found_block(config)
    if block is None and "enabled" not in overrides:
        return replace(TelemetryOptions.from_mapping({"enabled": False}, **overrides), mistake=mistake)
    process = find_process(config)
    inherited: dict[str, Any] = {}
    # Where the block itself asks for event files, they are in the run folder.
    if process.get("log_dir") and (block or {}).get("tensorboard") is not True:
        inherited["tensorboard"] = True
        inherited["tensorboard_dir"] = path("log_dir", process["log_dir"])
    logging, known = _mapping(process.get("logging")), options_of(TelemetryOptions)
    if logging.get("use_wandb") is True:
        inherited["wandb"] = True
    for theirs, ours in (
        ("project_name", "wandb_project"),
        ("run_name", "wandb_run_name"),
        ("log_every", "log_every"),
    ):
        if logging.get(theirs) is not None:
            inherited[ours] = known[ours].check(f"logging.{theirs}", logging[theirs])
    block = block or {}
    # `tensorboard: false` in the block is the default, and does not switch off a log_dir set elsewhere in the YAML.
    stated = {
        key: value for key, value in block.items() if not (value is False and inherited.get(key) is True)
    }
    options = TelemetryOptions.from_mapping({**inherited, **stated}, **overrides)
    return replace(options, mistake=mistake) if mistake else options


def run_name_from_config(config: Mapping[str, Any]) -> str | None:
    """Return the job's name in the YAML."""
    config = mapping_in(resolved(config)) or {}
    for place in (_mapping(config.get("config")), config):
        name = place.get("name")
        # YAML reads a name such as 2024-01-01 or 7 as a date or number.
        if isinstance(name, (str, int, float, datetime.date)) and not isinstance(name, bool) and str(name):
            return str(name)
    return None


def find_process(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the process that a training configuration describes, or an empty mapping.

    `config` is the whole file (`config.process[…]`), its `config` part, or a process itself. Of several processes, the
    one with its own `telemetry` block is returned, else the first that trains, else the first.
    """
    processes = _processes(config)
    for part in ("telemetry", "train"):
        for process in processes:
            if part in process:
                return process
    is_process = any(isinstance(config.get(part), Mapping) for part in ("train", "network", "model"))
    return next(filter(None, processes), config if is_process and not processes else {})


def _processes(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = _mapping(config.get("config")).get("process", config.get("process"))
    if isinstance(listed, Mapping):
        return [listed]
    return [_mapping(process) for process in listed] if isinstance(listed, (list, tuple)) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
