"""One visitor's long answers never keep another visitor waiting, and end when no one waits for them."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import urllib.request
from urllib.parse import urlencode

import pytest

pytest.importorskip("streamlit")

from starlette.requests import Request
from starlette.responses import Response

from dashboard.answering import computed
from tests.dashboard.serving import PATIENCE_S, dashboard
from tests.lengths import in_make_faults
from tests.made_runs import write_run
from toolkit.telemetry.core.deadline import is_over

RECORDS = 60_000


def request_of(visitor, receive=None):
    scope = {"type": "http", "headers": [(b"cookie", visitor.encode())], "client": ("127.0.0.1", 1)}

    async def wait():
        await asyncio.Event().wait()

    return Request(scope, receive or wait)


@pytest.mark.parametrize("is_costly", [False, True])
def test_a_second_visitor_is_answered_while_the_first_ones_wait(is_costly):
    is_done = threading.Event()

    def slow():
        is_done.wait(PATIENCE_S)
        return Response("slow")

    async def ask():
        # Costly answers leave threads even if each is another visitor's.
        names = [f"visitor {number if is_costly else 0}" for number in range(40)]
        waiting = [
            asyncio.create_task(computed(request_of(name), slow, seconds=PATIENCE_S, is_costly=is_costly))
            for name in names
        ]
        await asyncio.sleep(0)
        plain = await computed(request_of("another"), lambda: Response("plain"), seconds=PATIENCE_S)
        still_waiting = [one for one in waiting if not one.done()]
        is_done.set()
        return plain.body, len(still_waiting), {one.body for one in await asyncio.gather(*waiting)}

    assert asyncio.run(ask()) == (b"plain", 40, {b"slow"})


def test_the_work_ends_when_its_client_has_left():
    has_begun, has_left = threading.Event(), threading.Event()

    async def receive():
        await asyncio.to_thread(has_begun.wait, PATIENCE_S)
        return {"type": "http.disconnect"}

    def work():
        has_begun.set()
        for _ in range(int(PATIENCE_S * 100)):
            if is_over():
                has_left.set()
                break
            threading.Event().wait(0.01)
        return Response()

    asyncio.run(computed(request_of("one", receive), work, seconds=PATIENCE_S))

    assert has_left.is_set()


@in_make_faults
@pytest.mark.timeout(600)
def test_a_plain_chart_is_answered_while_others_compute_costly_formulas(tmp_path):
    values = [float((7 * step) % 1000) for step in range(RECORDS)]
    write_run(tmp_path / "logs", "large", sessions=[range(RECORDS)], curves={"loss": values})
    medians = " + ".join(f"median(loss, {940 + number})" for number in range(10))
    formulas = [f"= {medians} + {number}" for number in range(8 * 16)]
    answers, is_answered = [], threading.Event()
    with dashboard(tmp_path, "--log-dir", str(tmp_path / "logs")) as started:
        port = started.wait_until_ready().port

        def ask(*metrics):
            curves = [["large", metric, 0, {"fit": 800}, 0] for metric in metrics]
            url = f"http://127.0.0.1:{port}/curves?" + urlencode({"x": "step", "c": json.dumps(curves)})
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                data = answer.read()
            return json.loads(data[8 : 8 + struct.unpack_from("<I", data)[0]])["curves"]

        def reader(number):
            while not is_answered.is_set():
                answers.append(ask(*formulas[number::8]))

        while ask("loss")[0]["whole"] < 1:
            pass
        readers = [threading.Thread(target=reader, args=(number,)) for number in range(8)]
        for one in readers:
            one.start()
        try:
            for _ in range(3):
                assert ask("loss")[0]["pieces"][0][2] == RECORDS
            # None of them was asked for so long that its formulas are whole.
            assert all(min(curve["whole"] for curve in found) < 1 for found in answers)
        finally:
            is_answered.set()
            for one in readers:
                one.join()
    assert len(answers) >= 8
