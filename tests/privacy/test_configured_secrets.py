from __future__ import annotations

import pytest

from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.privacy import configured_secrets
from toolkit.telemetry.privacy.configured_secrets import credentials_in, keep_secrets_of, parts_of_address
from toolkit.telemetry.privacy.masking import Masker, mask_secrets
from toolkit.telemetry.privacy.record_masking import RecordMasker

MATTERMOST = "https://chat.example.org/hooks/abcdefghijklmnopqrstuvwxyz"
CUSTOM = "https://chat.example.org/team/garden-of-the-east"


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(configured_secrets, "_kept", {})


@pytest.mark.parametrize(
    "address", ["https://chat.example.org", "https://chat.example.org/", "http://localhost:4318", ""]
)
def test_an_address_that_is_a_host_and_no_more_hides_nothing(address):
    assert parts_of_address(address) == set()


def test_common_words_of_webhooks_are_not_secrets_and_their_patterns_are_still_found():
    """Else the address of another one would no longer look like one."""
    block = {"messages": [{"to": "slack", "url": "https://hooks.slack.com/services/T0/B0/abc"}]}
    keep_secrets_of(TelemetryOptions.from_mapping(block), {})

    assert mask_secrets("services and webhooks") == "services and webhooks"
    assert mask_secrets("see https://hooks.slack.com/services/T1/B1/a1b2c3") == "see ***"


def test_the_usual_address_of_a_collector_stays_readable():
    assert credentials_in("http://localhost:4318/v1/traces") == set()


def test_the_headers_of_a_collector_are_secrets_whatever_they_are_called():
    masker = Masker({"OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=garden%20east,x-b=of-the-west"})

    assert masker.mask("garden east, of-the-west, x-tenant") == "***, ***, x-tenant"


@pytest.mark.parametrize("to", ["slack", "lark", "feishu", "discord", "ntfy", "webhook"])
@pytest.mark.parametrize("masker", [Masker({}), RecordMasker()], ids=["any", "records"])
def test_the_address_of_a_receiver_is_hidden_wherever_a_configuration_has_it(to, masker):
    receiver = {"to": to, "url": CUSTOM, "when": ["failure"]}
    hidden = {**receiver, "url": "***"}

    assert masker.mask({"telemetry": {"messages": [receiver]}}) == {"telemetry": {"messages": [hidden]}}
    if isinstance(masker, RecordMasker):
        assert masker.mask_fields(dict(receiver)) == hidden
        assert masker.mask_fields({"config": dict(receiver)}) == {"config": hidden}


def test_another_url_is_shown():
    given = {"to": "cuda", "url": CUSTOM, "from": "cpu"}

    assert mask_secrets(given) == given


@pytest.mark.parametrize(
    "address",
    [
        MATTERMOST.replace("abc", "a1c"),
        "https://chat.example.org/hooks/64f0c1f7b4d2/hGq3Yb7nWv2KpXs9",
        "https://acme.webhook.office.com/webhookb2/0a1b2c3d/IncomingWebhook/4e5f/6a7b",
        "https://prod-12.westeurope.logic.azure.com:443/workflows/0a1b2c/triggers/manual/paths/invoke?sig=x",
        "https://ha.example.org:8123/api/webhook/a1b2c3d4e5f6",
        "https://hc-ping.com/0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f",
    ],
)
def test_a_webhook_of_an_unknown_host_is_known_by_its_look(address):
    assert mask_secrets(f"posting to {address} now") == "posting to *** now"


@pytest.mark.parametrize("otlp", ["bob:collector-word@localhost:4318", "ftp://bob:collector-word@x/"])
def test_a_wrong_address_with_a_login_is_not_repeated(otlp):
    with pytest.raises(OptionsError, match="telemetry.otlp") as refusal:
        TelemetryOptions.from_mapping({"otlp": otlp})

    assert "collector-word" not in str(refusal.value)


def test_an_option_that_there_is_not_is_not_repeated_with_a_login():
    with pytest.raises(OptionsError, match="telemetry.otlp_endpoint") as refusal:
        TelemetryOptions.from_mapping({"otlp_endpoint": "http://bob:collector-word@localhost:4318"})

    assert "collector-word" not in str(refusal.value)
