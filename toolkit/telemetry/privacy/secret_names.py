"""Decides by the name of a setting whether its value is a secret."""

from __future__ import annotations

import enum
import re
from functools import lru_cache
from itertools import pairwise
from typing import Final

from toolkit.telemetry.core.formatting import words


class Secrecy(enum.IntEnum):
    """Which values of a setting are hidden."""

    OPEN = 0
    IF_RANDOM = 1
    """Texts that look random (`deploy_key: 8fK2…`, not `rotary_key: positions`)."""
    IF_TEXT = 2
    """All texts; a number or boolean is a setting (`token: 5`, `use_auth: true`)."""
    ALWAYS = 3
    """Everything, numbers too: a password may be one."""


@lru_cache(maxsize=4096)
def secrecy_of(name: str) -> Secrecy:
    """Return how secret the value of a setting, variable or option called `name` is.

    Names are split into words (`hfToken`, `HF_TOKEN`, `--hf-token`), and whole words are compared: `tokenizer`,
    `author`, `monkey` and `hidden_key_dim` are not secret.
    """
    words = [word.lower() for word in _WORD.findall(name.replace("ñ", "n").replace("Ñ", "N"))]
    if not words or words[-1] in _DESCRIBES:
        return Secrecy.OPEN
    pairs = {first + second for first, second in pairwise(words)}
    if not _PASSWORDS.isdisjoint(words) or not _PASSWORDS.isdisjoint(pairs):
        return Secrecy.ALWAYS
    if not _SECRETS.isdisjoint(words) or not _SECRETS.isdisjoint(pairs):
        return Secrecy.IF_TEXT
    before = words[-2] if len(words) > 1 else ""
    if words[-1] == "token" and before not in _KINDS_OF_TEXT_TOKEN:
        return Secrecy.IF_TEXT
    if words[-1] == "tokens" and before in _OWNERS_OF_TOKENS:
        return Secrecy.IF_TEXT
    if (
        words[-1] in ("key", "keys", "pass")
        or not _SERVICES.isdisjoint(words)
        or not _SERVICES.isdisjoint(pairs)
    ):
        return Secrecy.IF_RANDOM
    return Secrecy.OPEN


class Kind(enum.Enum):
    """What a value is, by the name of its setting."""

    NAME = enum.auto()
    """Of a run, file, metric or the like: it tells things apart, so no two of them may become one."""
    TEXT = enum.auto()
    """That a person or a program wrote."""
    SETTING = enum.auto()


@lru_cache(maxsize=4096)
def kind_of(name: str) -> Kind:
    """Return what the value of a setting or field called `name` is."""
    words = _WORD.findall(name)
    last = words[-1].lower() if words else ""
    return Kind.NAME if last in _NAMES else Kind.TEXT if last in _TEXTS else Kind.SETTING


def is_working_directory(name: str, value: object) -> bool:
    """Return whether `name` is the shell's variable for the working folder, rather than short for a password."""
    variable = re.split(r"[/.]", name)[-1]
    return variable in ("PWD", "OLDPWD") and isinstance(value, str) and _FOLDER.match(value) is not None


_NAMES: Final = words(
    """
    name names path paths file files dir folder project tag tags metric metrics column columns alias aliases
    """
)
_TEXTS: Final = words(
    "message messages text note notes reason comment description prompt completion stack output"
)
_FOLDER = re.compile(r"/|~|[A-Za-z]:[\\/]")
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")

_PASSWORDS: Final = words(
    """
    password passwords passwd passphrase pwd pgpassword userpass dbpass keypass databasepass contrasena
    passwort kennwort senha secret secrets credential credentials apikey apikeys accesskey accesskeys
    privatekey secretkey signingkey encryptionkey sshkey authkey accountkey masterkey licensekey
    servicekey subscriptionkey sharedkey hmackey wandbkey openaikey hfkey connectionstring dbkey
    databasekey privkey deploykey hostkey cryptkey clientkey rsakey pgpkey gpgkey tlskey
    """
)
"""Words, or two adjacent words, that name a password of any type."""

_SECRETS: Final = words(
    """
    auth authorization bearer cookie cookies dsn webhook webhooks netrc contribsys authtoken accesstoken
    apitoken hftoken refreshtoken bearertoken ntfytopic
    """
)

_DESCRIBES: Final = words(
    """
    env file path dir folder name type mode method provider scheme host endpoint sock socket enabled
    required timeout ttl expiry expires length len size count num limit dim dropout
    """
)
"""Last words of a name that describes a secret but does not hold it: `token_file`, `password_env`, `auth_type`."""

_SERVICES: Final = words(
    """
    adafruit airtable algolia alibaba artifactory asana axiom beamer bitbucket bittrex civitai clearml
    cloudflare codecov cohere coinbase comet confluent contentful datadog discord droneci dropbox etsy
    facebook fastly finicity finnhub flickr freshbooks gitter heroku hubspot intercom jfrog kaggle
    kraken kucoin launchdarkly linkedin looker mailchimp mailgun mapbox mattermost meraki messagebird
    neptune netlify newrelic nytimes okta plaid rapidapi roboflow scaleway scw sendbird sentry snyk squarespace
    sumologic telegram travis twilio twitch twitter yandex zendesk
    """
)
"""Services whose keys have no pattern: a random value under such a name is one."""

_KINDS_OF_TEXT_TOKEN: Final = words(
    """
    pad eos bos unk sep cls mask image video audio special class trigger placeholder instance concept
    init initializer start stop end begin next first last prefix suffix middle text prompt word added
    per sec new boi eoi decoder target source modifier bot eot fim
    """
)
"""Words before `token` if it is a piece of text: a tokenizer's `pad_token` is `<pad>`, not a secret."""

_OWNERS_OF_TOKENS: Final = words("api access auth bearer refresh hf hub github gitlab")
