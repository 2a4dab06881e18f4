"""A configuration is taken from whatever holds it."""

import argparse
import dataclasses
import types
from typing import ClassVar, NamedTuple

import attrs
import pydantic
import pytest

from tests.records import read_records
from tests.telemetry.logged import make_logger
from toolkit.telemetry import TelemetryLogger


class Optimizer:
    def __init__(self):
        self.betas = (0.9, 0.99)


class Plain:
    lr = 0.5
    _hidden = 1

    def __init__(self):
        self.train = {"steps": 7}
        self.optimizer = Optimizer()

    def method(self):
        """Is no value."""


@dataclasses.dataclass
class Train:
    steps: int = 7


@dataclasses.dataclass(slots=True)
class Slotted:
    lr: float = 0.5
    train: Train = dataclasses.field(default_factory=Train)


@attrs.define
class WithAttrs:
    lr: float = 0.5
    train: Train = attrs.Factory(Train)


class Model(pydantic.BaseModel, extra="allow"):
    train: dict[str, int] = {"steps": 7}


class AsClass:
    lr = 0.5
    train: ClassVar = {"steps": 7}


class Named(NamedTuple):
    lr: float = 0.5
    train: Train = Train()


def from_omegaconf():
    omegaconf = pytest.importorskip("omegaconf")
    given = {"lr": 0.5, "train": {"steps": 7}, "many": [1, {"a": "${lr}"}], "missing": "???"}
    return omegaconf.OmegaConf.create(given)


def module():
    found = types.ModuleType("config")
    found.lr, found.train, found.dataclasses = 0.5, {"steps": 7}, dataclasses
    return found


HELD_BY = {
    "argparse": lambda: argparse.Namespace(lr=0.5, train=argparse.Namespace(steps=7)),
    "types": lambda: types.SimpleNamespace(lr=0.5, train={"steps": 7}),
    "dataclass": lambda: Slotted(),
    "attrs": lambda: WithAttrs(),
    "pydantic": lambda: Model(lr=0.5),
    "a named tuple": lambda: Named(),
    "an object": lambda: Plain(),
    "a class": lambda: AsClass,
    "a module": module,
    "OmegaConf": from_omegaconf,
}


@pytest.mark.parametrize("name", HELD_BY)
def test_a_configuration_is_written_whatever_holds_it(tmp_path, name):
    with make_logger(tmp_path, strict=True) as log:
        log.log_start(config=HELD_BY[name]())
    (start,) = read_records(log.run_folder, "start")

    assert (start["config"]["lr"], start["config"]["train"]) == (0.5, {"steps": 7})
    assert (start["max_steps"], "_hidden" in start["config"], "dataclasses" in start["config"]) == (
        7,
        False,
        False,
    )
    if name == "an object":
        assert start["config"]["optimizer"] == {"betas": [0.9, 0.99]}
    if name == "OmegaConf":
        assert start["config"]["many"] == [1, {"a": 0.5}]


def test_a_training_yaml_may_come_in_an_object(tmp_path):
    block = {"enabled": True, "log_dir": str(tmp_path), "system": False}
    config = argparse.Namespace(name="n", telemetry=block)
    with TelemetryLogger.from_config(config) as log:
        assert log.run_folder.name == "n"


def test_what_is_no_configuration_is_said(tmp_path, caplog):
    with make_logger(tmp_path) as log:
        log.log_start(config=object())

    assert "the config is a object, which has no names and values" in caplog.text
