"""The first screen that the server writes into a page: what is in it, for whom, and when there is none."""

from __future__ import annotations

import asyncio
import html
import json
import math
import re
import secrets
import shutil
import threading
from dataclasses import replace

import pytest

from dashboard import first_response, first_screen
from dashboard.access.login import AllowList, Login, LoginGate, UserHeader, UserHeaderGate
from dashboard.access.roles import Role, with_role
from dashboard.access.token_gate import TokenGate
from dashboard.access.tokens import AccessTokens
from dashboard.assets import page_script_url
from dashboard.first_response import completed
from dashboard.settings import DashboardSettings, PageAccess
from tests.dashboard.views.pages import open_page, parts_of
from tests.made_runs import write_run
from toolkit.telemetry.runfolder.labels import read_project, write_project
from toolkit.telemetry.runs.sources.local_store import LocalStore

PAGE = b'<html><body><div id="root"></div></body></html>'
RUN = "/overview?run=one"


def everyone(application):
    async def pages(scope, receive, send):
        await application(with_role(scope, Role.OPERATOR), receive, send)

    return pages


async def streamlit(scope, receive, send):
    headers = [(b"content-type", b"text/html; charset=utf-8"), (b"etag", b"1"), (b"content-length", b"48")]
    assert not [name for name, _ in scope["headers"] if name in (b"accept-encoding", b"if-none-match")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": PAGE[:9], "more_body": True})
    await send({"type": "http.response.body", "body": PAGE[9:]})


def get(url, gate=everyone, *, application=streamlit, method="GET", **headers):
    """Return status, headers and body as a visitor gets them through a gate."""
    path, _, query = url.partition("?")
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": given}
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request"}

    whole = completed(
        application, lambda *asked: first_screen.first_screen(*asked), has_login=gate is by_login
    )
    asyncio.run(gate(whole)(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent).decode()
    return sent[0]["status"], dict(sent[0]["headers"]), body


@pytest.fixture(autouse=True)
def _for_as_long_as_it_takes(monkeypatch):
    monkeypatch.setattr(first_response, "_SECONDS", 60.0)


@pytest.fixture
def one(logs):
    return write_run(logs, "one", curves={"train_loss": lambda step: 2 - step / 300}, sessions=(range(300),))


def test_with_a_token_a_first_screen_is_drawn_without_a_word_in_the_terminal(one, monkeypatch, caplog):
    settings = replace(DashboardSettings.in_use, access=PageAccess(by="token"))
    monkeypatch.setattr(DashboardSettings, "in_use", settings)

    assert "<h1>one</h1>" in first_screen.first_screen("/overview", {"run": "one"}, {})
    assert caplog.messages == []


@pytest.mark.usefixtures("one")
def test_it_says_what_the_page_will_say_and_draws_the_curve():
    status, headers, body = get(RUN, accept_encoding="gzip", if_none_match="1")
    tab = open_page("overview", "one")

    assert status == 200
    assert headers[b"content-length"] == str(len(body.encode())).encode()
    assert headers[b"cache-control"] == b"no-store"
    assert b"etag" not in headers
    assert tab.name_shown() in re.findall("<h1>(.*?)</h1>", body)
    labels, values = (parts_of(body, f"telemetry-card-{part}") for part in ("label", "value"))
    assert dict(zip(labels, values, strict=True)) == tab.cards() != {}
    [line] = re.findall(r'<path class="line[^"]*" style="[^"]*" d="M(.*?)"', body)
    points = [tuple(map(float, point.split())) for point in line.split("L")]
    assert len(points) == 300
    assert points == sorted(points)
    assert [points[0][0], points[-1][0]] == [0, 1000]
    # Only links can be clicked, and no script comes with it but ours, by name, next to what Streamlit would ask for.
    head, shown = body.split('<div class="telemetry-first"')
    assert re.findall("<script[^>]*>", head) == [
        "<script>",
        f'<script type="module" src="{page_script_url()}">',
    ]
    assert "window.__streamlit" in head
    assert not re.search("<(script|button|input|form)|\\son[a-z]+=", shown)
    assert shown.index("</main>") < shown.index('id="root"')


@pytest.mark.usefixtures("one")
def test_of_a_run_that_is_not_named_it_shows_the_newest():
    assert "telemetry-first" in get("/overview")[2]


def test_its_charts_have_the_curves_and_colours_of_the_page(logs):
    norms = {"train_loss": lambda step: 2 - step / 300, "grad_norm": lambda step: 1 + step % 7}
    for name in ("one", "two"):
        write_run(logs, name, curves=norms, project="p", sessions=(range(300),))
    write_project(logs, "p", replace(read_project(logs, "p"), baseline="two"))
    loss, norm = open_page("overview", "one").curve_charts()[:2]
    body = get(RUN)[2]

    drawn = [re.findall(r'class="line.*?light-dark\(([^)]*)\)', part) for part in body.split("<h2>")[1:]]
    # The baseline is below the run.
    assert drawn == [[",".join(one["colour"]) for one in reversed(of["curves"])] for of in (loss, norm)]
    assert [one["label"] for one in loss["curves"]] == ["train loss", "baseline two"]
    assert "telemetry-first" not in get(f"{RUN}&baseline=two")[2].partition("</style>")[2]


def test_an_alert_is_what_the_detectors_say_of_all_records(logs, monkeypatch):
    write_run(logs, "one", curves={"train_loss": lambda step: math.nan if step > 50 else 1.0})
    examine = LocalStore.examine
    monkeypatch.setattr(LocalStore, "examine", lambda store, key, **_: examine(store, key, wait_s=60.0))

    assert "from step 51 on (49 records)" in get(RUN)[2].partition('class="telemetry-alert"')[2]


def test_a_run_that_failed_says_at_once_what_to_do_now(logs):
    write_run(logs, "one", status="failed")

    assert "<li>It ended at step 99.</li>" in get(RUN)[2]


def test_every_text_is_escaped(logs):
    evil = '"><img src=x onerror=alert(1)>&</style><script>'
    write_run(logs, "bad", curves={evil: [1.0] * 100}, display_name=evil, tags=(evil,), project=evil)
    _, _, body = get("/overview?run=bad")

    assert "telemetry-first" in body
    assert html.escape(evil[:20]) in body
    assert "<img" not in body
    assert "<script" not in body.partition('class="telemetry-first"')[2]


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize("address", ["metrics", "alerts", "machine", "config", "samples"])
def test_every_other_page_of_a_run_begins_with_its_name_and_the_menu(address):
    shown = get(f"/{address}?run=one")[2].partition('class="telemetry-first"')[2]

    assert "<h1>one</h1>" in shown
    assert f'<a href="/{address}?run=one" aria-current="page">' in shown or address == "samples"


def tables_in(body):
    return [json.loads(html.unescape(text)) for text in re.findall('data-table="(.*?)"', body)]


def test_the_list_and_the_comparison_have_the_tables_words_and_colours_of_their_pages(logs, caplog):
    for number in range(60):
        curves = {"train_loss": lambda step, number=number: number + 1 / (1 + step)}
        write_run(logs, f"r{number:02d}", curves=curves, start={"lr": number}, sessions=(range(9),))
    runs, compare = open_page("runs"), open_page("compare", runs="r01,r02")
    chart = compare.curve_charts()[0]
    first = {"runs": get("/")[2], "compare": get("/compare?runs=r01,r02")[2]}

    assert "Best: r00, lowest train_loss 0.1111" in runs.said()
    assert "Best: <b>r00</b>, lowest train_loss <b>0.1111</b>" in first["runs"]
    for name, tab in (("runs", runs), ("compare", compare)):
        sent = tab.sent("selectable")
        [table] = tables_in(first[name])
        assert [row["name"] for row in table["rows"]] == [row["name"] for row in sent[0]["rows"]][:50]
        sent[0]["rows"] = sent[0]["rows"][:50]
        # The colours that Compare keeps for its runs were written after the list was drawn.
        for row in (*table["rows"], *sent[0]["rows"]) if name == "runs" else ():
            del row["colour"]
        assert table == sent[0]
    drawn = re.findall(r'class="line.*?light-dark\(([^)]*)\)', first["compare"])
    assert drawn == [",".join(one["colour"]) for one in chart["curves"]]
    assert "Thread 'first screen" not in caplog.text, "nothing of a session is asked for"


@pytest.mark.parametrize(
    "path",
    [
        *("/overview?run=two", "/overview?run=gone", "/overview/x?run=one", "/?q=one", "/runs?show=Charts"),
        *("/compare", "/compare?runs=one", "/compare?runs=one,two", "/compare?runs=one&runs=gone"),
    ],
)
def test_anything_else_has_no_first_screen(one, path):
    gone = one.with_name("gone")
    shutil.copytree(one, gone)
    get("/overview?run=gone")
    shutil.rmtree(gone)
    status, headers, body = get(path)

    assert status == 200
    assert 'class="telemetry-first"' not in body
    assert '<div id="root">' in body
    assert page_script_url() in body
    assert b"etag" not in headers


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize("method", ["HEAD", "POST"])
def test_another_method_and_another_answer_stay_as_they_are(method):
    async def script(scope, _receive, send):
        await send({"type": "http.response.start", "status": 304, "headers": scope["headers"]})
        await send({"type": "http.response.body", "body": b""})

    assert get(RUN, application=script, method=method, if_none_match="1")[1] == {b"if-none-match": b"1"}
    assert get(RUN, application=script)[0] == 304
    assert get("/static/x.js", application=script, if_none_match="1")[1] == {b"if-none-match": b"1"}


@pytest.mark.usefixtures("one")
def test_a_page_does_not_wait_for_a_store_that_hangs(monkeypatch):
    answered, asked = threading.Event(), threading.Event()

    def hang(*_arguments):
        asked.set()
        answered.wait(60)
        return ""

    monkeypatch.setattr(first_response, "_SECONDS", 0.01)
    monkeypatch.setattr(first_screen, "first_screen", hang)
    try:
        bodies = [get(RUN)[2] for _ in range(5)]
        assert asked.wait(60)
    finally:
        answered.set()

    assert all('<div id="root">' in body and "<h1>" not in body for body in bodies)


@pytest.mark.usefixtures("one")
def test_a_failure_leaves_the_page_as_it_was(monkeypatch, caplog):
    def fail(*_arguments):
        raise ValueError("odd")

    monkeypatch.setattr(first_screen, "summary_html", fail)
    status, _, body = get(RUN)

    assert (status, "<h1>" in body) == (200, False)
    assert "could not be drawn" in caplog.text


# ---------------------------------------------------------------- for whom


AUTH = {"redirect_uri": "https://a.example/oauth2callback", "cookie_secret": secrets.token_urlsafe(32)}
ANN = {"is_logged_in": True, "email": "ann@lab.example", "email_verified": True}


def by_login(application):
    return LoginGate(application, Login(auth=AUTH, allow_list=AllowList(viewers=("ann@lab.example",))))


def cookie_of(claims, *, origin="https://a.example", secret=AUTH["cookie_secret"]):
    from streamlit.web.server.starlette.starlette_app_utils import create_signed_value

    signed = create_signed_value(secret, "_streamlit_user", json.dumps({**claims, "origin": origin}))
    return f"_streamlit_user={signed.decode()}"


@pytest.mark.usefixtures("one")
def test_with_a_login_only_people_on_the_list_get_it():
    entered = get(RUN, by_login, cookie=cookie_of(ANN))[2]
    assert "<h1>one</h1>" in entered
    assert "window.__streamlit" not in entered, "the browser asks for a cookie before it connects"
    refused = {
        "logged out": "",
        "no cookie of ours": "_streamlit_user=x",
        "not on the list": cookie_of({**ANN, "email": "eve@lab.example"}),
        "not verified": cookie_of({**ANN, "email_verified": False}),
        "of another team": cookie_of(ANN, origin="https://b.example"),
        "signed with another secret": cookie_of(ANN, secret="a" * 40),
    }
    for who, cookie in refused.items():
        status, _, body = get(RUN, by_login, cookie=cookie)

        # The page itself is served to everyone: it has the button that logs in.
        assert (status, "one" in body.partition("</style>")[2]) == (200, False), who


@pytest.mark.usefixtures("one")
def test_with_a_token_only_its_cookie_gets_it():
    tokens = AccessTokens(operator="o" * 40, viewer="v" * 40, is_fixed=True, is_viewer_fixed=True)

    def gate(application):
        return TokenGate(application, tokens, port=1)

    def cookie(role, of=tokens):
        return f"telemetry_dashboard_1={of.cookie(role, 1)}"

    others = AccessTokens(operator="p" * 40, viewer=None, is_fixed=True, is_viewer_fixed=False)
    for role in Role:
        assert "<h1>one</h1>" in get(RUN, gate, cookie=cookie(role))[2]
    for given in ("", "telemetry_dashboard_1=x", cookie(Role.OPERATOR, others)):
        status, _, body = get(RUN, gate, cookie=given, x_dashboard_role="operator")

        assert (status, "<h1>one</h1>" in body) == (403, False)
    assert get(f"{RUN}&token=wrong", gate)[0] == 403


@pytest.mark.usefixtures("one")
def test_without_a_gate_that_says_who_it_is_a_page_has_no_first_screen():
    def by_proxy(application):
        return UserHeaderGate(application, UserHeader("X-User"))

    assert "<h1>one</h1>" in get(RUN, by_proxy, x_user="ann")[2]
    assert get(RUN, by_proxy)[0] == 403
    assert "<h1>" not in get(RUN, lambda application: application, x_dashboard_role="operator")[2]
