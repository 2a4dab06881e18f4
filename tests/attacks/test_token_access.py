"""A dashboard that others can reach: no access without the token, and read-only with the reader token."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys

import pytest

pytest.importorskip("streamlit")

from tests.attacks.http_client import Tab, Visitor, pressed
from tests.attacks.two_runs import snapshot, two_runs
from tests.dashboard.serving import RUN_DASHBOARD, Started, ask, dashboard, free_port
from tests.lengths import in_make_faults, longer


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    with two_runs(tmp_path_factory.mktemp("runs")) as folder:
        yield folder


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, logs):
    """A dashboard open to the network, with an operator address and a viewer address."""
    with dashboard(
        tmp_path_factory.mktemp("guarded"), "--host", "0.0.0.0", "--log-dir", str(logs), "--reader-token"
    ) as started:
        started.wait_until_ready()
        started.steer, started.look = re.findall(r"http://\S+/\?token=\S+", started.out)
        yield started


def tokens(started):
    return [re.search(r"token=(\S+)", address)[1] for address in (started.steer, started.look)]


@pytest.fixture(scope="module")
def owner(guarded):
    visitor = Visitor(guarded.port)
    assert visitor.come_in(guarded.steer) == 200
    return visitor


@pytest.fixture(scope="module")
def reader(guarded):
    visitor = Visitor(guarded.port)
    assert visitor.come_in(guarded.look) == 200
    return visitor


PATHS = (
    *("/", "/overview?run=alive", "/_stcore/health/x", "/_stcore/host-config", "/_stcore/metrics"),
    *("/static/index.html", "/media/x", "/component/x/y", "/favicon.png", "/auth/login"),
    *("/oauth2callback", "/no/such/page", "/run-file?run=alive&path=a.png", "/curves?c=[]"),
    "/curves.csv?c=[]",
)


def forged(guarded):
    """Tokens and cookies that are not quite right."""
    steer, look = tokens(guarded)
    name = f"telemetry_dashboard_{guarded.port}"
    good = Visitor(guarded.port)
    good.come_in(guarded.steer)
    cookie = good.cookies[name]
    other = hashlib.sha256(steer.encode()).hexdigest()
    wrong = [
        "",
        "x",
        "null",
        "undefined",
        "*",
        steer[:-1],
        steer + "x",
        steer.swapcase(),
        steer + look,
        "%00",
        "%C3%A9",
        "%ff",
    ]
    for token in wrong:
        yield {"query": token}
    for value in (*wrong, cookie[:-1], cookie.upper(), other, steer, look, "deleted"):
        yield {"cookies": {name: value}}
    # The cookie of a server on another port, and the right one by another name.
    yield {"cookies": {"telemetry_dashboard_8501": cookie}}
    yield {"cookies": {f" {name}x": cookie}}
    yield {"headers": {"X-Dashboard-Role": "operator"}}
    yield {"headers": {"X-Dashboard-Role": "operator", "Authorization": f"Bearer {other}"}}


def test_without_the_token_nothing_is_served_over_http_or_websocket(guarded, record_property):
    let_in, tried = [], 0
    for path in PATHS:
        tried += 1
        status, headers, body = Visitor(guarded.port).get(path)
        if status != 403 or "set-cookie" in headers or b"requires a token" not in body:
            let_in.append((path, status))
    for attempt in forged(guarded):
        tried += 2
        visitor = Visitor(guarded.port, cookies=attempt.get("cookies"))
        query = f"?token={attempt['query']}" if "query" in attempt else ""
        headers = {name.replace("-", "_"): value for name, value in attempt.get("headers", {}).items()}
        status, answer, _ = visitor.get(f"/{query}", **headers)
        if status != 403 or "set-cookie" in answer or visitor.knock(**headers) != 403:
            let_in.append((attempt, status))
    record_property("measured", f"{tried} requests without the token, {len(let_in)} answered")
    status, headers, body = Visitor(guarded.port).get("/_stcore/health")

    assert let_in == []
    assert (status, body, "set-cookie" in headers) == (200, b"ok", False)


def test_the_token_becomes_a_cookie_and_leaves_the_address(guarded):
    token = tokens(guarded)[0]
    visitor = Visitor(guarded.port)
    status, headers, body = visitor.get(f"/overview?run=a%26b&token={token}&x=1")
    cookie = headers["set-cookie"]

    assert (status, body) == (303, b"")
    assert headers["location"] == "/overview?run=a%26b&x=1"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert {part.strip() for part in cookie.split(";")[1:]} == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert cookie.startswith(f"telemetry_dashboard_{guarded.port}=")
    assert token not in cookie
    assert visitor.knock() == 101
    # Another server on this host can leave a cookie of the same name.
    name, value = next(iter(visitor.cookies.items()))
    assert Visitor(guarded.port, cookies={name: f"tossed; {name}={value}"}).knock() == 101


@pytest.mark.parametrize(
    "path", ["//evil.example/", "/\\evil.example/", "/%2f%2fevil.example/", "/%0d%0aX-Evil:%201", "///"]
)
def test_no_address_with_a_token_leads_to_another_server(guarded, path):
    lines = [f"GET {path}?token={tokens(guarded)[0]} HTTP/1.1", f"Host: localhost:{guarded.port}"]
    status, headers, _ = ask(guarded.port, lines)

    assert status == 303
    assert re.match(r"/(?![/\\])", headers["location"])
    assert "x-evil" not in headers


def test_a_link_from_another_site_is_followed_once_the_page_is_ours(guarded, owner):
    said = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    # A browser keeps a strict cookie back here, and after a redirect as well.
    status, headers, body = Visitor(guarded.port).get(f"/overview?run=r&token={tokens(guarded)[0]}", **said)
    without, _, onward = Visitor(guarded.port).get("/overview?run=%22%3E%3Cscript%3E", **said)

    assert status == 200
    assert b'content="0;url=/overview?run=r"' in body
    assert "HttpOnly; SameSite=Strict" in headers["set-cookie"]
    assert without == 403
    assert b'content="0;url=/overview?run=%22%3E%3Cscript%3E"' in onward
    assert b"<script>" not in onward


def test_a_link_without_a_referrer_is_followed(guarded):
    # Browsers say it to https and to localhost alone; a machine down the hall is neither.
    visitor, asked = Visitor(guarded.port, name=f"10.1.2.3:{guarded.port}"), {"accept": "text/html,*/*"}
    status, headers, body = visitor.get(f"/overview?run=r&token={tokens(guarded)[0]}", **asked)
    stranger = Visitor(guarded.port, name=visitor.name)
    without, _, refused = stranger.get("/overview?run=%22%3E%3Cb%3E", **asked)
    _, _, typed = stranger.get("/overview?run=r", sec_fetch_site="none", **asked)

    assert status == 200
    assert b'content="0;url=/overview?run=r"' in body
    assert "HttpOnly; SameSite=Strict" in headers["set-cookie"]
    assert without == 403
    assert b'<a href="/overview?run=%22%3E%3Cb%3E">Open the page again</a>' in refused
    assert b"<a " not in typed


def test_the_page_that_refuses_says_where_the_token_is_and_repeats_nothing_as_markup(guarded):
    status, headers, body = Visitor(guarded.port).get(
        "/overview?run=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&%3Cb%3E=1&token=%3Cscript%3E",
        accept="text/html",
    )

    assert status == 403
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert b"Open the link printed in the terminal where" in body
    assert b"<script>" not in body
    assert b"<b>" not in body
    assert b'name="run" value="&quot;&gt;&lt;script&gt;' in body, "the way to the run is kept"


def test_foreign_hosts_and_origins_are_refused_even_with_the_token(guarded, owner):
    port = guarded.port
    stranger = Visitor(port, name=f"evil.example:{port}", cookies=owner.cookies)

    assert stranger.get()[0] == 403
    assert stranger.knock() == 403
    assert owner.knock(origin="http://evil.example") == 403
    assert owner.knock(origin=f"http://localhost:{port + 1}") == 403
    assert Visitor(port, name=f"10.1.2.3:{port}", cookies=owner.cookies).knock() == 101


# ---------------------------------------------------------------- who may only look


EVERY_PAGE = ("", "compare", "overview", "metrics", "alerts", "machine", "config")
_MENU = ("Rename and tag…", "Archive", "Unarchive", "Delete")


def test_a_reader_sees_every_page_and_no_control(reader, owner, logs):
    controls = {
        *("Apply", "Save", "Stop", "Set", "Archive", "Tag…", "Clear the cache", "Save changes"),
        "Restore",
    }
    seen, shown = {}, {}
    with reader.tab() as theirs, owner.tab() as ours:
        for page in EVERY_PAGE:
            seen[page] = theirs.open(page, "run=alive").buttons()
            assert "Traceback" not in theirs.text
            shown[page] = ours.open(page, "run=alive").buttons()

    assert controls & set(itertools.chain(*shown.values()))
    # A form that cannot be sent is left in sight, with its notes in it.
    assert controls & set(itertools.chain(*seen.values())) <= {"Save changes"}


@in_make_faults
def test_whatever_a_reader_sends_changes_nothing(reader, owner, logs, record_property):
    with owner.tab() as ours:
        # Every button that there is for who may steer, by the id that the server knows it by.
        found = {
            page: ours.open(page, f"run={run}").buttons() for page in EVERY_PAGE for run in ("alive", "ended")
        }
        menus = {
            run: [
                widget
                for widget in ours.open("overview", f"run={run}").components()
                if f"_menu {run}" in widget
            ]
            for run in ("alive", "ended")
        }
    assert all(menus.values())
    every = {widget for buttons in found.values() for widget in buttons.values()}
    before = snapshot(logs)
    sent = 0
    with reader.tab() as theirs:
        for page, run in itertools.product(
            ("overview", "settings", "alerts", "config", ""), ("alive", "ended")
        ):
            query = f"run={run}"
            theirs.open(page, query)
            theirs.open(page, query, states=[pressed(widget) for widget in every])
            sent += len(every)
            for menu, choice in itertools.product(menus[run] if page == "overview" else (), _MENU):
                chosen = json.dumps({"chosen": {"entry": choice, "at": 1}})
                theirs.open(page, query, states=[{"id": menu, "json_value": chosen}])
                sent += 1
    after = snapshot(logs)
    with owner.tab() as ours:
        save = ours.open("overview", "run=alive").buttons()["Save"]
        ours.open("overview", "run=alive", states=[pressed(save)])
    record_property(
        "measured",
        f"{sent} presses sent by a reader, {len(set(after.items()) ^ set(before.items()))} files changed",
    )

    assert after == before
    assert (logs / "alive" / "control.json").exists(), "the same press of one who may steer arrives"
    (logs / "alive" / "control.json").unlink()


_VALUES = (
    {"bool_value": True},
    {"double_value": 1e308},
    {"int_value": -5},
    {"string_value": "x'\"{"},
    {"string_value": '{"selection": [1]}'},
    {"json_value": "[1"},
    {"json_value": '{"selection": 5}'},
    {"int_array_value": {"data": [99_999]}},
    {"double_array_value": {"data": [1.0]}},
    {"string_array_value": {"data": ["no such option", "y"]}},
    {"bytes_value": b"\xff"},
    {"trigger_value": True},
    {"string_trigger_value": {"data": "no such option"}},
    {"json_trigger_value": "[1"},
    {"chat_input_value": {"data": "x"}},
    {"arrow_value": {}},
    {"file_uploader_state_value": {}},
)
"""A value of each type that a widget may have, wrong for all others."""


def test_widget_values_of_another_type_neither_fail_nor_print(reader, guarded, record_property):
    before = guarded.out + guarded.err
    sent = 0
    with reader.tab() as tab:
        for page in longer(("metrics", "machine"), EVERY_PAGE):
            tab.open(page, "run=alive")
            widgets = {getattr(getattr(one, one.WhichOneof("type")), "id", "") for one in tab.elements} - {""}
            for value in longer(_VALUES[::4], _VALUES):
                tab.open(page, "run=alive", states=[{"id": widget, **value} for widget in widgets])
                sent += len(widgets)
                assert [one for one in tab.elements if one.WhichOneof("type") == "exception"] == []
    record_property("measured", f"{sent} values of another type, 0 bytes printed")

    assert sent > 30
    assert guarded.out + guarded.err == before


def test_a_reader_cannot_claim_rights_or_take_over_the_tab_of_another(guarded, reader, owner, logs):
    with owner.tab() as ours:
        save = ours.open("overview", "run=alive").buttons()["Save"]
        taken = ours.session
        with reader.tab(session=taken) as theirs:
            theirs.open("overview", "run=alive", states=[pressed(save)])
            over = theirs.session
            shown = theirs.buttons()
    # A tab that was closed is kept for a while, for its owner to come back to.
    with reader.tab(session=taken) as theirs:
        theirs.open("overview", "run=alive", states=[pressed(save)])
        afterwards = theirs.session
    for claim in (
        {"X_Dashboard_Role": "operator"},
        {"x_dashboard_role": "operator"},
        {"X_DASHBOARD_ROLE": "operator"},
    ):
        with reader._connect(None, claim) as connection:
            tab = Tab(connection).open("overview", "run=alive", states=[pressed(save)])
            assert "Save" not in tab.buttons()

    assert taken not in (over, afterwards)
    assert "Save" not in shown
    assert not (logs / "alive" / "control.json").exists()


# ---------------------------------------------------------------- a token of one's own, and a proxy in front


@in_make_faults
def test_a_fixed_token_survives_a_restart_and_cookies_are_secure_behind_https(tmp_path, logs):
    token = "a-token-of-my-own-that-is-long-1234567"
    file = tmp_path / "token.txt"
    file.write_text(token + "\n")
    file.chmod(0o600)
    port = free_port()
    command = [
        sys.executable,
        str(RUN_DASHBOARD),
        "--no-browser",
        "--port",
        str(port),
        "--log-dir",
        str(logs),
    ]
    command += ["--public-url", "https://Runs.example.org/"]
    visitor = Visitor(port, name="runs.example.org", scheme="https")
    with Started([*command, "--token-file", str(file)], tmp_path) as started:
        started.wait_for("Dashboard: ")
        said = started.out + started.err
        unknown = visitor.knock()
        status, headers, _ = visitor.get(f"/?token={token}")
        _, more, _ = visitor.get("/_stcore/host-config")
        granted = visitor.knock()
        in_the_clear = visitor.knock(origin="http://runs.example.org")
        elsewhere = visitor.knock(origin="https://runs.example.org:8443")
        by_another_name = Visitor(port, name="evil.example", scheme="https", cookies=visitor.cookies).knock()
        started.end()
    with Started(command, tmp_path, environ={"TELEMETRY_DASHBOARD_TOKEN": token}) as again:
        again.wait_for("Dashboard: ")
        said += again.out + again.err
        still = visitor.knock()
        again.end()

    assert "Dashboard: https://runs.example.org  (runs in" in said
    assert token not in said
    assert (unknown, status, granted, still) == (403, 303, 101, 101)
    assert (in_the_clear, elsewhere, by_another_name) == (403, 403, 403)
    assert headers["set-cookie"].endswith("; Secure")
    assert more.get("set-cookie", "; Secure").endswith("; Secure")
