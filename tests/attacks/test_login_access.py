"""A dashboard with logins and a real provider: operators, viewers, and access denied."""

from __future__ import annotations

import http.client
import json
import secrets
import textwrap
from urllib.parse import quote, urlsplit

import pytest

pytest.importorskip("streamlit")

from PIL import Image

from tests.attacks.http_client import Visitor, pressed
from tests.attacks.two_runs import snapshot, two_runs
from tests.dashboard.serving import dashboard, free_port
from tests.made_runs import write_run


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    with two_runs(tmp_path_factory.mktemp("runs")) as folder:
        yield folder


@pytest.fixture(scope="module")
def provider():
    pytest.importorskip("joserfc", reason="Authlib is missing: pip install -r requirements/login.txt")
    pytest.importorskip("authlib", reason="Authlib is missing: pip install -r requirements/login.txt")
    from tests.attacks.oidc_provider import Provider

    provider = Provider()
    yield provider
    provider.close()


@pytest.fixture(scope="module")
def login(tmp_path_factory, logs, provider):
    """A dashboard with logins, and its provider."""
    from tests.attacks.oidc_provider import CLIENT_ID, CLIENT_SECRET

    folder = tmp_path_factory.mktemp("login")
    port = free_port()
    file = folder / "login.toml"
    file.write_text(
        textwrap.dedent(f"""
        [auth]
        redirect_uri = "http://localhost:{port}/oauth2callback"
        cookie_secret = "{secrets.token_urlsafe(32)}"
        client_id = "{CLIENT_ID}"
        client_secret = "{CLIENT_SECRET}"
        server_metadata_url = "{provider.url}/.well-known/openid-configuration"

        [dashboard]
        allow = ["ann@lab.example", "sub:robot-7"]
        readers = ["@lab.example"]
        """)
    )
    file.chmod(0o600)
    with dashboard(folder, "--port", str(port), "--log-dir", str(logs), "--login", str(file)) as started:
        yield started.wait_until_ready()


def log_in(login, provider, user, **claims):
    """Log in as `user` and return the client afterwards."""
    provider.user, provider.claims = user, claims
    visitor = Visitor(login.port)
    with visitor.tab() as tab:
        button = tab.open("overview", "run=alive").buttons()["Log in"]
        address = tab.open("overview", "run=alive", states=[pressed(button)]).redirect()
    status, headers, _ = visitor.get(address)
    assert status == 302
    there = urlsplit(headers["location"])
    connection = http.client.HTTPConnection(there.netloc, timeout=60)
    connection.request("GET", f"{there.path}?{there.query}")
    back = urlsplit(connection.getresponse().headers["Location"])
    connection.close()
    assert visitor.get(f"{back.path}?{back.query}")[0] == 302
    return visitor


def what_they_see(visitor, page="overview"):
    with visitor.tab() as tab:
        tab.open(page, "run=alive")
        return tab.text.replace("\\", "").replace("\N{WORD JOINER}", ""), tab.buttons()


ANN = {"sub": "1", "email": "Ann@lab.example", "email_verified": True}


def test_no_run_is_visible_before_login(login, logs):
    for page in ("", "compare", "overview", "metrics", "alerts", "config", "settings"):
        text, buttons = what_they_see(Visitor(login.port), page)

        assert set(buttons) == {"Log in"}
        assert "alive" not in text
        assert " records · " not in text
        assert str(logs) not in text


@pytest.mark.parametrize(
    "user",
    [ANN, {"sub": "robot-7"}],
    ids=["by a verified address", "by the id of the provider"],
)
def test_operators_on_the_list_may_control_runs(login, provider, user):
    text, buttons = what_they_see(log_in(login, provider, user))

    assert " records · " in text
    assert {"Save", "Stop", "Apply"} <= set(buttons)


def test_a_reader_who_logged_in_sees_runs_and_changes_nothing(login, provider, logs):
    before = snapshot(logs)
    _, controls = what_they_see(log_in(login, provider, ANN))
    bob = log_in(login, provider, {"sub": "2", "email": "bob@lab.example", "email_verified": True})
    text, buttons = what_they_see(bob)
    with bob.tab() as tab:
        tab.open("overview", "run=alive")
        tab.open("overview", "run=alive", states=[pressed(widget) for widget in controls.values()])

    assert " records · " in text
    assert "Your account has read-only access." in text
    assert not {"Save", "Stop", "Apply"} & set(buttons)
    assert snapshot(logs) == before


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"sub": "3", "email": "eve@evil.example", "email_verified": True}, "is not on the list"),
        ({"sub": "3", "email": "ann@lab.example", "email_verified": "true"}, "is verified"),
    ],
)
def test_users_not_on_the_list_get_a_message_and_see_no_run(login, provider, user, words):
    text, buttons = what_they_see(log_in(login, provider, user))

    assert words in text
    assert f"sub:{user['sub']}" in text, "who keeps the list can put them on it"
    assert set(buttons) == {"Log out"}
    assert " records · " not in text


