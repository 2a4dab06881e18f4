"""Without a CUDA device a span by its clock is one by the host's."""

from tests.telemetry.logged import make_logger, records_of
from toolkit.telemetry.core.clock import ManualClock


def test_where_there_is_no_device_the_host_times_alone(tmp_path):
    clock = ManualClock()
    with make_logger(tmp_path, clock=clock, log_every=1, spans={"around": 0, "device": ["backward"]}) as log:
        for step in range(1, 4):
            with log.device_span("forward"):
                clock.advance(0.5)
            with log.span("backward") as span:
                clock.advance(0.25)
                span.set(x=1)
            log.log_step(step, train_loss=1.0)
        started = log.start_span("backward")
        clock.advance(1.0)
        started.stop()
        with log.device_span("encode", n=2) as span:
            clock.advance(1.0)
        steps = records_of(log, "step")
        assert [step["time/forward"] for step in steps] == [0.5, 0.5, 0.5]
        assert [step["time/backward"] for step in steps] == [0.25, 0.25, 0.25]
        assert not any("device_time/forward" in step for step in steps)
        (encode,) = records_of(log, "span")
        assert encode["attributes"] == {"n": 2}
        assert span.id == encode["id"]
        assert log.guard.total == 0


def test_a_span_by_the_devices_clock_may_begin_in_the_past_and_elsewhere(tmp_path):
    clock = ManualClock()
    with make_logger(tmp_path, clock=clock, spans={"around": 0, "device": ["encode"]}) as log:
        with log.device_span("application") as application:
            pass
        span = log.start_span("encode", start_time=clock.wall() - 5.0, parent=application)
        span.stop()
        log.start_span("upload", parent=span).stop()
        encode, upload = (record for record in records_of(log, "span") if record["name"] != "application")
        assert encode["duration"] == 5.0
        assert encode["parent_id"] == application.id
        assert upload["parent_id"] == encode["id"]


def test_device_seconds_from_before_a_name_is_added_up_are_not_the_next_steps(tmp_path):
    clock = ManualClock()
    with make_logger(tmp_path, clock=clock, log_every=1) as log:
        for _ in range(200):
            with log.span("encode"):
                log._run.spans.times.by_name["encode"].device_seconds += 1.0
        log.log_step(1, train_loss=1.0)
        assert records_of(log, "step")[0]["device_time/encode"] == 1.0, "that of the last one alone"
