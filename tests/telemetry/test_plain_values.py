"""Whatever a training script hands over becomes plain values; what cannot is named, and nothing is raised."""

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import math
import pathlib
import types
import uuid

import numpy as np
import pandas as pd
import pytest
import torch

from tests.evil_values import EndlessList, EndlessMapping
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.records.device_scalars import DeviceScalars
from toolkit.telemetry.logger.records.plain_values import PlainValues
from toolkit.telemetry.runfolder.codec import decode, encode


@pytest.fixture
def values():
    return PlainValues(Guard(), DeviceScalars())


def one(value):
    """Return what a record holds of `value`, after the trip through a line."""
    values = PlainValues(Guard(), DeviceScalars())
    plain, pending = values.fields({"v": value})
    assert pending == {}
    return decode(encode(plain)).get("v")


def note(value):
    """Return what is said of a value that a record cannot hold."""
    plain, _ = PlainValues(Guard(), DeviceScalars()).fields({"v": value, "kept": 1})
    assert plain["kept"] == 1
    assert "v" not in plain
    return plain["unencodable"]["v"]


# ---------------------------------------------------------------- numbers of every make


class Level(enum.IntEnum):
    LOW = 3


class Kind(enum.Enum):
    LORA = "lora"


class MyFloat(float):
    pass


class MyInt(int):
    pass


class MyStr(str):
    __slots__ = ()

    def __str__(self):
        return "a lie"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (True, True),
        (7, 7),
        (0.1, 0.1),
        ("text", "text"),
        (MyFloat(0.5), 0.5),
        (MyInt(5), 5),
        (MyStr("truth"), "truth"),
        (Level.LOW, 3),
        (Kind.LORA, "lora"),
        (decimal.Decimal("0.25"), 0.25),
        (fractions.Fraction(1, 4), 0.25),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (datetime.datetime(2024, 1, 2, 3, 4, 5), "2024-01-02T03:04:05"),
        (datetime.timedelta(seconds=1.5), 1.5),
        (np.float16(0.5), 0.5),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64(0.1), 0.1),
        (np.longdouble(0.5), 0.5),
        (np.int8(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.str_("text"), "text"),
        (np.array(0.5), 0.5),
        (np.array([0.5]), 0.5),
        (np.array([[3]]), 3),
        (np.array([1, 2]), [1, 2]),
        (np.array([]), []),
        (np.datetime64("2024-01-02"), "2024-01-02"),
        (np.dtype("float32"), "float32"),
        (pd.Timestamp("2024-01-02"), "2024-01-02T00:00:00"),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([0.5]), 0.5),
        (torch.tensor([[3]]), 3),
        (torch.tensor(True), True),
        (torch.tensor(3, dtype=torch.uint8), 3),
        (torch.tensor(0.1, dtype=torch.float64), 0.1),
        (torch.tensor(0.1, dtype=torch.bfloat16), 0.10009765625),
        (torch.tensor(0.1, dtype=torch.float16), 0.0999755859375),
        (torch.tensor(0.5, dtype=torch.float8_e4m3fn), 0.5),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.nn.Parameter(torch.tensor(0.5)), 0.5),
        (torch.tensor([1.0, 2.0], requires_grad=True), [1.0, 2.0]),
        (torch.tensor([], dtype=torch.float32), []),
        (torch.bfloat16, "torch.bfloat16"),
        (torch.device("cpu"), "cpu"),
        ([1, (2, 3), {"a": 4}], [1, [2, 3], {"a": 4}]),
        ({3}, [3]),
        (types.MappingProxyType({}), None),
    ],
    ids=lambda value: f"{type(value).__name__} {value!r}"[:40],
)
def test_a_value_is_kept_as_a_plain_one(value, plain):
    found = one(value)

    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("make", [float, np.float32, np.float64, np.array, torch.tensor, MyFloat])
def test_a_number_that_is_not_finite_is_kept_as_such_from_any_library(number, make):
    plain, _ = PlainValues(Guard(), DeviceScalars()).fields({"v": make(number)})
    record = decode(encode(plain))

    assert record["v"] is None
    assert record["non_finite"]["v"] == {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(number)]


def test_a_tensor_with_a_graph_is_read_without_disturbing_the_graph(values):
    weight = torch.tensor([2.0], requires_grad=True)
    loss = (weight * 3).sum()
    plain, _ = values.fields({"train_loss": loss})
    loss.backward()

    assert plain == {"train_loss": 6.0}
    assert weight.grad.item() == 3.0


def test_a_change_in_place_after_the_call_does_not_show(values):
    tensor, array, given_list = torch.tensor([1.0]), np.array([1.0]), [1.0]
    plain, _ = values.fields({"t": tensor, "a": array, "l": given_list, "m": {"n": given_list}})
    tensor.zero_()
    array[:] = 0.0
    given_list[0] = 0.0

    assert plain == {"t": 1.0, "a": 1.0, "l": [1.0], "m/n": [1.0]}


def test_a_number_is_taken_in_every_mode():
    for mode in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu"), torch.device("meta")):
        with mode:
            assert one(torch.tensor(0.5, device="cpu")) == 0.5


