"""Finds secrets in a text by their pattern."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from toolkit.telemetry.core.formatting import words
from toolkit.telemetry.core.lazy_pattern import lazy_pattern
from toolkit.telemetry.privacy.random_tokens import SHORTEST, mask_random_tokens
from toolkit.telemetry.privacy.secret_names import Secrecy, is_working_directory, secrecy_of
from toolkit.telemetry.privacy.token_shapes import long_runs, mask_tokens

MASK: Final = "***"


def mask_text(text: str, *, guesses: bool = True) -> str:
    """Return `text` with every secret that matches a pattern replaced by `***`.

    With `guesses`, for free text, also what only looks random: names and plain settings may.
    """
    if len(text) < _SHORTEST:
        return text
    # Searching for a word costs a hundredth of searching for a pattern, and most texts contain none of these.
    if _PEM_BEGIN in text:
        text = _PEM_BLOCK.sub(MASK, text)
    if len(text) >= _PEM_LINE_LENGTH and any(len(run) >= _PEM_LINE_LENGTH for run in long_runs(text)):
        text = _PEM_LINE.sub(_mask_line, text)
    if "://" in text:
        if "@" in text:
            text = _URL_LOGIN.sub(_mask_login, text)
        text = _WEBHOOK.sub(MASK, text)
    if "ntfy.sh/" in text:
        text = _NTFY_TOPIC.sub(MASK, text)
    small = text.lower()
    if "kind" in small and _KUBERNETES_SECRET.search(text):
        text = _KUBERNETES_DATA.sub(_mask_kubernetes_data, text)
    for pattern, hints in _AFTER_A_WORD.items():
        for hint in hints:
            if hint in small:
                text = pattern.sub(rf"\1{MASK}", text)
                break
    if any(hint in small for hint in HINTS_OF_NAMES):
        text = _OPTION.sub(_mask_option, text)
        text = _PAIR.sub(_mask_option, text)
        if guesses:
            text = _CELL.sub(_mask_cell, text)
        if "value" in small:
            text = _NAMED_VALUE.sub(_mask_option, text)
        text = _mask_assignments(text, guesses)
    text = mask_tokens(text, MASK, guesses=guesses)
    if any(len(run) >= SHORTEST for run in long_runs(text)):
        text = mask_random_tokens(text, MASK, mask_text, guesses=guesses)
    return text


def mask_name(name: str) -> str:
    """Return a name without secrets that it surely holds: what only looks random is a name. Two names stay two."""
    return as_name(name, mask_text(name, guesses=False))


def as_name(name: str, masked: str) -> str:
    """Return `masked`, with digits that tell it from other masked names if it differs from `name`."""
    if masked in (name, _DIGITS.sub("", name)):
        return name
    return f"{masked}-{_digits_of(name)}"


@lru_cache(maxsize=4096)
def _digits_of(name: str) -> str:
    # Slow on purpose, as a password of a few letters could be looked for by its digits.
    return hashlib.pbkdf2_hmac("sha256", name.encode("utf-8", "surrogatepass"), b"name", 1_000, 4).hex()


def lines_of_a_key(items: Sequence[Any]) -> frozenset[int]:
    """Return the indices of `items` that are lines of a private key, even of one whose beginning is missing."""
    marks = [
        (number, _PEM_BEGIN in item)
        for number, item in enumerate(items)
        if isinstance(item, str) and (_PEM_BEGIN in item) != (_PEM_END in item)
    ]
    found: set[int] = set()
    begun = 0
    for number, is_begin in marks:
        if is_begin:
            begun = number
        else:
            found.update(range(begun, number + 1))
            begun = len(items)
    if marks and marks[-1][1]:
        found.update(range(begun, len(items)))
    return frozenset(found)


def looks_generated(text: str) -> bool:
    """Return whether `text` has a long part in which letters and digits alternate, as keys have and names do not."""
    if len(text) > _LONGEST_KEY or any(map(str.isspace, text)):
        return False
    if _UUID.fullmatch(text):
        return True
    for piece in _PIECE.findall(text):
        changes = len(_CHANGE.findall(piece))
        if changes >= 3 or (changes >= 1 and len(piece) >= 20) or len(piece) >= 32:
            return True
    return False


_SHORTEST: Final = 6
_PEM_BEGIN: Final = "-----BEGIN "
_PEM_END: Final = "-----END "
_PEM_LINE_LENGTH: Final = 64
_LONGEST_KEY: Final = 4096
_DIGITS = lazy_pattern(r"(?<=\*\*\*)-[0-9a-f]{8}\Z")
_UUID = lazy_pattern(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PIECE = lazy_pattern(r"[A-Za-z0-9]{8,}")
_CHANGE = lazy_pattern(r"[0-9][A-Za-z]|[A-Za-z](?=[0-9])")

# A truncated block is hidden to the end of the text.
_PEM_BLOCK = lazy_pattern(
    r"-----BEGIN [A-Z0-9 ]{1,40}-----.*?(?:-----END [A-Z0-9 ]{1,40}-----|\Z)", re.DOTALL
)

# A single line of one, without the lines around it.
_PEM_LINE = lazy_pattern(r"^[A-Za-z0-9+/]{64}$", re.MULTILINE)

_URL_LOGIN = lazy_pattern(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)(?P<login>[^\s/@?#\"']{1,400})@")

# Addresses that are secrets themselves: anyone who knows one can post there.
_WEBHOOK = lazy_pattern(
    r"""https?://(?:
    open\.(?:feishu\.cn|larksuite\.com|larkoffice\.com)/open-apis/bot/(?:v[0-9]+/)?hook/
    | hooks\.slack\.com/(?:services|workflows|triggers)/
    | (?:\w+\.)?discord(?:app)?\.com/api/(?:v[0-9]+/)?webhooks/
    | [\w-]+\.webhook\.office\.com/
    | [\w.-]+\.logic\.azure\.com(?::[0-9]+)?/workflows/
    | [\w.-]+\.api\.powerplatform\.com(?::[0-9]+)?/powerautomate/
    | (?:hc-ping\.com|webhook\.site|api\.day\.app|sctapi\.ftqq\.com|hook\.[\w.]+\.make\.com)/
    | webexapis\.com/v1/webhooks/incoming/
    | [\w.-]+(?::[0-9]+)?/(?:[\w.-]+/){0,4}(?:hooks?|webhooks?)/(?=[\w/-]{0,40}[0-9])[\w-]{8,}
    | hooks\.zapier\.com/hooks/
    | maker\.ifttt\.com/
    | api\.telegram\.org/bot
    | api\.softlayer\.com/soap/
    | (?:oapi\.dingtalk\.com|qyapi\.weixin\.qq\.com|chat\.googleapis\.com)/[\w/.-]{0,200}\?
    )[^\s"'<>]+""",
    re.VERBOSE | re.IGNORECASE,
)

