from __future__ import annotations

import gzip
import hashlib
import re

import pytest

pytest.importorskip("streamlit")

from dashboard.assets import plotly_js_file, plotly_js_url, whole_plotly_js_file, whole_plotly_js_url
from dashboard.network_guard import AllowedHosts, PublicUrl
from tests.dashboard.serving import dashboard, get


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with dashboard(tmp_path_factory.mktemp("dashboard")) as started:
        yield started.wait_until_ready()


# tests/attacks/test_http_exposure.py tries many more hosts and origins.


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/", None),
        ("/_stcore/health", None),
        ("/no/such/file.js", None),
        (plotly_js_url(), None),
        ("/", "evil.example"),
    ],
)
def test_every_answer_says_what_a_browser_may_do_with_it(server, path, host):
    _, headers, _ = get(server.port, path, host=host)
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))

    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["img-src"] == "'self' data: blob:"
    assert "evil" not in policy["connect-src"]
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"


def test_a_page_may_open_a_socket_to_its_own_port_and_to_no_other(server):
    _, headers, _ = get(server.port)

    assert (
        f"connect-src 'self' ws://localhost:{server.port} wss://localhost:{server.port};"
        in (headers["content-security-policy"])
    )


NPM_SHA256 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
PLOTLY = {
    plotly_js_url(): plotly_js_file(),
    whole_plotly_js_url(): whole_plotly_js_file(),
}


@pytest.mark.parametrize("url", PLOTLY)
def test_plotly_comes_from_this_machine_and_may_be_kept(server, url):
    status, headers, body = get(server.port, url)

    assert status == 200
    assert headers["cache-control"] == "public, max-age=31536000, immutable"
    assert headers["content-type"].startswith("text/javascript")
    assert body == PLOTLY[url].read_bytes()


@pytest.mark.parametrize(("url", "most"), [*zip(PLOTLY, (600_000, 1_700_000), strict=True)])
def test_plotly_comes_compressed_to_browsers_that_accept_it(server, url, most):
    _, headers, body = get(server.port, url, accept_encoding="gzip, deflate, br")

    assert headers["content-encoding"] == "gzip"
    assert len(body) < most
    assert gzip.decompress(body) == PLOTLY[url].read_bytes()


def test_plotly_is_the_file_of_its_npm_package():
    content = plotly_js_file().read_bytes()

    assert b"Licensed under the MIT license" in content[:300]
    assert re.search(rb"v([\d.]+)", content[:300])[1].decode() in plotly_js_file().name
    assert hashlib.sha256(content).hexdigest() == NPM_SHA256


# ---------------------------------------------------------------- without a server


@pytest.mark.parametrize(
    ("host", "admitted"),
    [
        ("192.168.1.7:8501", True),
        ("[fe80::1]:8501", True),
        ("localhost:8501", True),
        ("192.168.1.7", False),
        ("evil.example:8501", False),
        ("1.2.3.4.evil.example:8501", False),
        ("[fe80::1%25eth0]:8501", False),
        ("0x7f000001:8501", False),
        ("[evil]:8501", False),
    ],
)
def test_a_server_that_listens_everywhere_answers_to_bare_addresses(host, admitted):
    assert AllowedHosts(port=8501, any_address=True).allows_host(host) is admitted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://runs.example.org", "https://runs.example.org"),
        ("HTTPS://Runs.Example.Org/", "https://runs.example.org"),
        ("https://runs.example.org:443", "https://runs.example.org"),
        ("https://runs.example.org:8443", "https://runs.example.org:8443"),
        ("http://10.1.2.3", "http://10.1.2.3"),
        ("https://[2001:db8::1]:444", "https://[2001:db8::1]:444"),
        ("runs.example.org", None),
        ("ftp://runs.example.org", None),
        ("https://", None),
        ("https://runs.example.org/folder", None),
        ("https://me@runs.example.org", None),
        ("https://runs.example.org:", None),
        ("https://runs.example.org:0", None),
        ("https://runs.example.org:99999", None),
        ("https://runs.example.org;script-src *", None),
        ("https://runs.example.org?x", None),
        ("https://*.example.org", None),
    ],
)
def test_the_address_of_a_proxy_is_a_scheme_a_name_and_a_port(text, shown):
    url = PublicUrl.parse(text)

    assert (None if url is None else str(url)) == shown


@pytest.mark.parametrize(
    ("host", "origin", "is_taken"),
    [
        ("runs.example.org", "https://runs.example.org", True),
        ("runs.example.org:443", "https://runs.example.org", True),
        ("RUNS.example.org", "https://runs.example.org:443", True),
        ("runs.example.org", "http://runs.example.org", False),
        ("runs.example.org", "https://evil.example", False),
        ("runs.example.org", "https://runs.example.org:8443", False),
        ("localhost:8501", "http://localhost:8501", True),
        ("localhost:8501", "https://runs.example.org", False),
        ("runs.example.org:8501", "https://runs.example.org:8501", False),
        ("runs.example.org:80", "http://runs.example.org", False),
        ("evil.example", "https://evil.example", False),
    ],
)
def test_behind_a_proxy_its_name_is_ours_by_its_scheme_and_port_alone(host, origin, is_taken):
    allowed_hosts = AllowedHosts(port=8501, public=PublicUrl.parse("https://runs.example.org"))

    assert (allowed_hosts.allows_host(host) and allowed_hosts.allows_origin(origin, host)) is is_taken
    assert allowed_hosts.is_encrypted(host) is (allowed_hosts.allows_host(host) and "localhost" not in host)
