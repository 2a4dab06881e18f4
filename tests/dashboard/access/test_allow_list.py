"""Who of those that a provider vouches for may come in, and the file that says so."""

from __future__ import annotations

import textwrap

import pytest

from dashboard.access.allow_list import AllowList, AllowListError, entry_by_id
from dashboard.access.login_file import LoginFileError, read_login_file
from dashboard.access.roles import Role

LIST = AllowList(
    operators=("ann@lab.example", "@crew.example", "sub:Robot-7"),
    viewers=("@lab.example", "temp@crew.example", "guest@club.example"),
)


def claims(email=None, *, verified=True, **more):
    address = {} if email is None else {"email": email, "email_verified": verified}
    return {"is_logged_in": True, **address, **more}


@pytest.mark.parametrize(
    ("person", "role"),
    [
        (claims("ann@lab.example"), Role.OPERATOR),
        (claims("ANN@Lab.Example"), Role.OPERATOR),
        (claims("bob@lab.example"), Role.VIEWER),
        (claims("anyone@crew.example"), Role.OPERATOR),
        # The more exact entry decides.
        (claims("temp@crew.example"), Role.VIEWER),
        (claims(sub="Robot-7"), Role.OPERATOR),
        (claims(sub="robot-7"), None),
        (claims("eve@evil.example"), None),
        (claims("eve@sub.lab.example"), None),
        (claims("eve@evil-lab.example"), None),
        (claims("eve@lab.example.evil.example"), None),
        (claims(sub="ann@lab.example"), None),
        ({"is_logged_in": True, "email": "ann@lab.example"}, None),
        (claims("ann@lab.example@evil.example"), None),
        (claims("eve@evil.example@lab.example"), None),
        (claims('"eve@evil.example"@lab.example'), None),
        (claims("eve@lab.example."), None),
        (claims("sub:Robot-7@lab.example"), None),
        (claims("ann@lab.example", verified=False), None),
        (claims("ann@lab.example", verified="true"), None),
        (claims("ann@lab.example", verified=1), None),
        (claims("@lab.example"), None),
        (claims("lab.example"), None),
        (claims(""), None),
        (claims("x@\N{KELVIN SIGN}rew.example"), None),
        ({"email": "ann@lab.example", "email_verified": True}, None),
        ({"is_logged_in": "True", "email": "ann@lab.example", "email_verified": True}, None),
        (claims(email=["ann@lab.example"]), None),
        (claims(sub=""), None),
        ({}, None),
    ],
)
def test_only_who_is_on_the_list_by_a_verified_address_or_an_id_comes_in(person, role):
    assert LIST.role_of(person) is role


def test_a_letter_that_only_looks_the_same_in_lower_case_is_another_one():
    assert AllowList(operators=("k@lab.example",)).role_of(claims("\N{KELVIN SIGN}@lab.example")) is None


def test_an_id_is_one_persons_at_one_provider_only():
    both = AllowList(operators=("sub:google:7", "sub:okta:ann@lab.example"))
    at_google = claims(sub="7", provider="google")

    assert entry_by_id(at_google) == "sub:google:7"
    assert entry_by_id(claims(sub="7", provider="default")) == "sub:7"
    assert both.role_of(at_google) is Role.OPERATOR
    assert both.role_of(claims(sub="7", provider="okta")) is None
    assert both.role_of(claims("sub:okta:ann@lab.example", provider="google")) is None
    assert AllowList(operators=("sub:7",)).role_of(at_google) is None


@pytest.mark.parametrize(
    "entry", ["", "*", "ann", "@", "*@lab.example", "a@b@c.example", "ann@lab.example ", "sub:"]
)
def test_an_entry_that_matches_no_one_is_named(entry):
    with pytest.raises(AllowListError, match="is not a valid entry"):
        AllowList(operators=(entry,))


def test_a_list_without_anybody_is_no_list():
    with pytest.raises(AllowListError, match="the list is empty"):
        AllowList()


# ---------------------------------------------------------------- the file

AUTH = """
    [auth]
    redirect_uri = "https://runs.example.org/oauth2callback"
    cookie_secret = "Zm9ydHktdHdvIGxldHRlcnMgYW5kIHNvbWUgbW9yZQ"
    client_id = "dashboard"
    client_secret = "hush-hush-hush"
    server_metadata_url = "https://id.example.org/.well-known/openid-configuration"
"""
GUESTS = """
    [dashboard]
    allow = ["ann@lab.example"]
"""


