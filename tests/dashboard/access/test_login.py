"""Which people the login file lets in, which files are refused, and the header of a proxy."""

from __future__ import annotations

import secrets

import pytest

pytest.importorskip("streamlit")

from dashboard.access.login import AllowList, LoginError, read_login_file
from dashboard.access.roles import Role
from tests.dashboard.serving import dashboard, get, handshake
from tests.made_runs import write_run

PEOPLE = AllowList(operators=("ann@lab.example", "sub:robot-7"), viewers=("@lab.example", "sub:x@y.example"))
VERIFIED = {"is_logged_in": True, "email_verified": True}


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ({**VERIFIED, "email": "Ann@Lab.example"}, Role.OPERATOR),
        ({**VERIFIED, "email": "bob@lab.example"}, Role.VIEWER),
        ({"is_logged_in": True, "sub": "robot-7"}, Role.OPERATOR),
        ({"is_logged_in": True, "sub": "Robot-7"}, None),
        ({"is_logged_in": "yes", "sub": "robot-7"}, None),
        ({**VERIFIED, "email": "ann@lab.example", "email_verified": "true"}, None),
        ({**VERIFIED, "email": "a@lab.example@evil.example"}, None),
        ({**VERIFIED, "email": "sub:x@y.example"}, None),
        ({**VERIFIED, "email": "ann@sub.lab.example"}, None),
        ({**VERIFIED, "email": "\N{KELVIN SIGN}@lab.example"}, Role.VIEWER),
        ({**VERIFIED, "email": ["ann@lab.example"], "sub": None}, None),
    ],
)
def test_the_list_decides_by_verified_address_or_id(claims, role):
    assert PEOPLE.role_of(claims) is role


GOOD = {
    "redirect_uri": "https://runs.example.org/oauth2callback",
    "cookie_secret": secrets.token_urlsafe(32),
    "client_id": "a",
    "client_secret": "b",
    "server_metadata_url": "https://id.example.org/x",
}


@pytest.mark.parametrize(
    ("changed", "people", "problem"),
    [
        ({"client_id": None}, "allow = ['a@b.example']", "client_id"),
        ({"redirect_uri": "https://runs.example.org"}, "allow = ['a@b.example']", "redirect_uri"),
        ({"cookie_secret": "a" * 40}, "allow = ['a@b.example']", "cookie_secret"),
        ({"server_metadata_url": "http://id.example.org"}, "allow = ['a@b.example']", "https"),
        ({}, "", "empty"),
        ({}, "allow = ['*']", "neither"),
        ({}, "allow = [", "--login"),
    ],
)
def test_an_unsafe_login_file_is_refused_without_showing_a_secret(tmp_path, changed, people, problem):
    file = tmp_path / "login.toml"
    auth = {name: value for name, value in {**GOOD, **changed}.items() if value is not None}
    lines = [f'{name} = "{value}"' for name, value in auth.items()]
    file.write_text("\n".join(["[auth]", *lines, "[dashboard]", people]))
    file.chmod(0o600)
    with pytest.raises(LoginError, match=problem) as caught:
        read_login_file(file)

    assert auth["cookie_secret"] not in str(caught.value)


def test_behind_a_proxy_only_requests_with_its_header_are_answered(tmp_path):
    write_run(tmp_path / "logs", "one")
    with dashboard(
        tmp_path, "--log-dir", str(tmp_path / "logs"), "--user-header", "X-Forwarded-Email"
    ) as started:
        port = started.wait_until_ready().port
        given = get(port, "/", X_Forwarded_Email="ann@lab.example")[0]
        refused = [
            get(port, "/")[0],
            get(port, "/run-file?run=one")[0],
            get(port, "/curves?c=[]")[0],
            get(port, "/", X_Forwarded_Email="")[0],
        ]
        socket = handshake(port, origin=f"http://localhost:{port}")[0]

    assert given == 200
    assert refused == [403, 403, 403, 403]
    assert socket == 403
