"""The patterns of the tokens of services.

To add a token, add one entry to `SHAPES`, then run `python -m tests.privacy.anchors`, which writes the tables
of `docs/figures/secret-shapes.md`. Tests draw samples from each pattern and check its hints with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from toolkit.telemetry.privacy.random_tokens import is_random


class Shape(NamedTuple):
    """The tokens of one service."""

    service: str
    pattern: str
    """A token never follows a letter or a digit; the pattern need not say so."""
    hints: tuple[str, ...]
    """Every token contains one of these; texts without any are not searched. A test compares them with the pattern."""
    check: Callable[[str], bool] | None = None
    """Called with what the pattern found; returns whether it really is a token."""


NO_HINT: Final = ("",)
"""The hints of a token without a fixed part. It must contain capital letters: other texts are not searched for it."""
SHORTEST: Final = 15
"""Characters of the shortest token."""


def mask_tokens(text: str, mask: str, *, guesses: bool = True) -> str:
    """Return `text` with every token that has a known shape replaced by `mask`.

    Without `guesses`, for names, shapes that count only where they look random are left out.
    """
    runs = long_runs(text)
    if not runs:
        return text
    # Searching for a word costs a hundredth of searching for a pattern, and most texts contain no hint.
    looked_at = "\n".join(runs)
    has_capitals = looked_at.lower() != looked_at
    for (letter, needs_capitals), hints in _HINTS.items():
        if letter in looked_at and (has_capitals or not needs_capitals):
            for hint in hints:
                if hint in looked_at:
                    for shape in _BY_HINT[hint]:
                        is_looked_for = guesses or shape.check not in _GUESSES
                        if is_looked_for and _pattern(shape).search(looked_at):
                            text = _without(shape, text, mask)
    return text


def long_runs(text: str) -> list[str]:
    """Return the parts of `text` with enough characters in a row to be a token."""
    # One byte for each character, so that positions are the same in both.
    marks = text.encode("ascii", "replace").translate(_RUN_OR_NOT)
    found = []
    start = marks.find(_A_RUN)
    while start >= 0:
        end = marks.find(b" ", start)
        end = len(marks) if end < 0 else end
        found.append(text[start:end])
        start = marks.find(_A_RUN, end)
    return found


def _is_random(text: str) -> bool:
    return is_random(re.sub(r"[^A-Za-z0-9]", "", text))


def _is_mixed(text: str) -> bool:
    return any(map(str.isupper, text)) and any(map(str.islower, text)) and any(map(str.isdigit, text))


def _is_random_key(text: str) -> bool:
    # The first part of such a token is an id, or a fixed text.
    return _is_random(re.split(r"[.:_-]", text, maxsplit=1)[-1])


SHAPES: Final[tuple[Shape, ...]] = (
    # Models, data and training.
    Shape("Hugging Face", r"(?:hf|api_org)_[A-Za-z0-9]{20,}", ("hf_", "api_org_")),
    Shape(
        "OpenAI, Anthropic and others",
        r"sk-(?=[A-Za-z_-]{0,60}[0-9])(?=helicone-|[\w-]{0,100}(?=[a-z]{0,10}[A-Z0-9])[A-Za-z0-9]{11})[A-Za-z0-9_-]{16,}",
        ("sk-",),
    ),
    Shape("Langfuse", r"[ps]k-lf-[0-9a-f-]{20,}", ("k-lf-",)),
    Shape("W&B", r"wandb_v[0-9]+_\w{20,}", ("wandb_v",)),
    Shape("Groq", r"gsk_\w{20,}", ("gsk_",)),
    Shape("Replicate", r"r8_\w{20,}", ("r8_",)),
    Shape("RunPod", r"rpa_\w{20,}", ("rpa_",)),
    Shape("NVIDIA", r"nvapi-[\w-]{20,}", ("nvapi-",)),
    Shape("xAI", r"xai-[A-Za-z0-9]{20,}", ("xai-",)),
    Shape("Perplexity", r"pplx-[A-Za-z0-9]{20,}", ("pplx-",)),
    Shape("Tavily", r"tvly-(?:[a-z]{2,8}-)?[A-Za-z0-9]{20,}", ("tvly-",)),
    Shape("Fireworks", r"fw[_-][A-Za-z0-9]{20,}", ("fw-", "fw_")),
    Shape("Cerebras", r"csk-[A-Za-z0-9]{20,}", ("csk-",)),
    Shape("Jina", r"jina[_-][A-Za-z0-9]{20,}", ("jina-", "jina_")),
    Shape("Pinecone", r"pcsk_\w{20,}", ("pcsk_",)),
    Shape("LangSmith", r"lsv2_(?:pt|sk)_\w{20,}", ("lsv2_",)),
    Shape("Databricks", r"dapi[0-9a-f]{32}(?:-[0-9])?", ("dapi",)),
    Shape("Prefect", r"pn[ub]_[A-Za-z0-9]{36}", ("pnu_", "pnb_")),
    Shape("E2B", r"e2b_[0-9a-f]{32,}", ("e2b_",)),
    Shape("Fal", r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9a-f]{32}", (":",)),
    Shape("Firecrawl", r"fc-[0-9a-f]{32}(?![0-9a-f])", ("fc-",)),
    Shape("Kaggle", r"KGAT_[0-9a-f]{32}", ("KGAT_",)),
    Shape("Luma", r"luma-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:-[0-9a-f]{8,})?", ("luma-",)),
    Shape("OpenPipe", r"opk_[0-9a-f]{32,}", ("opk_",)),
    Shape("Segmind", r"SG_[0-9a-f]{16}(?![0-9a-f])", ("SG_",)),
    Shape("Snowflake", r"ETMsDgAAA[A-Za-z0-9+/=]{40,}", ("ETMsDgAAA",)),
    Shape("ClickHouse Cloud", r"4b1d[A-Za-z0-9]{38}(?![A-Za-z0-9])", ("4b1d",), _is_random),
    # Clouds.
    Shape(
        "AWS access key",
        r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}",
        ("A3T", "AKIA", "ASIA", "ABIA", "ACCA"),
    ),
    Shape("AWS secret key", r"(?<![\w+/~-])[A-Za-z0-9/+]{40}(?![\w+/=~-])", NO_HINT, _is_random),
    Shape(
        "AWS session token",
        r"(?:IQoJb3JpZ2lu|F[wQ]oGZXIvYXdzE|AQoDYXdzE)[A-Za-z0-9/+=%]{40,}",
        ("IQoJb3JpZ2lu", "oGZXIvYXdzE", "AQoDYXdzE"),
    ),
    Shape(
        "Amazon Bedrock",
        r"(?:ABSK[A-Za-z0-9+/=]{60,}|bedrock-api-key-[\w+/=.-]{16,})",
        ("ABSK", "bedrock-api-key-"),
    ),
    Shape(
        "Google",
        r"(?:AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{16,}|GOOG-[\w-]{20,})",
        ("AIza", "ya29.", "GOCSPX-", "GOOG-"),
    ),
    Shape("Azure", r"[\w.~-]{3}[0-9]Q~[\w.~-]{31,34}", ("Q~",)),
    Shape("Alibaba Cloud", r"LTAI[A-Za-z0-9]{12,}", ("LTAI",)),
    Shape(
        "Yandex Cloud",
        r"(?:t1\.[\w=-]{4,}\.[\w-]{60,}={0,2}|AQVN[\w-]{35,38}|YC[\w-]{38}(?![\w-]))",
        ("t1.", "AQVN", "YC"),
        lambda text: text[:2] != "YC" or _is_mixed(text),
    ),
    Shape("DigitalOcean", r"do[opr]_v1_\w{20,}", ("doo_v1_", "dop_v1_", "dor_v1_")),
    Shape("Fly.io", r"(?:fo1_[\w-]{20,}|fm1[ar]_[\w+/=-]{20,}|fm2_[\w+/=-]{20,})", ("fo1_", "fm1", "fm2_")),
    Shape("Heroku", r"HRKU-[\w-]{36,}", ("HRKU-",)),
    Shape("Scaleway", r"SCW[A-Z0-9]{17}(?![A-Z0-9])", ("SCW",)),
    Shape("Scalingo", r"tk-us-[\w-]{40,}", ("tk-us-",)),
    Shape("Cloudflare", r"v1\.0-[0-9a-f]{24}-[0-9a-f]{146}", ("v1.0-",)),
    Shape("PlanetScale", r"pscale_(?:tkn|oauth|pw)_[\w=.-]{20,}", ("pscale_",)),
    Shape("Supabase", r"(?:sbp_[0-9a-f]{40}|sb_secret_[\w-]{20,})", ("sbp_", "sb_secret_")),
    Shape("OpenShift", r"sha256~[\w-]{43}", ("sha256~",)),
    Shape("HashiCorp Vault", r"hv[bsr]\.[\w-]{20,}", ("hvb.", "hvs.", "hvr.")),
    Shape("HashiCorp Vault before 1.10", r"s\.[A-Za-z0-9]{24}(?!\w)", ("s.",), _is_random_key),
    Shape("HashiCorp Terraform", r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{40,}", (".atlasv1.",)),
    Shape("Pulumi", r"pul-[0-9a-f]{40}", ("pul-",)),
    Shape("Infracost", r"ico-[A-Za-z0-9]{32}", ("ico-",)),
    Shape("Doppler", r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9._-]{20,}", ("dp.",)),
    Shape("Tailscale", r"tskey-[a-z]{2,12}-[\w-]{10,}", ("tskey-",)),
    Shape("Defined Networking", r"dnkey-[\w=-]{26}-[\w=-]{52}", ("dnkey-",)),
    # Code, packages and builds.
    Shape(
        "GitHub",
        r"(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,})",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    ),
    Shape(
        "GitLab",
        r"(?:gl(?:pat|dt|rt|ptt|cbt|ft|ffct|imt|agent|oas|soat)-[\w.-]{16,}|GR1348941[\w-]{20,}|_gitlab_session=\w{20,})",
        (
            *(f"gl{kind}-" for kind in "pat dt rt ptt cbt ft ffct imt agent oas soat".split()),
            *("GR1348941", "_gitlab_session="),
        ),
    ),
    Shape(
        "Atlassian",
        r"AT(?:ATT3|CTT3|BB)[\w=-]{20,}",
        ("ATATT3", "ATCTT3", "ATBB"),
        lambda text: any(map(str.isdigit, text[6:])),
    ),
    Shape("npm", r"npm_[A-Za-z0-9]{30,}", ("npm_",)),
    Shape("PyPI", r"pypi-[\w-]{40,}", ("pypi-",)),
    Shape("RubyGems", r"rubygems_[0-9a-f]{48}", ("rubygems_",)),
    Shape("Clojars", r"(?:CLOJARS|clojars)_[A-Za-z0-9]{60}", ("CLOJARS_", "clojars_")),
    Shape("Docker Hub", r"dckr_[po]at_[\w-]{20,}", ("dckr_pat_", "dckr_oat_")),
    Shape(
        "Artifactory",
        r"(?:AKC[A-Za-z0-9]{20,}|AP[0-9A-F][A-Za-z0-9]{20,}(?![A-Za-z0-9_-]))",
        ("AKC", "AP"),
        _is_random,
    ),
    Shape("Artifactory reference", r"cmVmd[A-Za-z0-9]{59}", ("cmVmd",)),
    Shape("Sourcegraph", r"sgp_(?:(?:[0-9a-fA-F]{16}|local)_)?[0-9a-fA-F]{40}", ("sgp_",)),
    Shape("Sonar", r"sq[upa]_[0-9a-f]{40}", ("squ_", "sqp_", "sqa_")),
    Shape("Octopus Deploy", r"API-[A-Z0-9]{26}(?![A-Z0-9])", ("API-",)),
    Shape("Harness", r"[ps]at\.[\w-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}", ("pat.", "sat.")),
    Shape("Postman", r"PMAK-[0-9a-fA-F]{24}-[0-9a-fA-F]{34}", ("PMAK-",)),
    Shape("ReadMe", r"rdme_[a-z0-9]{70}", ("rdme_",)),
    Shape("Buildkite", r"bk(?:ua|at)_[0-9a-f]{40}", ("bkua_", "bkat_")),
    # Talk, mail and calls.
    Shape("Slack", r"(?:xoxe\.)?(?:xox[a-z]|xapp)-[A-Za-z0-9-]{10,}", ("xox", "xapp-")),
    Shape("Discord bot", r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,45}", ("M", "N", "O"), _is_random),
    Shape(
        "Telegram bot",
        r"(?:bot)?[0-9]{8,12}:(?:AA[\w-]{30,}|[\w-]{35}(?![\w-]))",
        (":",),
        lambda text: ":AA" in text or _is_mixed(text),
    ),
    Shape("Twilio", r"(?:SK|AC)[0-9a-fA-F]{32}(?![0-9a-zA-Z])", ("SK", "AC")),
    Shape("SendGrid", r"SG\.[\w-]{16,}\.[\w-]{16,}", ("SG.",)),
    Shape("Sendinblue", r"xkeysib-[0-9a-f]{64}-[A-Za-z0-9]{16}", ("xkeysib-",)),
    Shape("Mailchimp", r"[0-9a-z]{32}-us[0-9]{1,2}(?![0-9A-Za-z])", ("-us",)),
    Shape(
        "Mailgun",
        r"(?:(?<![\w-])(?:pub)?key-[0-9a-f]{32}|[0-9a-h]{32}-[0-9a-h]{8}-[0-9a-h]{8})(?![\w-])",
        ("key-", "-"),
    ),
    Shape(
        "Twitter",
        r"(?:A{18,24}[A-Za-z0-9%]{60,}|[0-9]{15,25}-[A-Za-z0-9]{20,45}(?![\w-]))",
        NO_HINT,
        _is_random_key,
    ),
    Shape("Facebook, Square", r"EAA[A-Za-z0-9_-]{22,}", ("EAA",), _is_random),
    Shape("Facebook app", r"[0-9]{15,16}(?:\||%7C|%)[\w-]{27,40}", ("|", "%")),
    # Work and watching.
    Shape("Sentry", r"(?:sntrys_[\w+/=-]{20,}|sntryu_\w{20,})", ("sntrys_", "sntryu_")),
    Shape("Grafana", r"gl(?:c_[A-Za-z0-9+/=]{32,}|sa_[A-Za-z0-9]{32}_[0-9a-fA-F]{8})", ("glc_", "glsa_")),
    Shape(
        "New Relic",
        r"NR(?:AK|II|JS|RA|BR|IQ)-[A-Za-z0-9-]{19,}",
        ("NRAK-", "NRII-", "NRJS-", "NRRA-", "NRBR-", "NRIQ-"),
    ),
    Shape("Axiom", r"xa[aip]t-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", ("xaat-", "xait-", "xapt-")),
    Shape("Dynatrace", r"dt0[a-z][0-9]{2}\.[A-Z0-9a-z]{24}\.[A-Z0-9a-z]{64}", ("dt0",)),
    Shape("PostHog", r"ph[cxs]_\w{20,}", ("phc_", "phx_", "phs_")),
    Shape("Linear", r"lin_(?:api|oauth)_\w{20,}", ("lin_",)),
    Shape("Notion", r"(?:ntn_\w{20,}|secret_[A-Za-z0-9]{43}(?!\w))", ("ntn_", "secret_")),
    Shape("Airtable", r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}", ("pat",)),
    Shape("Dropbox", r"sl\.[\w=-]{100,}", ("sl.",)),
    Shape("Frame.io", r"fio-u-[\w=-]{60,}", ("fio-u-",)),
    Shape("Figma", r"figd_[\w-]{30,}", ("figd_",)),
    Shape("Typeform", r"tfp_[\w.=-]{50,}", ("tfp_",)),
    Shape("Mapbox", r"[ps]k\.[A-Za-z0-9]{60,}\.[\w-]{22}", ("pk.", "sk.")),
    Shape("MaxMind", r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk", ("_mmk",)),
    Shape("Adobe", r"p8e-[A-Za-z0-9]{32}", ("p8e-",)),
    Shape(
        "Authress",
        r"(?:sc|ext|scauth|authress)_[A-Za-z0-9]{5,30}\.[A-Za-z0-9]{4,6}\.acc[_-][A-Za-z0-9-]{10,32}\.[\w+/=-]{30,120}",
        (".acc",),
    ),
    Shape("42 Intra", r"s-s4t2(?:ud|af)-[0-9a-f]{64}", ("s-s4t2",)),
    Shape(
        "1Password", r"A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}", ("A3-",)
    ),
    # Shops and money.
    Shape("Stripe", r"(?:sk|rk|pk)_(?:live|test|prod)_[A-Za-z0-9]{10,}", ("k_live_", "k_test_", "k_prod_")),
    Shape("Shopify", r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}", ("shpat_", "shpca_", "shppa_", "shpss_")),
    Shape("Square", r"sq0[a-z]{3}-[\w-]{22,60}", ("sq0",)),
    Shape("Flutterwave", r"FLWSECK(?:_TEST)?-[0-9a-zA-Z]{12,}(?:-X)?", ("FLWSECK",)),
    Shape("Duffel", r"duffel_(?:test|live)_[\w=-]{40,}", ("duffel_",)),
    Shape("EasyPost", r"EZ[AT]K[A-Za-z0-9]{54}", ("EZAK", "EZTK")),
    Shape("Shippo", r"shippo_(?:live|test)_[0-9a-fA-F]{40}", ("shippo_",)),
    Shape("Lob", r"(?<!\w)(?:live|test)_(?:pub_)?[0-9a-f]{31,35}(?!\w)", ("live_", "test_")),
    Shape("GoCardless", r"(?<!\w)live_[\w=-]{40}(?![\w=-])", ("live_",), _is_random),
    Shape(
        "Plaid",
        r"access-(?:sandbox|development|production)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        ("access-",),
    ),
    Shape("SettleMint", r"sm_[aps]at_[A-Za-z0-9]{16}", ("sm_aat_", "sm_pat_", "sm_sat_")),
    # Of no service.
    Shape("JSON in Base64, such as a JSON web token", r"eyJ[\w-]{14,}(?:\.[\w-]+){0,4}", ("eyJ",)),
    Shape("JSON web token, Base64 twice", r"ZXlK[\w+/=-]{20,}", ("ZXlK",)),
    Shape("age", r"AGE-SECRET-KEY-1[0-9A-Z]{20,}", ("AGE-SECRET-KEY-1",)),
)
"""Our own patterns for the tokens that gitleaks and detect-secrets look for, and for some that they lack."""

_GUESSES: Final = frozenset({_is_random, _is_random_key})
_A_RUN: Final = b"x" * SHORTEST
_RUN_OR_NOT: Final = bytes(120 if re.match(rb"[\w+/=~.:|%-]", bytes([code])) else 32 for code in range(256))
"""Turns each byte that a token may contain into an x, and every other one into a space."""

_BY_HINT: Final[dict[str, list[Shape]]] = {}
for _shape in SHAPES:
    for _hint in _shape.hints:
        _BY_HINT.setdefault(_hint, []).append(_shape)

_HINTS: Final[dict[tuple[str, bool], list[str]]] = {}
"""The hints by what most texts lack: a text without underscores or capitals can contain few of them."""
# Those without a hint come last: part of another token may match them.
for _hint in sorted(_BY_HINT, key=lambda hint: not hint):
    _letter = next((letter for letter in "_-~.|%:" if letter in _hint), "")
    _HINTS.setdefault((_letter, _hint.lower() != _hint or not _hint), []).append(_hint)
_HINTS["", True] = _HINTS.pop(("", True))


@cache
def _pattern(shape: Shape) -> re.Pattern[str]:
    # Compiled when first needed: compiling all of them takes as long as importing the rest of the package.
    return re.compile(rf"(?<![A-Za-z0-9])(?:{shape.pattern})", re.ASCII)


def _without(shape: Shape, text: str, mask: str) -> str:
    check = shape.check
    if check is None:
        return _pattern(shape).sub(mask, text)
    return _pattern(shape).sub(lambda match: mask if check(match[0]) else match[0], text)