_NTFY_TOPIC = lazy_pattern(r"(?:https?://)?\bntfy\.sh/[\w-]+")

_SIGNED_URL = lazy_pattern(
    r"([?&](?:sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token))=)[^\s&\"'#]+",
    re.IGNORECASE,
)

_AUTHORIZATION = lazy_pattern(
    r"""(\bauthorization["']?\s{0,3}[:=]\s{0,3}["']?(?:(?:bearer|basic|token|digest)\s{1,3})?)[^\s"',;|]+""",
    re.IGNORECASE,
)
_BEARER = lazy_pattern(r"(\bbearer\s{1,3})(?=[^\s\"',;]*[0-9])[^\s\"',;]{8,}", re.IGNORECASE)
_COOKIE = lazy_pattern(r"""(\bcookie["']?\s{0,3}:\s{0,3}["']?)[^\s=;"']{1,80}=[^\r\n"']+""", re.IGNORECASE)
_WANDB_KEY = lazy_pattern(
    r"""(\bwandb(?:\s{1,3}login\s{1,3}(?:--\S+\s{1,3})*|[\w.-]*["']?\s{0,3}[=:(]\s{0,3}(?:key\s{0,3}=\s{0,3})?["']?))
    [0-9a-f]{40}\b""",
    re.IGNORECASE | re.VERBOSE,
)
# Between the words of a command, which may be printed as a list.
_GAP: Final = r"""[\s"',]{1,6}"""
_CURL_LOGIN = lazy_pattern(
    rf"""(\bcurl\b[^\n]{{0,200}}?{_GAP}(?:-u|--user)[\s"',=]{{0,6}}[^\s:"']{{1,64}}:)[^\s"']+""",
    re.IGNORECASE,
)
_CONTAINER_LOGIN = lazy_pattern(
    rf"""(\b(?:docker|podman){_GAP}login\b[^\n]{{0,200}}?{_GAP}-p[\s"',=]{{1,6}})[^\s"']+""", re.IGNORECASE
)
_NETRC = lazy_pattern(
    r"(machine\s{1,20}[^\s]{1,253}\s{1,20}(?:(?:login|account)\s{1,20}[^\s]{1,253}\s{1,20}){0,2}password\s{1,20})[^\s]+"
)
# host:port:database:user:password, as PostgreSQL keeps them
_PGPASS = lazy_pattern(r"((?<![\w.:*-])[\w.*-]{1,253}:[0-9*]{1,5}:[\w.*-]{1,63}:[\w.*-]{1,63}:)[^\s:]{6,}")
_SSHPASS = lazy_pattern(rf"""(\bsshpass{_GAP}-p[\s"',]{{0,6}})[^\s"']+""", re.IGNORECASE)

