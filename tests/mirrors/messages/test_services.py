"""Each service gets a message in its own form, and nothing in a message is taken for markup or a call."""

from __future__ import annotations

import base64
import email.header
import hashlib
import hmac
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.telemetry.core.outbox import NotSentError
from toolkit.telemetry.mirrors.messages.message import Message, RunState
from toolkit.telemetry.mirrors.messages.services import ALIASES, SERVICES, encoded_words
from toolkit.telemetry.privacy.text_tree import RECEIVERS

ROOT = Path(__file__).resolve().parents[3]
NOW = 1_700_000_000.9
LINK = "http://localhost:8501/overview?run=greyjacket"
STANDING = RunState(
    run_name="greyjacket", run_id="r1", step=1240, max_steps=5000, train_loss=0.12345, lr=1e-4, eta_s=8040.0
)
HOSTILE = '<!channel> <@U1> @everyone <at user_id="all">all</at> *b* _i_ `c` [x](http://y) & # ||s||'


def message(**changes):
    given = {
        "occasion": "failure",
        "title": "greyjacket: failed with RuntimeError",
        "lines": ("RuntimeError: out of memory",),
        "run_state": STANDING,
        "link": LINK,
        "time": NOW,
        "urgency": 5,
        **changes,
    }
    return Message(**given)


def content(service, secret=None, **changes):
    return json.loads(SERVICES[service].request(message(**changes), secret)[0])


def text_of(service, **changes):
    body, headers = SERVICES[service].request(message(**changes), None)
    if service == "ntfy":
        return decoded(headers["X-Title"]) + "\n" + body.decode()
    found = json.loads(body)
    if service == "lark":
        return found["content"]["text"]
    return {"slack": "text", "discord": "content", "webhook": "text"}[service] and (
        found.get("content") or f"{found.get('title', '')}\n{found['text']}\n{found.get('link', '')}"
    )


def decoded(header):
    return "".join(
        part.decode(charset or "ascii") if isinstance(part, bytes) else part
        for part, charset in email.header.decode_header(header)
    )


def undocumented(names):
    """Return the services without a row in the table of docs/messages.md."""
    written = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    rows = [line for line in written.splitlines() if line.startswith("| `")]
    return [name for name in names if not any(f"`{name}`" in row.split("|")[1] for row in rows)]


def test_every_service_and_alias_is_in_the_document_and_its_addresses_are_masked():
    assert undocumented([*SERVICES, *ALIASES]) == []
    assert {*RECEIVERS} == {*SERVICES, *ALIASES}


@pytest.mark.parametrize("service", SERVICES)
def test_a_message_says_what_happened_and_the_state_of_the_run(service):
    text = text_of(service).replace("\\", "")

    assert "greyjacket: failed with RuntimeError" in text
    assert "RuntimeError: out of memory" in text
    assert "step 1,240 of 5,000 (25%) · loss 0.1235 · LR 0.0001 · ETA 2 h 14 m" in text
    assert LINK in text.replace("&amp;", "&")


# ------------------------------------------------------------ Lark


def test_lark_is_signed_as_its_documentation_says():
    # Their example computes the signature with the time and the secret as the key, over nothing.
    found = content("lark", secret="demo")
    key = f"{found['timestamp']}\ndemo".encode()

    assert found["sign"] == base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()
    assert found["msg_type"] == "text"


def test_a_message_to_lark_mentions_no_one():
    text = text_of("lark", lines=(HOSTILE, "< AT user_id='x'>"))

    assert "<at" not in text.lower().replace(" ", "")


@pytest.mark.parametrize("body", [b'{"code":0,"msg":"success","data":{}}', b'{"StatusCode":0}'])
def test_lark_takes_a_message_by_the_code_0(body):
    SERVICES["lark"].check(body)


