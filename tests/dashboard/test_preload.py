"""A page tells the browser early which scripts it will need; everything else passes through untouched."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dashboard.bundle import Bundle
from dashboard.preload import with_preloads

PAGE = b"<html><head><title>x</title></head><body></body></html>"


def ask(
    *,
    kind=b"text/html; charset=utf-8",
    parts=(PAGE,),
    headers=(),
    answer_headers=(),
    scripts=("/a/p.js",),
    bundle=None,
):
    """Return what the application saw, and what the browser gets."""
    seen, got = {}, []

    async def application(scope, receive, send):
        seen.update(scope)
        length = str(sum(map(len, parts))).encode()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", kind), (b"content-length", length), *answer_headers],
            }
        )
        for number, part in enumerate(parts):
            more = number + 1 < len(parts)
            await send({"type": "http.response.body", "body": part, "more_body": more})

    async def send(message):
        got.append(message)

    async def receive():
        return {"type": "http.request"}

    scope = {"type": "http", "headers": list(headers)}
    asyncio.run(with_preloads(application, scripts, bundle)(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in got)
    return seen, dict(got[0]["headers"]), body


@pytest.mark.parametrize("parts", [(PAGE,), (PAGE[:10], PAGE[10:30], PAGE[30:])])
def test_a_page_gets_hints_at_the_end_of_its_head_and_the_right_length(parts):
    _, headers, body = ask(parts=parts)

    head, _, rest = body.partition(b"</head>")
    assert b'<link rel="preload" as="script" href="/a/p.js">' in head
    assert b"WebSocket.prototype.send" in head
    assert rest == b"<body></body></html>"
    assert int(headers[b"content-length"]) == len(body)


def test_what_is_no_page_is_left_as_it_is():
    _, headers, body = ask(kind=b"application/json")

    assert body == PAGE
    assert int(headers[b"content-length"]) == len(PAGE)


def test_a_compressed_answer_is_left_as_it_is():
    assert ask(answer_headers=[(b"content-encoding", b"gzip")])[2] == PAGE


def test_a_page_is_asked_for_uncompressed_and_other_things_as_the_browser_likes():
    encoding = (b"accept-encoding", b"gzip, br")

    page, _, _ = ask(headers=[(b"accept", b"text/html,*/*"), encoding])
    other, _, _ = ask(headers=[(b"accept", b"*/*"), encoding])

    assert encoding not in page["headers"]
    assert encoding in other["headers"]


def test_an_endless_page_is_not_held_back_forever():
    parts = [PAGE] + [b"x" * 100_000] * 5
    _, headers, body = ask(parts=parts)

    assert body.endswith(b"x" * 400_000)
    assert b'href="/a/p.js"' in body
    assert b"content-length" not in headers


STREAMLITS_PAGE = b"""<html><head>
    <script type="module" crossorigin src="./static/js/index.AbC.js"></script>
    <link rel="modulepreload" crossorigin href="./static/js/react.AbC.js">
    <link rel="stylesheet" crossorigin href="./static/css/index.AbC.css">
</head><body></body></html>"""


def test_a_page_starts_from_the_bundle_instead_of_loading_each_module():
    bundle = Bundle(Path(), "index.AbC.js", ("index.AbC.js", "react.AbC.js"), {})
    _, headers, body = ask(parts=(STREAMLITS_PAGE,), bundle=bundle)

    assert bundle.url.encode() in body
    assert body.index(bundle.url.encode()) < body.index(b"stylesheet")
    assert b"modulepreload" not in body
    assert b'src="./static/js' not in body
    assert b"./static/css/index.AbC.css" in body
    assert int(headers[b"content-length"]) == len(body)


def test_a_page_with_another_entry_than_the_bundles_is_left_as_it_is():
    bundle = Bundle(Path(), "index.XyZ.js", ("index.XyZ.js",), {})
    _, _, body = ask(parts=(STREAMLITS_PAGE,), bundle=bundle)

    assert bundle.url.encode() not in body
    assert b'src="./static/js/index.AbC.js"' in body
    assert b"modulepreload" in body