@pytest.fixture
def written(tmp_path):
    def write(text, mode=0o600):
        path = tmp_path / "login.toml"
        path.write_text(textwrap.dedent(text))
        path.chmod(mode)
        return path

    return write


def test_a_whole_file_is_taken(written):
    login = read_login_file(written(AUTH + GUESTS))

    assert login.origin == "https://runs.example.org"
    assert login.providers == ()
    assert login.allow_list == AllowList(operators=("ann@lab.example",))
    assert "hush" not in repr(login)


def test_several_providers_have_names(written):
    shared, _, own = textwrap.dedent(AUTH).partition("client_id")

    def text(first, guest):
        listed = f'[dashboard]\nallow = ["{guest}"]\n'
        return f"{shared}\n[auth.{first}]\nclient_id{own}\n[auth.okta]\nclient_id{own}\n{listed}"

    assert read_login_file(written(text("google", "ann@lab.example"))).providers == ("google", "okta")
    assert read_login_file(written(text("google", "sub:okta:7"))).allow_list.operators == ("sub:okta:7",)
    with pytest.raises(
        LoginFileError, match="'sub:7' does not name its provider; write sub:google:ID or sub:okta:ID"
    ):
        read_login_file(written(text("google", "sub:7")))
    for name in ("my_idp", "default", '"a:b"', '"two words"'):
        with pytest.raises(LoginFileError, match="a provider's name consists of"):
            read_login_file(written(text(name, "ann@lab.example")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GUESTS, r"no \[auth\] section"),
        (AUTH, "the list is empty"),
        (AUTH + "\n    [dashboard]\n    allow = []\n", "the list is empty"),
        (AUTH + '\n    [dashboard]\n    allow = "ann@lab.example"\n', "needs a list of addresses as allow"),
        (AUTH + '\n    [dashboard]\n    allowed = ["ann@lab.example"]\n', r"has \['allowed'\]"),
        (AUTH + '\n    [dashboard]\n    allow = ["everyone"]\n', "'everyone' is not a valid entry"),
        (
            AUTH.replace("Zm9ydHktdHdvIGxldHRlcnMgYW5kIHNvbWUgbW9yZQ", "xxx") + GUESTS,
            "cookie_secret .* of at least 32",
        ),
        (AUTH.replace("/oauth2callback", "/elsewhere") + GUESTS, "redirect_uri"),
        (AUTH.replace("https://runs.example.org/o", "o") + GUESTS, "redirect_uri"),
        # Who logged in would stand at the door again: a browser says neither capitals nor the usual port.
        (
            AUTH.replace("//runs", "//Runs") + GUESTS,
            "the way browsers do: https://runs.example.org/oauth2callback$",
        ),
        (
            AUTH.replace(".org/o", ".org:443/o") + GUESTS,
            "the way browsers do: https://runs.example.org/oauth2callback$",
        ),
        (
            AUTH.replace("2callback", "2callback?x=1") + GUESTS,
            "the way browsers do: https://runs.example.org/oauth2callback$",
        ),
        (AUTH.replace("//runs", "//me@runs") + GUESTS, "needs redirect_uri"),
        # Whoever sits in between would hand out the keys that logins are checked with.
        (
            AUTH.replace("https://id.", "http://id.") + GUESTS,
            r"https:// in the server_metadata_url of \[auth\]",
        ),
        (AUTH.replace("client_secret", "clientsecret") + GUESTS, r"needs client_secret in \[auth\]"),
        (AUTH + '    expose_tokens = "access"\n' + GUESTS, "expose_tokens"),
        ("[auth", "is not valid TOML"),
    ],
)
def test_what_is_missing_or_too_permissive_in_the_file_is_reported_without_secrets(written, text, words):
    with pytest.raises(LoginFileError, match=words) as caught:
        read_login_file(written(text))

    assert "hush" not in str(caught.value)


def test_a_file_that_others_can_read_is_refused(written):
    with pytest.raises(LoginFileError, match="by others"):
        read_login_file(written(AUTH + GUESTS, mode=0o644))