# "the password is abc1": a word without a digit is more likely the rest of the sentence.
_PASSWORD_IS = lazy_pattern(
    r"""(\b(?:password|passphrase|passwd|api[ _-]?key|access[ _-]?token)(?:\s{1,3}(?:is|was)|:)\s{1,3}["']?)
    (?=[^\s"',;]*[0-9])[^\s"',;]{4,}""",
    re.IGNORECASE | re.VERBOSE,
)

# A manifest of Kubernetes: everything below `data:` is a secret.
_KUBERNETES_DATA = lazy_pattern(
    r"(?P<head>^[ \t]*(?:data|stringData):[ \t]*\n)(?P<lines>(?:[ \t]+[\w.-]{1,253}:[^\n]*(?:\n|\Z)){1,400})",
    re.MULTILINE,
)
_KUBERNETES_SECRET = lazy_pattern(r"""\bkind["']?[ \t]{0,3}:[ \t]{0,3}["']?Secret\b""")
_YAML_VALUE = lazy_pattern(r"^([ \t]+[\w.-]{1,253}:[ \t]*)[^\s][^\n]*", re.MULTILINE)
_PUTTY = lazy_pattern(r"(\bPrivate-Lines:\s{0,3}[0-9]{1,4}\s+)[A-Za-z0-9+/=\s]{16,20000}")

_AFTER_A_WORD: Final = {
    _PUTTY: ("private-lines",),
    _SIGNED_URL: ("sig=", "signature=", "-credential=", "-security-token="),
    _PASSWORD_IS: (
        *("password", "passphrase", "passwd", "apikey", "api key", "api_key", "api-key"),
        *("accesstoken", "access token", "access_token", "access-token"),
    ),
    _AUTHORIZATION: ("authorization",),
    _BEARER: ("bearer",),
    _COOKIE: ("cookie",),
    _WANDB_KEY: ("wandb",),
    _CURL_LOGIN: ("curl",),
    _SSHPASS: ("sshpass",),
    _CONTAINER_LOGIN: ("docker", "podman"),
    _NETRC: ("machine",),
    _PGPASS: (":5432:", ":5433:", ":6543:", ":*:"),
}
"""Patterns, each with hints: a text without any of them is not searched."""

HINTS_OF_NAMES: Final = words(
    """
    pass pwd secret cred key token auth bearer cookie dsn webhook netrc connection topic contrase
    kennwort senha contribsys
    """
)
"""Every name of a secret contains one of these; a service's name counts in a setting, and not in a sentence."""

# "token=abc", "password: abc", '"api_key": "abc"', `token := "abc"`, `"token" => "abc"`, `token: string = "abc"`.
_ASSIGNED_NAME = lazy_pattern(
    r"""(?<![\w.-])-{0,2}(?P<name>[A-Za-z_][\w.-]{0,80})
    (?P<between>\\{0,7}["']?\]?\s{0,3}(?:[!?+:|]{0,2}={1,3}>?|:)\s{0,3}
    (?:[|>][+-]?\s{1,40})?
    (?:(?:str|bytes|string|String|&(?:'static\ )?str|SecretStr|Optional\[str\]|str\ ?\|\ ?None)\s{0,3}=\s{0,3})?)""",
    re.VERBOSE,
)
# Such a name in the reversed text: an equals sign or colon is found faster than a name.
_ASSIGNED_NAME_REVERSED = lazy_pattern(
    r"""[=:][!?+:|]{0,2}\s{0,3}\]?["']?\\{0,7}(?P<name>[\w.-]{1,83})(?![\w.-])"""
)
_CALL = lazy_pattern(r"(?:await )?[A-Za-z_][\w.]{0,200}[(\[]")
_LONGEST_ITEM: Final = 400
_QUOTES: Final = ("'", '"')
# The quotes are escaped in JSON inside JSON. If they are not closed, the rest of the line is the value.
_IN_QUOTES: Final = r"""(?:[bBrRuUfF]{1,2}(?=["']))?(?P<quote>\\{0,7}(?:"{3}|'{3}|["']))
    (?:(?:(?!(?P=quote))(?:\\.|[^\n\\]))*(?P=quote)|(?=\w)[^\n]*)"""
