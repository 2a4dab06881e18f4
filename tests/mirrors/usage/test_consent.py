from __future__ import annotations

import pytest

from toolkit.telemetry.logger.options import OptionsError, TelemetryOptions
from toolkit.telemetry.mirrors.usage.options import DO_NOT_TRACK, UsageOptions

ASKED_FOR = UsageOptions(enabled=True, host="https://eu.i.posthog.com", key_env="K")


@pytest.mark.parametrize("variable", DO_NOT_TRACK)
@pytest.mark.parametrize("value", ["1", "true", "Yes", "ON", " 1 ", "2", "please", "enabled"])
def test_do_not_track_wins_over_the_yaml(variable, value):
    assert ASKED_FOR.why_not("local", {"K": "phc_x", variable: value}) == f"{variable} is set"


@pytest.mark.parametrize("variable", DO_NOT_TRACK)
@pytest.mark.parametrize("value", ["", " ", "0", "false", "NO", "Off", " 0 "])
def test_a_variable_that_says_no_refuses_nothing(variable, value):
    assert ASKED_FOR.why_not("local", {"K": "phc_x", variable: value}) is None


@pytest.mark.parametrize("key", ["", "phx_secret", "phs_secret", "a b", "schlüssel", "x" * 201])
def test_an_invalid_key_or_one_that_may_read_is_refused_without_being_shown(key):
    assert ASKED_FOR.state("local", {"K": key}) == (
        "off: K, the variable of telemetry.usage_reports.key_env, holds no project key"
    )


# ------------------------------------------------------------ the options


@pytest.mark.parametrize("block", [True, {}, {"enabled": True}, {"key_env": "K"}, {"host": None}])
def test_reports_without_a_host_are_refused_by_name(block):
    with pytest.raises(OptionsError) as refusal:
        TelemetryOptions(usage_reports=block)

    assert str(refusal.value) == (
        "telemetry.usage_reports.host is None; it must be the https address of a PostHog server, such as "
        "https://eu.i.posthog.com"
    )


@pytest.mark.parametrize(
    "host",
    ["https://eu.i.posthog.com", "https://10.0.0.7:8000", "https://posthog.cluster.internal/collect/",
     "http://localhost:8000", "http://127.0.0.1:1", "http://[::1]:8000"],
)  # fmt: skip
def test_https_and_this_machine_are_taken(host):
    assert TelemetryOptions(usage_reports={"host": host}).usage_options.host == host


@pytest.mark.parametrize(
    "host",
    ["http://eu.i.posthog.com", "http://10.0.0.7", "http://localhost.example.org", "http://127.0.0.1.nip.io",
     "eu.i.posthog.com", "ftp://a", "https://", "https://a b", "https://a:0", "file:///etc", 5, ""],
)  # fmt: skip
def test_other_addresses_are_refused_by_name_and_value(host):
    with pytest.raises(OptionsError) as refusal:
        TelemetryOptions(usage_reports={"host": host})

    assert str(refusal.value).startswith(f"telemetry.usage_reports.host is {host!r}; it must be ")


@pytest.mark.parametrize(
    "host", ["https://me:hunter2@a.example", "https://a.example/?key=hunter2", "https://hunter2@a"]
)
def test_a_secret_in_an_address_is_refused_and_not_shown(host):
    with pytest.raises(OptionsError) as refusal:
        TelemetryOptions(usage_reports={"host": host})

    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("given", ["phc_0123456789abcdef", "a-b", "1A", "", 5, None, "phx_x"])
def test_a_key_where_the_name_of_its_variable_belongs_is_refused_and_not_shown(given):
    with pytest.raises(OptionsError) as refusal:
        TelemetryOptions(usage_reports={"host": "https://a.example", "key_env": given})

    assert str(refusal.value).startswith(
        "telemetry.usage_reports.key_env is not the name of an environment variable"
    )
    assert "phc_" not in str(refusal.value)
