"""Tokens, the files they come from, and what was asked for at the start."""

from __future__ import annotations

import os

import pytest

from dashboard.access.access_options import (
    READER_TOKEN_VARIABLE,
    TOKEN_VARIABLE,
    AccessError,
    AccessOptions,
    decide,
)
from dashboard.access.secret_file import SecretFileError, read_secret_file
from dashboard.access.tokens import MINIMUM_LENGTH, AccessTokens, TokenError, checked_token

GOOD = "Tr0ub4dor-and-three-more-words"
OTHER = "another-one-for-who-only-reads"


def asked(environ=None, *, is_private=False, read_only=False, **options):
    return decide(
        AccessOptions(**options),
        is_private=is_private,
        read_only=read_only,
        environ={} if environ is None else environ,
    )


@pytest.fixture
def secret(tmp_path):
    def write(text, mode=0o600):
        path = tmp_path / "secret.txt"
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


# ---------------------------------------------------------------- who needs one


def test_on_this_machine_alone_no_token_is_asked_for_and_anywhere_else_one_is():
    assert asked(is_private=True) is None
    assert isinstance(asked(is_private=False), AccessTokens)
    assert isinstance(asked(is_private=True, require="always"), AccessTokens)
    assert isinstance(asked(is_private=True, reader_token=True), AccessTokens)
    assert isinstance(asked({TOKEN_VARIABLE: GOOD}, is_private=True), AccessTokens)
    assert asked(require="never") is None


def test_each_start_has_its_own_unguessable_token():
    made = {asked().operator for _ in range(200)} | {asked(reader_token=True).viewer for _ in range(200)}

    assert len(made) == 400
    assert min(len(token) for token in made) >= 43


def test_a_given_token_is_taken_from_its_file_or_the_environment_and_then_hidden(secret):
    environ = {TOKEN_VARIABLE: GOOD, READER_TOKEN_VARIABLE: OTHER, "HOME": "/home/x"}
    keys = asked(environ)

    assert (keys.operator, keys.viewer, keys.is_fixed, keys.is_viewer_fixed) == (GOOD, OTHER, True, True)
    assert environ == {"HOME": "/home/x"}
    assert asked(token_file=secret(f"  {GOOD}\n")).operator == GOOD
    assert GOOD not in repr(keys)
    assert OTHER not in repr(keys)


@pytest.mark.parametrize(
    ("options", "environ", "parts"),
    [
        ({"require": "never", "reader_token": True}, {}, ["--no-token", "--reader-token"]),
        ({"require": "never"}, {TOKEN_VARIABLE: GOOD}, ["--no-token", TOKEN_VARIABLE]),
        ({"login_file": "x", "require": "always"}, {}, ["--login", "--token"]),
        ({"login_file": "x", "require": "never"}, {}, ["--login", "--no-token"]),
        ({"login_file": "x"}, {READER_TOKEN_VARIABLE: GOOD}, ["--login", READER_TOKEN_VARIABLE]),
        ({"reader_token": True, "reader_token_file": "x"}, {}, ["--reader-token", "--reader-token-file"]),
        ({"token_file": "x"}, {TOKEN_VARIABLE: GOOD}, ["--token-file", TOKEN_VARIABLE]),
        ({}, {TOKEN_VARIABLE: GOOD, READER_TOKEN_VARIABLE: GOOD}, ["reader token", "must differ"]),
    ],
)
def test_wishes_that_contradict_each_other_are_named(options, environ, parts):
    with pytest.raises(AccessError) as caught:
        asked(dict(environ), **options)

    for part in parts:
        assert part in str(caught.value)
    assert GOOD not in str(caught.value)


# ---------------------------------------------------------------- which ones are good


@pytest.mark.parametrize(
    "token", ["", "short", "a" * 60, "password", "x" * (MINIMUM_LENGTH - 1), "abcabcabcabcabcabcabcabcabc"]
)
def test_a_token_that_can_be_guessed_is_refused_and_not_repeated(token):
    with pytest.raises(TokenError) as caught:
        checked_token(token, "--token-file 'x'")

    assert "at least 24 characters" in str(caught.value)
    assert not token or token not in str(caught.value).replace("--token-file 'x'", "")


@pytest.mark.parametrize(
    "token", [f"{GOOD} {GOOD}", f"{GOOD}\n{GOOD}", f"{GOOD}é", f"{GOOD}\x1b[2J", f"{GOOD}\x00"]
)
def test_a_token_is_one_printable_word(token):
    with pytest.raises(TokenError, match="one token of printable ASCII"):
        checked_token(token, "here")


# ---------------------------------------------------------------- the files


@pytest.mark.skipif(os.name != "posix", reason="there are no modes here")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o602])
def test_a_file_that_others_can_read_or_write_is_refused(secret, mode):
    with pytest.raises(SecretFileError, match="by others .*chmod 600"):
        read_secret_file(secret(GOOD, mode), "--token-file")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can make another's file"
)
def test_a_file_of_another_user_is_refused(secret):
    path = secret(GOOD)
    os.chown(path, 65534, 65534)

    with pytest.raises(SecretFileError, match="belongs to another user"):
        read_secret_file(path, "--token-file")


def test_what_is_no_file_of_text_is_refused_in_words(tmp_path, secret):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe" * 20)
    (tmp_path / "bytes").chmod(0o600)
    for path, words in (
        (tmp_path, "cannot be read|is no file"),
        (tmp_path / "missing", "cannot be read: No such file"),
        (tmp_path / "bytes", "not UTF-8 text"),
        (secret("x" * 70_000), "larger than 64 KiB"),
    ):
        with pytest.raises(SecretFileError, match=words):
            read_secret_file(path, "--token-file")