_ASSIGNED_VALUE = lazy_pattern(
    rf"""{_IN_QUOTES}
    |(?!\\{{0,7}}["'])(?:(?!\|-{{0,2}}[A-Za-z_][\w.-]{{0,80}}["']?\s{{0,3}}[=:])[^\s,;&"'(){{}}\[\]])+""",
    re.VERBOSE,
)
# "--hf-token abc" in a command line, in a list that was printed or is in YAML, and one item a line.
_OPTION = lazy_pattern(
    rf"""(?P<name>-(?<![\w-]-)-?[A-Za-z][\w.-]{{0,80}})
    (?P<between>\s{{1,3}}(?:\\\s{{1,40}})?|\\{{0,7}}["'],?\s{{0,40}}(?=[bBuU]?\\{{0,7}}["'])|["']?\s{{1,40}}-\s{{1,3}}
    |,\s?(?=[^\s"'`,-][^\s"'`,]*[0-9]))
    (?!\\{{0,7}}["']--?[A-Za-z][a-z_.-]{{0,40}}\\{{0,7}}["'=])(?P<value>{_IN_QUOTES}|[^\s"'`=-](?:(?![,;|]-)[^\s"'`])*)""",
    re.VERBOSE,
)
# `[("api_key", "abc"), ("lr", "1")]`, `[["api_key", "abc"], ["lr", "1"]]`
_PAIR = lazy_pattern(
    rf"""["'](?:(?<=\(["'])|(?<=\[\[["'])|(?<=\],\[["'])|(?<=\],[ ]\[["']))(?P<name>[\w. -]{{1,80}})["'],\s{{0,3}}
    (?P<value>{_IN_QUOTES})(?=\s{{0,3}}[)\]])""",
    re.VERBOSE,
)
# `{'name': 'API_KEY', 'value': 'abc'}`, `name=api_key value=abc`, `<add key="password" value="abc"/>`
_NAMED_VALUE = lazy_pattern(
    rf"""\b(?:name|key)["']?\s?[:=]\s?["']?(?P<name>[\w.-]{{1,80}})["']?,?\s{{1,40}}["']?value["']?\s?[:=]\s?
    (?P<value>{_IN_QUOTES}|[^\s"',;(){{}}]+)""",
    re.VERBOSE,
)
# `| api_key | abc |`, and columns: `api_key      abc`, `api_key ...... abc`
_CELL = lazy_pattern(
    r"""(?:^|[|│┃])[ ]{0,60}(?P<name>[A-Za-z_][\w.-]{0,80})(?:[ ]{0,80}[|│┃\t][ ]{0,60}|[ ][ .]{1,80})
    (?P<value>[^\s|│┃"'.]+)(?=\s|[|│┃]|\Z)""",
    re.VERBOSE | re.MULTILINE,
)
# `auth = ("jane", "abc")`, `"passwords": ["abc", "def"]`
_ASSIGNED_LIST = lazy_pattern(
    r"""[(\[]\s{0,3}(?:(?:"[^"\n]{0,400}"|'[^'\n]{0,400}')\s{0,3},?\s{0,30}){1,100}[)\]]"""
)
_LISTED = lazy_pattern(r"""(?P<quote>["'])(?:(?!(?P=quote)).)*(?P=quote)""")
_NO_SECRET = lazy_pattern(
    r"""(?:None|True|False|null|true|false|""(?!")|''(?!'))(?![\w-])
    |(?:str|bytes|string|String|SecretStr)(?=\s{0,3}(?:[,;)\]}|\n]|\Z))""",
    re.VERBOSE,
)
NO_SECRET: Final = lazy_pattern(
    r"<[^<>\s]{0,40}>|\[[A-Z]{1,12}\]"
    r"|[0-9]{1,4}(?:\.[0-9]{1,5}){1,3}(?:\.?(?:a|b|rc|dev|post)[0-9]{1,8})*(?:[+=][\w.=]{1,20})?"
)
"""A tokenizer's <pad> or </s> is not a secret, and neither is the version of a package `google-auth`."""


def _mask_line(match: re.Match[str]) -> str:
    line = match[0]
    is_mixed = any(map(str.isupper, line)) and any(map(str.islower, line)) and any(map(str.isdigit, line))
    # A path may have 64 characters too, but few capitals.
    return MASK if is_mixed and sum(map(str.isupper, line)) > 8 else line