def test_a_tensor_that_is_no_number_is_noted_with_its_shape():
    assert note(torch.zeros(100, 3)) == "Tensor: shape (100, 3), not one number"
    assert note(np.zeros((100, 3))) == "ndarray: array of shape (100, 3)"
    assert note(torch.tensor(1 + 2j)) == "Tensor: a complex number"
    assert note(torch.tensor([1 + 2j, 1j])) == "Tensor: shape (2,), not one number"
    assert note(torch.empty((), device="meta")) == "Tensor: a meta tensor has no value"
    assert note(np.ma.masked) == "MaskedConstant: masked"


def test_a_tensor_of_several_ranks_is_read_where_each_has_it_whole_and_else_refused(tmp_path):
    distributed_tensor = pytest.importorskip("torch.distributed.tensor")
    import torch.distributed as dist

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        whole = distributed_tensor.distribute_tensor(
            torch.tensor([0.5]), mesh, [distributed_tensor.Replicate()]
        )
        parts = distributed_tensor.distribute_tensor(torch.tensor([0.5]), mesh, [distributed_tensor.Shard(0)])

        assert one(whole) == 0.5
        assert "full_tensor()" in note(parts)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("value", [object(), b"bytes", 1j, lambda: 1, iter([]), uuid.UUID(int=0), ..., int])
def test_what_a_record_cannot_hold_is_named_by_its_type(value):
    assert note(value) == type(value).__name__


# ---------------------------------------------------------------- names


def test_any_mapping_is_flattened():
    given_mapping = collections.OrderedDict(a=types.MappingProxyType({"b": collections.Counter("xx")}))
    plain, _ = PlainValues(Guard(), DeviceScalars()).fields({"m": given_mapping})

    assert plain == {"m/a/b/x": 2}


def test_none_is_left_out_at_every_depth(values):
    assert values.fields({"a": None, "b": {"c": None, "d": 1}}) == ({"b/d": 1}, {})


def test_keys_that_are_no_text_become_text(values):
    plain, _ = values.fields({"m": {1: "a", 2.5: "b", None: "c", MyStr("s"): "e", (3, "x"): "f"}})

    assert plain == {"m/1": "a", "m/2.5": "b", "m/None": "c", "m/s": "e", "m/3/x": "f"}


# ---------------------------------------------------------------- what is out to do harm


def test_the_users_own_interrupt_passes_through(values):
    class Interrupting:
        def __float__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        values.fields({"a": Interrupting()})


def in_itself():
    mapping = {"one": 1}
    mapping["again"] = mapping
    mapping["list"] = [mapping]
    return mapping


def full_of_itself():
    mapping = {}
    for number in range(10):
        mapping[f"k{number}"] = mapping
    return mapping


def laughs(empty):
    """Return ten of ten of ten of … the same: small in memory, without end on paper."""
    value = empty
    for _ in range(30):
        value = [value] * 10 if isinstance(empty, list) else dict.fromkeys("abcdefghij", value)
    return value


@pytest.mark.parametrize(
    "value",
    [in_itself(), full_of_itself(), [laughs({})], {"a": laughs([])}, EndlessMapping(a=1), EndlessList([1])],
    ids=["in itself", "full of itself", "list of mappings", "mapping of lists", "endless", "endless list"],
)
def test_what_has_no_end_is_cut_off(values, value):
    plain, _ = values.fields({"v": value, "kept": 1})
    tree = values.tree({"v": value, "kept": 1})

    assert plain["kept"] == tree["kept"] == 1
    decode(encode(plain))
    decode(encode(tree))


def test_a_structure_names_itself_where_it_comes_again(values):
    assert values.tree(in_itself()) == {"one": 1, "again": "<itself>", "list": ["<itself>"]}


def test_a_flood_of_fields_is_bounded(values):
    plain, _ = values.fields({"m": {f"k{i}": [i] for i in range(100_000)}, "kept": 1})

    assert plain["kept"] == 1
    assert len(plain) < 4096
    assert plain["unencodable"] == {"…": f"{100_002 - len(plain)} more fields"}


@dataclasses.dataclass
class Settings:
    rank: int = 16


def test_a_structure_keeps_its_shape_and_notes_what_it_cannot_show(values):
    given_config = {
        "dtype": torch.bfloat16,
        "size": torch.Size([2, 3]),
        "optimizer": torch.optim.AdamW,
        "tensor": torch.zeros(1000),
        "list": [None, Settings(), argparse.Namespace(a=1)],
        "numpy": np.float32(0.5),
        1: "one",
        "1": "text one",
    }

    assert values.tree({"config": given_config})["config"] == {
        "dtype": "torch.bfloat16",
        "size": [2, 3],
        "optimizer": "<type>",
        "tensor": "<Tensor>",
        "list": [None, {"rank": 16}, {"a": 1}],
        "numpy": 0.5,
        "1": "one",
        "x_1": "text one",
    }


def test_a_structure_leaves_what_is_on_a_gpu_there():
    class OnGpu(torch.Tensor):
        is_cuda = True

    class Asked(DeviceScalars):
        def take(self, tensor):
            raise AssertionError("a number that no one will wait for was asked for")

    values = PlainValues(Guard(), Asked())
    tensor = torch.zeros(()).as_subclass(OnGpu)

    assert values.tree({"loss": tensor, "all": [tensor]}) == {"loss": "<OnGpu>", "all": ["<OnGpu>"]}
    assert values._guard.total == 0