def test_an_image_is_served_only_to_those_who_may_see_pages(login, provider, logs):
    record = {"event": "sample", "time": 1.7e9, "path": "samples/a.png", "prompt": "a cat", "global_step": 1}
    folder = write_run(logs, "pictured", extra=[record])
    (folder / "samples").mkdir()
    Image.new("RGB", (600, 8), "red").save(folder / "samples" / "a.png")
    # More than one cookie holds, as with an account that is in many groups.
    ann = log_in(login, provider, {**ANN, "groups": [secrets.token_hex(100) for _ in range(40)]})
    eve = log_in(login, provider, {"sub": "3", "email": "eve@evil.example", "email_verified": True})
    chunks = [name for name in ann.cookies if name.startswith("_streamlit_user_1")]
    with ann.tab() as tab:
        elements = tab.open("samples", "run=pictured").elements
        sent = [json.loads(element.bidi_component.json or "{}") for element in elements]
        [place] = [f"{data['columns'][0]['url']}&path=samples/a.png" for data in sent if "layout" in data]
        given = ann.get(place)[0]
        curve = "/curves?c=" + quote(json.dumps([["pictured", "train_loss", 0, {"fit": 800}]]))
        drawn = ann.get(curve)[0]
        kept = {
            path: [visitor.get(path)[0] for visitor in (Visitor(login.port), eve)]
            for path in (
                place,
                f"{place}&x=1",
                place.replace("run", "%72un", 1),
                curve,
                curve.replace("curves", "%63urves", 1),
                "/media/x.png",
                "/_stcore/metrics",
            )
        }
        for name in ("_streamlit_user", *chunks):
            end = "AAA" if ann.cookies[name][-3:] != "AAA" else "BBB"
            forged = Visitor(login.port, cookies={**ann.cookies, name: ann.cookies[name][:-3] + end})
            kept[name] = [forged.get(place)[0]]
        elsewhere = Visitor(login.port).get(f"/{place}")[2]

    assert chunks
    assert (given, drawn) == (200, 200)
    assert {status for statuses in kept.values() for status in statuses} == {403}, kept
    assert b"PNG" not in elsewhere


def test_a_token_not_signed_for_this_login_gives_no_access(login, provider):
    from joserfc.jwk import RSAKey

    for claims in (
        {"aud": "another-app"},
        {"nonce": "of-another-login"},
        {"iss": "http://evil.example"},
        {"exp": 1},
    ):
        text, buttons = what_they_see(log_in(login, provider, ANN, **claims))

        assert set(buttons) == {"Log in"}, claims
    provider.signs_with = RSAKey.generate_key(2048, {"kid": "one"})
    try:
        text, buttons = what_they_see(log_in(login, provider, ANN))
    finally:
        provider.signs_with = provider.key

    assert set(buttons) == {"Log in"}
    assert " records · " not in text


def test_a_forged_cookie_gives_no_access(login, provider):
    from streamlit.web.server.starlette.starlette_app_utils import create_signed_value

    ann = log_in(login, provider, ANN)
    claims = json.dumps(
        {**ANN, "is_logged_in": True, "origin": f"http://localhost:{login.port}", "provider": "default"}
    )
    good = ann.cookies["_streamlit_user"]
    for cookie in (
        create_signed_value("another secret of thirty-two letters", "_streamlit_user", claims).decode(),
        create_signed_value("", "_streamlit_user", claims).decode(),
        good[:-2] + ("AA" if good[-2:] != "AA" else "BB"),
        claims.encode("ascii").hex(),
    ):
        _, buttons = what_they_see(Visitor(login.port, cookies={"_streamlit_user": cookie}))

        assert set(buttons) == {"Log in"}
    # The right one is worth nothing to a page that does not know the other half.
    without = Visitor(login.port, cookies={"_streamlit_user": good, "_streamlit_xsrf": "2|00|00|0"})
    assert set(what_they_see(without)[1]) == {"Log in"}
    assert "Save" in what_they_see(ann)[1]


def test_logout_ends_the_session_and_foreign_errors_stay_text(login, provider):
    ann = log_in(login, provider, ANN)
    ann.get("/auth/logout")
    Visitor(login.port).get("/oauth2callback?error=%1b%5d0%3bowned%07&error_description=%1b%5b2J")

    assert set(what_they_see(ann)[1]) == {"Log in"}
    assert "\x1b" not in login.err + login.out