def _mask_kubernetes_data(match: re.Match[str]) -> str:
    return match["head"] + _YAML_VALUE.sub(rf"\1{MASK}", match["lines"])


def _mask_login(match: re.Match[str]) -> str:
    login = match["login"]
    # A name alone is not a secret (ssh://git@…), unless it is long enough to be a token.
    return f"{match['scheme']}{MASK}@" if ":" in login or len(login) >= 16 else match[0]


def _mask_option(match: re.Match[str]) -> str:
    secrecy, quote = secrecy_of(match["name"]), match["quote"] or ""
    bare = match["value"].strip("bBuU\\\"'") if quote else match["value"]
    if secrecy is Secrecy.OPEN or (secrecy is Secrecy.IF_RANDOM and not looks_generated(bare)):
        return match[0]
    return f"{match[0][: match.start('value') - match.start()]}{quote}{MASK}{quote}"


def _mask_cell(match: re.Match[str]) -> str:
    is_secret = secrecy_of(match["name"]) > Secrecy.IF_RANDOM and looks_generated(match["value"])
    return match[0].removesuffix(match["value"]) + MASK if is_secret else match[0]


def _mask_assignments(text: str, guesses: bool) -> str:
    parts = []
    done = harmless_until = 0
    is_code = False
    for match in _assigned_names(text):
        secrecy, is_sure = secrecy_of(match["name"]), _assigns_surely(match)
        if match.start() < done or not (is_sure or (guesses and secrecy is Secrecy.IF_TEXT)):
            continue
        if _CALL.match(text, match.end()):
            # `token = os.environ.get("X", "abc")`: code, which is no name.
            is_code = True
            continue
        listed = _ASSIGNED_LIST.match(text, match.end())
        if listed is not None and is_sure and secrecy is not Secrecy.IF_RANDOM:
            parts += [text[done : match.end()], _LISTED.sub(rf"\g<quote>{MASK}\g<quote>", listed[0])]
            done = listed.end()
            continue
        is_comparison = _COMPARES.search(match["between"]) is not None
        if match.end() < harmless_until and (is_comparison or not is_sure or secrecy is Secrecy.IF_RANDOM):
            continue
        value = _ASSIGNED_VALUE.match(text, match.end())
        if value is None or _NO_SECRET.match(text, value.start()):
            continue
        quote = value["quote"] or ""
        bare = value[0].strip("\"'")
        if is_working_directory(match["name"], bare) and text[match.start() - 1 : match.start()] != ";":
            # After a semicolon it is part of a database's address, and a password.
            continue
        is_a_guess = not is_sure or secrecy is Secrecy.IF_RANDOM or (is_comparison and not quote)
        if is_a_guess and not looks_generated(bare):
            if not quote:
                # No part of it looks random either, unless it was too long to check.
                harmless_until = value.end() - (_LONGEST_KEY if len(bare) > _LONGEST_KEY else 0)
            continue
        if secrecy is Secrecy.IF_TEXT and NO_SECRET.fullmatch(bare):
            continue
        parts += [text[done : match.end()], quote, MASK, quote]
        done = value.end()
        opening = text[match.start() - 1 : match.start()]
        if (
            opening in _QUOTES
            and not quote
            and match["between"][0] not in _QUOTES
            and text[done : done + 1] == " "
        ):
            # "--password=correct horse": an item of a list goes on to its closing quote.
            closing = text[done : done + _LONGEST_ITEM].partition("\n")[0].find(opening)
            done += max(closing, 0)
    masked = "".join([*parts, text[done:]])
    return mask_random_tokens(masked, MASK, mask_text, guesses=True) if is_code else masked


def _assigned_names(text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of `_ASSIGNED_NAME` with a secret's name, without trying it at every character."""
    starts = [
        len(text) - match.end()
        for match in _ASSIGNED_NAME_REVERSED.finditer(text[::-1])
        if secrecy_of(match["name"][::-1]) is not Secrecy.OPEN
    ]
    for start in reversed(starts):
        match = _ASSIGNED_NAME.match(text, start)
        if match is not None:
            yield match


_COMPARES = lazy_pattern(r"==|!=")


def _assigns_surely(match: re.Match[str]) -> bool:
    secrecy = secrecy_of(match["name"])
    if "=" in match["between"] or match["between"][0] in "\"'\\":
        return True
    # A colon may also be part of a sentence ("token: the smallest piece of text"); there only the clearest names are
    # sure, and those of headers.
    return secrecy is Secrecy.ALWAYS or (secrecy is Secrecy.IF_TEXT and match["name"][:2] in ("X-", "x-"))
