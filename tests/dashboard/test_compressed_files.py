"""Streamlit's scripts and styles arrive compressed where the browser takes it, and are the same files."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from dashboard.compressed_files import CompressedFiles

CODE = b"export const answer = 42;\n" * 100
GZIP = ((b"accept-encoding", b"gzip, deflate, br"),)


class Files:
    """An application that answers every request with `body`, in two parts, and counts the requests."""

    def __init__(self, *, status=200, body=CODE, headers=()):
        self.asked = []
        self.status, self.body, self.headers = status, body, headers

    async def __call__(self, scope, receive, send):
        self.asked.append(dict(scope["headers"]))
        headers = [(b"Content-Length", str(len(self.body)).encode()), (b"etag", b'"x"'), *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body[:10], "more_body": True})
        await send({"type": "http.response.body", "body": self.body[10:]})


def get(app, path="/static/js/index.js", headers=GZIP, method="GET"):
    got = []

    async def send(message):
        got.append(message)

    async def receive():
        return {"type": "http.request"}

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers)}
    asyncio.run(app(scope, receive, send))
    headers = {name.lower(): value for name, value in got[0]["headers"]}
    return got[0]["status"], headers, b"".join(message.get("body", b"") for message in got[1:])


@pytest.mark.parametrize("path", ["/static/js/index.js", "/static/css/index.css"])
def test_a_file_is_compressed_once(path):
    files = Files()
    app = CompressedFiles(files)
    first, second = get(app, path), get(app, path)
    assert first == second
    status, headers, body = first
    assert status == 200
    assert gzip.decompress(body) == CODE
    assert headers[b"content-encoding"] == b"gzip"
    assert headers[b"content-length"] == str(len(body)).encode()
    assert headers[b"vary"] == b"Accept-Encoding"
    assert b"etag" not in headers  # it names the plain bytes
    assert len(files.asked) == 1


def test_what_is_kept_is_the_whole_file():
    files = Files()
    part = (*GZIP, (b"range", b"bytes=0-9"), (b"if-none-match", b'"x"'))
    assert gzip.decompress(get(CompressedFiles(files), headers=part)[2]) == CODE
    assert files.asked == [dict(GZIP)]


@pytest.mark.parametrize(
    ("path", "headers", "method"),
    [
        ("/static/js/index.js", (), "GET"),
        ("/static/js/index.js", GZIP, "HEAD"),
        ("/static/media/font.woff2", GZIP, "GET"),
        ("/media/notes.js", GZIP, "GET"),
        ("/", GZIP, "GET"),
    ],
)
def test_everything_else_passes_through(path, headers, method):
    status, got, body = get(CompressedFiles(Files()), path, headers, method)
    assert (status, body) == (200, CODE)
    assert b"content-encoding" not in got


@pytest.mark.parametrize(
    "files", [Files(status=404, body=b"Not found"), Files(headers=((b"Content-Encoding", b"br"),))]
)
def test_other_answers_are_not_kept(files):
    app = CompressedFiles(files)
    for _ in range(2):
        status, _, body = get(app)
        assert (status, body) == (files.status, files.body)
    assert len(files.asked) == 2


def test_a_file_that_was_not_read_to_its_end_is_not_kept():
    """A browser that goes away meanwhile must not leave an empty script behind for every later page."""
    files = Files()
    app = CompressedFiles(files)

    async def go_away(scope, receive, send):
        headers = [(b"content-length", str(len(CODE)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    app._app = go_away
    assert get(app)[2] == b""
    app._app = files
    assert gzip.decompress(get(app)[2]) == CODE
