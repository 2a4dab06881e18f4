"""Messages go to public machines by https, or to this machine; any other address is refused, however it is spelled."""

from __future__ import annotations

import ipaddress

import pytest

from toolkit.telemetry.mirrors.messages.options import MessageOptions
from toolkit.telemetry.mirrors.messages.receiver import warning_about
from toolkit.telemetry.mirrors.messages.web_address import (
    AddressError,
    is_private,
    web_address,
)


@pytest.mark.parametrize(
    ("url", "shown", "target", "is_loopback"),
    [
        ("https://hooks.slack.com/services/T/B/x", "https://hooks.slack.com", "/services/T/B/x", False),
        (
            "https://open.feishu.cn/open-apis/bot/v2/hook/x",
            "https://open.feishu.cn",
            "/open-apis/bot/v2/hook/x",
            False,
        ),
        ("https://open.larksuite.com/hook", "https://open.larksuite.com", "/hook", False),
        ("https://example.org", "https://example.org", "/", False),
        ("https://example.org:8443/a?b=c", "https://example.org:8443", "/a?b=c", False),
        ("https://example.org:443/a#part", "https://example.org", "/a", False),
        ("https://93.184.216.34/a", "https://93.184.216.34", "/a", False),
        ("https://[2606:2800:220:1::1]/a", "https://[2606:2800:220:1::1]", "/a", False),
        ("http://localhost:9000/a", "http://localhost:9000", "/a", True),
        ("http://127.0.0.1/a", "http://127.0.0.1", "/a", True),
        ("http://127.9.8.7:5/", "http://127.9.8.7:5", "/", True),
        ("http://[::1]:5/", "http://[::1]:5", "/", True),
        ("HTTPS://Example.ORG/A", "https://example.org", "/A", False),
    ],
)
def test_an_address_that_may_be_sent_to_is_taken_apart(url, shown, target, is_loopback):
    address = web_address(url)

    assert (address.shown, address.target, address.is_loopback) == (shown, target, is_loopback)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://example.org/hook", "over unencrypted http"),
        ("http://10.0.0.5/hook", "allow_private: true"),
        ("https://10.0.0.5/hook", "allow_private: true"),
        ("https://192.168.1.1/hook", "in a private network"),
        ("https://172.16.0.1/", "in a private network"),
        ("https://169.254.169.254/latest/meta-data", "not a public address"),
        ("https://100.100.100.200/", "not a public address"),
        ("https://192.0.0.192/", "not a public address"),
        ("https://168.63.129.16/", "not a public address"),
        ("https://0.0.0.0/", "not a public address"),
        ("https://224.0.0.1/", "not a public address"),
        ("https://[fe80::1]/", "not a public address"),
        ("https://[fd00:ec2::254]/", "not a public address"),
        ("https://[::ffff:10.0.0.1]/", "not a public address"),
        ("https://[64:ff9b::a9fe:a9fe]/", "not a public address"),
        ("https://[2002:7f00:1::]/", "not a public address"),
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
        ("https://example.org\\@10.0.0.1/", "percent-encoded"),
        ("https://exämple.org/", "percent-encoded"),
        ("https://[::1/", "host or port"),
        ("https://exam|ple.org/", "host or port"),
    ],
)
def test_any_other_is_refused_with_the_reason_and_without_its_path(url, said):
    with pytest.raises(AddressError) as refusal:
        web_address(url)

    assert said in str(refusal.value)
    assert "hook" not in str(refusal.value)
    assert "word" not in str(refusal.value)


@pytest.mark.parametrize("host", ["example.org", "2130706433", "0x7f.1", "127.1", "localhost.example.org"])
def test_a_name_may_resolve_to_public_addresses_only(host):
    address = web_address(f"https://{host}/")

    assert address.may_be("93.184.216.34")
    for private in (
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "::1",
        "fe80::1%eth0",
        "::ffff:127.0.0.1",
        "nonsense",
    ):
        assert not address.may_be(private)


def test_localhost_may_resolve_to_this_machine_only():
    address = web_address("http://localhost:1/")

    assert address.may_be("127.0.0.1")
    assert address.may_be("::1")
    assert not address.may_be("93.184.216.34")
    assert not address.may_be("10.0.0.1")


def test_what_an_address_shows_of_itself_is_no_secret():
    address = web_address("https://hooks.slack.com/services/T0/B0/s3cr3t?token=word")

    assert "s3cr3t" not in repr(address) + str(address)
    assert "word" not in repr(address) + str(address)


@pytest.mark.parametrize(
    ("service", "url", "is_warned"),
    [
        ("slack", "https://hooks.slack.com/services/T/B/s3cr3t", True),
        ("webhook", "https://hooks.slack.com/services/T/B/s3cr3t", False),
        ("slack", "http://localhost:1/x", False),
    ],
)
def test_a_secret_address_in_the_options_is_warned_of(service, url, is_warned):
    [options] = MessageOptions.from_block("telemetry.messages", {"to": service, "url": url})

    assert (warning_about(options) is not None) is is_warned


# ------------------------------------------------------------ one's own network


@pytest.mark.parametrize(
    "url",
    [
        *("http://169.254.169.254/latest/", "https://169.254.169.254/", "https://[fd00:ec2::254]/"),
        *(
            "http://100.100.100.200/latest/",
            "https://192.0.0.192/",
            "https://168.63.129.16/",
            "http://0.0.0.0/",
        ),
        *(
            "https://[fe80::1]/",
            "https://[::ffff:10.0.0.1]/",
            "https://[::ffff:169.254.169.254]/",
            "http://224.0.0.1/",
        ),
        *(
            "http://93.184.216.34/x",
            "https://[64:ff9b::a00:1]/",
            "https://[fd20:ce::254]/",
            "http://198.18.0.1/",
        ),
    ],
)
def test_nothing_else_is_allowed_with_it(url):
    with pytest.raises(AddressError):
        web_address(url, allow_private=True)


def test_a_name_may_resolve_to_a_private_address_where_allowed_and_over_http_to_no_other():
    encrypted = web_address("https://chat.corp.example/", allow_private=True)
    plain = web_address("http://chat.corp.example/", allow_private=True)

    for address in (encrypted, plain):
        assert address.may_be("10.1.2.3")
        assert address.may_be("fd12::1")
        for never in (
            *("127.0.0.1", "::1", "169.254.169.254", "fe80::1%eth0", "::ffff:10.0.0.1", "::ffff:127.0.0.1"),
            *("100.100.100.200", "fd00:ec2::254", "0.0.0.0", "224.0.0.1", "nonsense"),
        ):
            assert not address.may_be(never)
    assert encrypted.may_be("93.184.216.34")
    assert not plain.may_be("93.184.216.34")
    assert not web_address("http://localhost/", allow_private=True).may_be("10.1.2.3")


@pytest.mark.parametrize(
    "network", ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"]
)
def test_private_networks_are_the_reserved_ones(network):
    edges = ipaddress.ip_network(network)

    assert is_private(edges[0])
    assert is_private(edges[-1])
    assert not is_private(edges[0] - 1)
    assert not is_private(edges[-1] + 1)