@pytest.mark.parametrize(
    ("body", "said", "again"),
    [
        (b'{"code":19021,"msg":"sign match fail"}', "code 19021: sign match fail", False),
        (
            b'{"StatusCode":19024,"StatusMessage":"Key Words Not Found"}',
            "code 19024: Key Words Not Found",
            False,
        ),
        (b'{"code":11232,"msg":"frequency limited"}', "code 11232", True),
        (b'{"code":"0"}', "code 0", False),
        (b"<html>sign in</html>", "not from a bot", True),
        (b"{}", "not from a bot", True),
        (b"", "not from a bot", True),
    ],
)
def test_lark_says_no_in_a_number_although_the_status_is_200(body, said, again):
    with pytest.raises(NotSentError) as refusal:
        SERVICES["lark"].check(body)

    assert said in str(refusal.value)
    assert (refusal.value.most_attempts > 1) is again


# ------------------------------------------------------------ Slack and Discord


def test_nothing_in_a_message_to_slack_is_markup():
    found = content("slack", title=f"greyjacket: {HOSTILE}")

    assert found["mrkdwn"] is False
    assert "<!channel>" not in found["text"]
    assert "&lt;!channel&gt; &lt;@U1&gt;" in found["text"]
    assert found["text"].endswith(f"<{LINK}>")


def test_slack_says_no_in_json_too():
    SERVICES["slack"].check(b"ok")
    with pytest.raises(NotSentError, match="refused: invalid_payload"):
        SERVICES["slack"].check(b'{"ok":false,"error":"invalid_payload"}')


def test_a_message_to_discord_mentions_no_one():
    found = content("discord", lines=(HOSTILE,))

    assert found["allowed_mentions"] == {"parse": []}
    assert r"\<!channel> \<\@U1> \@everyone" in found["content"]
    assert r"\*b\* \_i\_ \`c\` \[x\](http://y)" in found["content"]


@pytest.mark.parametrize("letter", ["x", "ü", "漢", "😀", "*", "\\"])
def test_a_long_message_to_discord_is_cut_to_what_it_takes_and_keeps_its_link(letter):
    found = content("discord", lines=(letter * 5000,))["content"]

    assert len(found.encode("utf-16-le")) // 2 <= 2000
    assert found.endswith(f"\n<{LINK}>")
    assert not found.removesuffix(f"\n<{LINK}>").removesuffix(" …").endswith("\\")


# ------------------------------------------------------------ ntfy


@settings(deadline=None)
@given(
    st.text(alphabet=st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=120)
)
def test_a_header_of_ntfys_holds_any_title(title):
    header = encoded_words(title)

    assert header.isascii()
    assert header.isprintable()
    assert title.isascii() or (decoded(header) == title and max(map(len, header.split())) <= 75)


def test_a_title_cannot_add_a_header():
    _, headers = SERVICES["ntfy"].request(message(title="a\r\nX-Evil: 1\x00b"), None)

    assert headers["X-Title"] == "a X-Evil: 1 b"


def test_ntfy_gets_urgency_signs_click_and_token_in_headers():
    _, headers = SERVICES["ntfy"].request(message(), "tk_secret")

    assert headers["X-Priority"] == "5"
    assert headers["X-Tags"] == "rotating_light"
    assert headers["X-Click"] == LINK
    assert headers["Authorization"] == "Bearer tk_secret"


@pytest.mark.parametrize("letter", ["x", "漢"])
def test_a_long_message_to_ntfy_stays_a_message(letter):
    body, _ = SERVICES["ntfy"].request(message(lines=(letter * 5000,)), None)

    assert len(body) <= 4000
    assert body.decode().endswith(LINK)


# ------------------------------------------------------------ any webhook


def test_a_webhook_gets_an_object_of_always_the_same_keys():
    bare = content("webhook", run_state=RunState(run_name="r"), link=None, lines=(), details={})

    assert set(bare) == set(content("webhook"))
    assert set(bare) == {
        "version", "id", "occasion", "time", "run", "status", "step", "max_steps", "train_loss", "lr", "eta_s", "title",
        "text", "link", "tells_of", "details",
    }  # fmt: skip
    assert (bare["step"], bare["eta_s"], bare["link"]) == (None, None, None)
