"""A driver and a system that err, lie and hang: the training does not notice, and no lie is written down as a value."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.faults.children import LONGEST_PAUSE_S, PROGRAMS
from tests.faults.crash_checks import whole_run
from tests.lengths import in_make_faults, is_long, longer
from tests.records import with_event
from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.host import HostSampler

FUNCTIONS = [
    "nvmlInitWithFlags",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlShutdown",
]
CODES = longer([1, 3, 9, 12, 15, 999, -1], [*range(1, 31), 999, 12345, -1])


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Return the folder of a library that NVML's Python module takes for the driver's own."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to build a driver with")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("sick_driver.c")
    library = folder / "libnvidia-ml.so.1"
    # Its name makes it the one that is loaded already when NVML's module asks for the driver.
    name = f"-Wl,-soname,{library.name}"
    subprocess.run([compiler, "-shared", "-fPIC", name, "-o", library, source], check=True)
    return library


def with_driver(library, sickness):
    return {"DRIVER": str(library), "SICK_DRIVER": str(sickness)}


def test_no_error_and_no_lie_of_a_driver_becomes_a_value(tmp_path, start, driver, record_property):
    cases = [(function, code) for function in FUNCTIONS for code in CODES]
    sickness = tmp_path / "sickness"
    child = start(PROGRAMS / "ask_a_sick_driver.py", json.dumps(cases), env=with_driver(driver, sickness))
    ended = child.end(200, code=0)

    well, *answers, lies = map(json.loads, ended.out.splitlines())
    record_property(
        "measured", f"{len(answers)} errors of a driver and a lie in every number, 0 false values"
    )
    assert well["well"]["gpu/0/util"] == 50
    assert well["well"]["gpu/0/power_w"] == 300.0
    assert well["failures"] == 0
    assert len(answers) == len(cases)
    assert not [answer for answer in answers if answer["wrong"]]
    unseen = [answer for answer in answers if answer["kept"] < len(well["well"]) and not answer["failures"]]
    # What the hardware does not offer is no one's failure, nor is a machine without a driver.
    assert {answer["code"] for answer in unseen} <= {3, 4, 9, 12, 13}, unseen
    assert lies["lies"] in ({}, {"nothing": 1}), "better no value than a false one"
    assert lies["seconds"] < 60.0, "a driver that counts four billion GPUs is not asked for each of them"


@pytest.mark.slow
def test_a_driver_that_hangs_or_goes_away_holds_up_neither_the_training_nor_its_end(
    tmp_path, start, driver, record_property
):
    ways = {
        "hangs at its first call": ("nvmlInitWithFlags hang\n", ""),
        "hangs in a question": ("nvmlDeviceGetTemperature hang\n", ""),
        "hangs later": ("", "nvmlDeviceGetPowerUsage hang\n"),
        "hangs at the end": ("", "nvmlShutdown hang\n"),
        "loses its GPU": ("", "".join(f"{name} 15\n" for name in FUNCTIONS)),
        "is unloaded": ("", "".join(f"{name} 9\n" for name in FUNCTIONS)),
    }
    if not is_long():
        # Each of these is much like another.
        for way in ("hangs in a question", "loses its GPU"):
            del ways[way]
    children = {}
    for number, (way, (at_first, later)) in enumerate(ways.items()):
        sickness = tmp_path / f"sickness{number}"
        sickness.write_text(at_first)
        folder = tmp_path / str(number)
        # All at once: each of them mostly waits.
        child = start(
            PROGRAMS / "log_with_a_sick_driver.py",
            folder,
            at_first,
            later,
            env=with_driver(driver, sickness),
        )
        children[way] = folder, child
    slowest, closing = 0.0, 0.0
    for way, (folder, child) in children.items():
        ended = child.end(200)

        assert ended.code == 7, (way, ended.err)
        slowest, closing = max(slowest, ended.number("slowest")), max(closing, ended.number("closing"))
        records = whole_run(folder / "run", steps=range(int(ended.number("steps"))))
        named = [
            record for record in with_event(records, "system") if "nvml" in record.get("not_answering", [])
        ]
        if "hangs" in way and "end" not in way:
            assert named, f"a driver that {way} is named"
        elif "hangs" not in way:
            messages = [record for record in with_event(records, "error") if "GPU 0" in record["doing"]]
            assert len(messages) == 1, f"a driver that {way} is one kind of trouble, reported once"
    record_property(
        "measured",
        f"{len(ways)} ways to hang or go away, slowest call {slowest * 1e3:.1f} ms, end {closing:.1f} s",
    )
    assert slowest < LONGEST_PAUSE_S
    assert closing < 20.0 + LONGEST_PAUSE_S


# ---------------------------------------------------------------- psutil

OF_THE_PROCESS = ["memory_info", "cpu_times", "num_threads"]
OF_THE_MACHINE = ["cpu_times", "virtual_memory", "swap_memory", "disk_io_counters", "net_io_counters"]
ERRORS = [
    psutil.AccessDenied(1),
    psutil.NoSuchProcess(1),
    psutil.ZombieProcess(1),
    OSError(5, "no /proc"),
    FileNotFoundError(2, "/proc/stat"),
    RuntimeError("a bug"),
    ValueError("invalid literal for int()"),
    KeyError("MemAvailable"),
    IndexError(),
    NotImplementedError(),
    MemoryError(),
]


def answers_of(sampler, clock, rounds=3):
    values = {}
    for _ in range(rounds):
        values = dict(sampler.sample())
        clock.advance(1.0)
    return values


def test_a_psutil_that_raises_anything_anywhere_loses_only_its_own_values(monkeypatch, record_property):
    clock, tried = ManualClock(), 0
    whole = answers_of(HostSampler(guard=Guard(), clock=clock), clock)
    for place, functions in ((psutil.Process, OF_THE_PROCESS), (psutil, OF_THE_MACHINE)):
        for function in functions:
            for error in ERRORS:

                def fail(*_, error=error, **__):
                    raise error

                with monkeypatch.context() as patch:
                    patch.setattr(place, function, fail)
                    guard = Guard()
                    values = answers_of(HostSampler(guard=guard, clock=clock), clock)
                tried += 1
                missing = set(whole) - set(values)
                assert 1 <= len(missing) <= 2, (function, error, missing)
                assert guard.total == 1, "reported once"

    record_property("measured", f"{tried} failures of psutil, each cost only its own metric")


NONSENSE = [
    -1,
    -0.5,
    math.nan,
    math.inf,
    -math.inf,
    2**64 - 1,
    10**400,
    "many",
    None,
    b"\xff",
    [],
    object(),
    1j,
]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=lambda value: repr(value)[:20])
def test_nonsense_from_psutil_is_not_written_down_as_a_value(monkeypatch, nonsense):
    everything = SimpleNamespace(
        rss=nonsense, total=nonsense, available=nonsense, used=nonsense, user=nonsense, system=nonsense, idle=nonsense,
        read_bytes=nonsense, write_bytes=nonsense, bytes_sent=nonsense, bytes_recv=nonsense,
    )  # fmt: skip
    for function in OF_THE_PROCESS:
        answer = nonsense if function == "num_threads" else everything
        monkeypatch.setattr(psutil.Process, function, lambda *_, answer=answer, **__: answer)
    for function in OF_THE_MACHINE:
        monkeypatch.setattr(psutil, function, lambda *_, **__: everything)
    clock = ManualClock()

    assert answers_of(HostSampler(guard=Guard(), clock=clock), clock) == {}


@in_make_faults
def test_a_psutil_that_hangs_or_ends_its_thread_is_named_and_the_run_continues(
    tmp_path, start, record_property
):
    children = {
        how: start(PROGRAMS / "log_with_an_odd_psutil.py", tmp_path / how, how) for how in ("hangs", "exits")
    }
    for how, child in children.items():
        ended = child.end(code=7)
        assert ended.number("slowest") < LONGEST_PAUSE_S
        records = whole_run(tmp_path / how / "run", steps=range(int(ended.number("steps"))))
        if how == "hangs":
            assert any("host" in record.get("not_answering", []) for record in with_event(records, "system"))
        else:
            reported = [record["message"] for record in with_event(records, "error")]
            assert reported == ["RuntimeError: it ended its own thread, and is not asked again"]
    record_property("measured", "hang and exit of psutil, each named in the records, exit code unchanged")
