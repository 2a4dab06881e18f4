"""An invalid `messages:` block is refused immediately, without showing a secret in it."""

from __future__ import annotations

import pytest

from toolkit.telemetry.logger.options import OptionsError, TelemetryOptions
from toolkit.telemetry.mirrors.messages.options import OCCASIONS, AddressError, MessageOptions, web_address

SLACK = "https://hooks.slack.com/services/T000/B000/s3cr3ts3cr3t"


def receivers(block):
    return MessageOptions.from_block("telemetry.messages", block)


def refusal(block):
    with pytest.raises(OptionsError) as raised:
        TelemetryOptions.from_mapping({"messages": block})
    return str(raised.value)


def test_a_receiver_is_reported_everything_unless_it_says_otherwise():
    [one] = receivers({"to": "slack", "url_env": "HOOK"})

    assert (one.to, one.url, one.url_env, one.when) == ("slack", None, "HOOK", OCCASIONS)
    assert one.place == "telemetry.messages[0]"


def test_a_whole_receiver_is_taken_over():
    [one, lan] = receivers(
        [
            {
                "to": "ntfy",
                "url": "https://ntfy.sh/topic",
                "secret_env": "NTFY_TOKEN",
                "when": ["failure", "milestone"],
                "link": "https://dash.example.org/?run={run}",
                "per_minute": 2,
            },
            {"to": "ntfy", "url": "http://ntfy.lan/training", "allow_private": True},
        ]
    )

    assert one.url.shown == "https://ntfy.sh"
    assert (one.when, one.per_minute) == (("failure", "milestone"), 2)
    assert lan.url.shown == "http://ntfy.lan"


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"to": "pager", "url_env": "A"}, "messages[0].to is 'pager'; it must be one of 'lark', 'slack'"),
        ({"to": "slack"}, "messages[0] has neither url nor url_env; it must have one of them"),
        ({"to": "slack", "url": SLACK, "url_env": "A"}, "messages[0] has both url and url_env"),
        (
            {"to": "webhook", "url": "http://10.1.1.1/x"},
            "messages[0].url goes to 10.1.1.1 over unencrypted http; it must be https, or in your own network",
        ),
        ({"to": "webhook", "url": 5}, "messages[0].url is a int without an address"),
        (
            {"to": "slack", "url_env": "A", "secret_env": "B"},
            "messages[0].secret_env is 'B'; it must be absent",
        ),
        (
            {"to": "slack", "url_env": "A", "when": "lunch"},
            "messages[0].when is 'lunch'; it must be one of 'start'",
        ),
        (
            {"to": "slack", "url_env": "A", "per_minute": 0},
            "messages[0].per_minute is 0; it must be a whole number",
        ),
        (
            {"to": "slack", "url_env": "A", "link": "dash"},
            "messages[0].link is 'dash'; it must be an address",
        ),
        ({"to": "slack", "url_env": "A", "link": "https://a:b@c/"}, "messages[0].link is"),
        (
            {"to": "slack", "url_env": "A", "on": ["start"]},
            "messages[0].on is not an option. Known: allow_private",
        ),
        ([{"to": "slack", "url_env": "A"}] * 21, "messages lists 21 receivers"),
    ],
)
def test_a_wrong_receiver_is_refused_by_key_and_what_is_allowed(block, said):
    assert said in refusal(block)


@pytest.mark.parametrize(
    "block",
    [
        {"to": "slack", "url": SLACK.replace("https", "http")},
        {"to": "slack", "url": SLACK.replace("https://", "")},
        {"to": "slack", "url_env": SLACK},
        {"to": "slack", "url": [SLACK]},
        {"to": "slack", "webhook": SLACK},
        {"to": "lark", "url_env": "A", "secret": "s3cr3ts3cr3t"},
        {"to": "lark", "url_env": "A", "secret_env": "s3cr3t-s3cr3t"},
        {"to": "lark", "url_env": "A", "secret_env": ["s3cr3ts3cr3t"]},
        {"to": "ntfy", "url": "https://me:s3cr3ts3cr3t@ntfy.sh/topic"},
        {"to": "slack", "url": SLACK, "url_env": "A"},
    ],
)
def test_a_refusal_shows_no_secret(block):
    assert "s3cr3t" not in refusal(block)


# ------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    ("url", "shown", "masked"),
    [
        ("https://hooks.slack.com/services/T/B/x", "https://hooks.slack.com", "/***"),
        ("https://example.org", "https://example.org", "/"),
        ("https://example.org:8443/a?b=c", "https://example.org:8443", "/***"),
        ("https://example.org/a#part", "https://example.org", "/***"),
        ("http://localhost:9000/a", "http://localhost:9000", "/***"),
        ("http://[::1]:5/", "http://[::1]:5", "/"),
        ("HTTPS://Example.ORG/A", "https://example.org", "/***"),
    ],
)
def test_of_an_address_only_the_host_is_shown(url, shown, masked):
    address = web_address(url)

    assert (address.shown, address.masked) == (shown, shown + masked)
    assert "T/B" not in repr(address) + str(address)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://example.org/hook", "over unencrypted http"),
        ("http://10.0.0.5/hook", "allow_private: true"),
        ("http://127.0.0.1.example.org/", "over unencrypted http"),
        ("https://user:word@example.org/", "login"),
        ("https://example.org@10.0.0.1/", "login"),
        ("ftp://example.org/", "not an https address"),
        ("file:///etc/passwd", "not an https address"),
        ("example.org/hook", "not an https address"),
        ("https://", "not an https address"),
        ("", "not an https address"),
        ("https://example.org:0/", "host or port"),
        ("https://example.org:99999/", "host or port"),
        ("https://exa mple.org/", "percent-encoded"),
        ("https://example.org/\r\nX: y", "percent-encoded"),
        ("https://exämple.org/", "percent-encoded"),
        ("https://[::1/", "host or port"),
        ("https://exam|ple.org/", "host or port"),
    ],
)
def test_any_other_address_is_refused_with_the_reason_and_without_its_path(url, said):
    with pytest.raises(AddressError) as refusal:
        web_address(url)

    assert said in str(refusal.value)
    assert "/hook" not in str(refusal.value).replace("hooks.example.org", "")
    assert "word" not in str(refusal.value)
