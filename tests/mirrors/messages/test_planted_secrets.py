"""Nothing private that a run knows is in a message, in any encoding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.mirrors.messages.local_receivers import receiving
from tests.privacy.planted import ENVIRON, PLANTED, found_in, leaks_in
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.mirrors.messages.message import RunState
from toolkit.telemetry.mirrors.messages.run_events import RunEventReader
from toolkit.telemetry.mirrors.messages.services import SERVICES
from toolkit.telemetry.mirrors.messages.sink import link_to
from toolkit.telemetry.privacy.redaction import Redactor
from toolkit.telemetry.runfolder.layout import safe_run_name

PRIVATE = [(kind, value) for kind, value in PLANTED if kind != "model"]
SECRET = "what-messages-are-signed-with"


def messages_about(text, redactor):
    """Return messages with `text` in every place where a run's texts can be."""
    story = RunEventReader(RunState(run_name=text), redact=redactor.redact)
    finding = {"event": "finding", "kind": text, "id": text, "severity": "critical", "state": "open", "message": text,
               "metric": text, "causes": [text], "advice": [text]}  # fmt: skip
    error = {"event": "error", "type": "ValueError", "message": f"ValueError: could not read {text}"}
    messages = [*story.take(finding), *story.take(error)]
    messages.append(story.end(status="failed", reason="failed", now=1.0, elapsed_s=1.0))
    messages.append(story.end(status="failed", reason=text, failure=error, now=1.0, elapsed_s=1.0))
    link = link_to((safe_run_name(text), text), None, redactor)
    return [replace(message, link=link) for message in messages]


def bytes_of(message):
    """Return what each service is sent of `message`, as it goes over the wire."""
    parts = []
    for service in SERVICES.values():
        body, headers = service.request(message, SECRET)
        parts += [*(f"{name}: {value}".encode() for name, value in headers.items()), body]
    return b"\n".join(parts)


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in PLANTED} - {"model", "random"}))
def test_no_planted_value_is_in_a_message_to_any_service(kind):
    leaked = []
    for _, value in [one for one in PLANTED if one[0] == kind]:
        redactor = Redactor(environ=ENVIRON)
        sent = b"\n".join(bytes_of(message) for message in messages_about(value, redactor))
        if found_in(sent, value):
            leaked.append(value)

    assert leaked == []


def test_what_signs_a_message_is_in_none_but_ntfys_own_header():
    redactor = Redactor(environ=ENVIRON)
    for message in messages_about("plain", redactor):
        for name, service in SERVICES.items():
            body, headers = service.request(message, SECRET)
            shown = b"\n".join([*(value.encode() for value in headers.values()), body])

            assert (SECRET.encode() in shown) is (name == "ntfy")


def test_a_real_run_full_of_secrets_sends_none(tmp_path, monkeypatch):
    for name in ("USER", "LOGNAME", "HOME", "HOSTNAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    services = list(SERVICES)
    with receiving(usual=b'{"code":0}') as receiver:
        wishes = [
            {"to": service, "url": f"{receiver.url}/x", "per_minute": 60,
             **({} if service in ("slack", "discord") else {"secret_env": "HOOK_SECRET"})}
            for service in services
        ]  # fmt: skip
        config = {
            "name": "r",
            "planted": [value for _, value in PLANTED],
            "telemetry": {"log_dir": str(tmp_path), "messages": wishes},
        }
        log = TelemetryLogger.from_config(
            {"config": config}, system=False, csv=False, log_every=1, close_timeout=60.0
        )
        log.log_step(1, train_loss=0.5, **{"metric of jane.roe": 1.0})
        for number, (_, value) in enumerate(PRIVATE[::20]):
            about = {"id": f"f{number}", "kind": "nan", "severity": "critical"}
            internals(log).put("finding", {**about, "message": f"seen: {value}"})
        log.flush()
        wait_until(lambda: len(receiver.got) >= len(services))
        log.close("failed", error=RuntimeError(" ".join(value for _, value in PRIVATE[7::40])))

    sent = b"\n".join(got.bytes for got in receiver.got)
    assert len(receiver.got) >= 2 * len(services)
    assert b"failed with RuntimeError" in sent
    assert leaks_in(sent) == []
