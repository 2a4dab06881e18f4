"""What gitleaks and detect-secrets look for, read from `docs/figures/secret-shapes.md`, and samples of it.

`python -m tests.privacy.anchors` writes the table of our shapes there. A sample is a recipe: `{a20}` means twenty
letters and digits, which are drawn when a test runs, so that no scanner finds a token in this file.
"""

from __future__ import annotations

import base64
import random
import re
import string
from pathlib import Path
from typing import NamedTuple

from toolkit.telemetry.privacy.token_shapes import SHAPES

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "figures" / "secret-shapes.md"

_ALPHABETS = {
    "a": string.ascii_letters + string.digits,
    "b": string.ascii_letters + string.digits + "+/",
    "d": string.digits,
    "h": "0123456789abcdef",
    "H": "0123456789ABCDEF",
    "l": string.ascii_lowercase + string.digits,
    "L": string.ascii_letters,
    "u": string.ascii_uppercase + string.digits,
    "w": string.ascii_letters + string.digits + "_-",
}
_PART = re.compile(r"\{([a-zA-Z])([0-9]+)\}")


class Rule(NamedTuple):
    """One rule of an anchor."""

    name: str
    found_by: str
    """A shape's service; `name`, `service name`, `text`, `address`, `random`; behind a dash, why it does not apply."""
    recipe: str

    @property
    def applies(self) -> bool:
        return not self.found_by.startswith("- ")


def sample(recipe: str, seed: int) -> tuple[str, list[str]]:
    """Return a text made by `recipe`, and the parts of it that must not be seen: the longest drawn ones."""
    chance = random.Random(f"{recipe}{seed}")
    drawn: list[str] = []

    def draw(match: re.Match[str]) -> str:
        alphabet, length = _ALPHABETS[match[1]], int(match[2])
        text = "".join(chance.choices(alphabet, k=length))
        # Chance alone may leave out what tells a token from a word: a token of any length worth it has a digit.
        if length >= 16 and match[1] in "abhlw":
            text = text[:-3] + chance.choice("0123456789") + text[-2] + chance.choice("0123456789")
        drawn.append(text)
        return text

    written = _PART.sub(draw, recipe.replace("{uuid}", "{h8}-{h4}-{h4}-{h4}-{h12}"))
    longest = max(map(len, drawn))
    return written, [text for text in drawn if len(text) == longest]


def _rules(table: str) -> list[Rule]:
    rows = [re.split(r"\s+\|\s+", line.strip(" |")) for line in table.strip().splitlines()]
    return [Rule(row[0], row[1], row[2] if len(row) > 2 else "") for row in rows]


def _documented(heading: str) -> list[Rule]:
    """Return the rules of the table below a heading of the document."""
    _, found, after = DOCUMENT.read_text(encoding="utf-8").partition(f"## {heading} ")
    assert found, heading
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| (?:`(.+)` )?\|$", after.partition("\n## ")[0], re.MULTILINE)
    return [
        Rule(name, found_by.replace("does not apply: ", "- "), recipe.replace("\\|", "|"))
        for name, found_by, recipe in rows
    ]


GITLEAKS = _documented("gitleaks")
DETECT_SECRETS = _documented("detect-secrets")

OURS = _rules(r"""
HashiCorp Vault | HashiCorp Vault | hvr.{w90}
HashiCorp Vault, before 1.10 | HashiCorp Vault before 1.10 | s.{a24}
Docker Hub | Docker Hub | dckr_pat_{w27}
Docker Hub, of an organisation | Docker Hub | dckr_oat_{w27}
Discord bot | Discord bot | N{a25}.{w6}.{w38}
AWS session token | AWS session token | IQoJb3JpZ2luX2Vj{b300}
AWS session token, older | AWS session token | FwoGZXIvYXdzEBYa{b300}
Comet | random | {a25}
Langfuse | Langfuse | sk-lf-{uuid}
Pinecone | Pinecone | pcsk_{a60}
Fireworks | Fireworks | fw_{a24}
Axiom | Axiom | xaat-{uuid}
Axiom, of a person | Axiom | xapt-{uuid}
Scaleway access key | Scaleway | SCW{u17}
Scaleway secret key | service name | scaleway {uuid}
Supabase | Supabase | sbp_{h40}
Tailscale | Tailscale | tskey-auth-{a17}-{a32}
Buildkite | Buildkite | bkua_{h40}
Figma | Figma | figd_{w40}
Atlassian, of a repository | Atlassian | ATBB{a32}
Notion, older | Notion | secret_{a43}
Linear | Linear | lin_oauth_{h64}
W&B | W&B | wandb_v1_{a77}
Groq | Groq | gsk_{a52}
Replicate | Replicate | r8_{a37}
RunPod | RunPod | rpa_{a40}
NVIDIA | NVIDIA | nvapi-{w64}
xAI | xAI | xai-{a80}
Tavily | Tavily | tvly-{a32}
Cerebras | Cerebras | csk-{l48}
Jina | Jina | jina_{a60}
LangSmith | LangSmith | lsv2_pt_{h32}_{h10}
PostHog | PostHog | phx_{a43}
Google OAuth | Google | GOCSPX-{w28}
Google access token | Google | ya29.{w60}
""")
"""Tokens that neither of the two lists has, or has in another form."""

_TOKENS = r"""
AI21 | {a32}
AgentOps | {uuid}
Aleph Alpha | eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9.{w40}.{w43}
Anthropic | sk-ant-api03-{w93}AA
Anyscale | esecret_{l30}
Apify | apify_api_{a36}
Arize | ak-{uuid}-{w32}
AssemblyAI | {h32}
AWS access key | AKIA{u16}
AWS secret key | {b40}
AWS session token | IQoJb3JpZ2luX2Vj{b300}
Azure OpenAI | {a52}JQQJ99{u8}AC{a18}
Azure client secret | {a3}8Q~{w34}
Baseten | {a8}.{a32}
Browserbase | bb_live_{w27}
Brave Search | BSA{w28}
Braintrust | sk-{a48}
Buildkite | bkua_{h40}
Cartesia | sk_car_{a22}
Cerebras | csk-{l48}
Clarifai | {h32}
ClearML | {u30}
Civitai | {h32}
ClickHouse Cloud | 4b1d{a38}
Cloudflare | {w40}
Cohere | {a40}
Comet | {a25}
Composio | ak_{a20}
CoreWeave | CW-SECRET-{a43}
Crusoe | crusoe_{a40}
Databricks | dapi{h32}-2
Datadog | {h40}
DeepInfra | {a32}
DeepSeek | sk-{h32}
Deepgram | {h40}
Determined AI | v2.public.{w120}
DigitalOcean | dop_v1_{h64}
Discord bot | N{a25}.{w6}.{w38}
Docker Hub | dckr_pat_{w27}
Doppler | dp.pt.{a43}
E2B | e2b_{h40}
ElevenLabs | sk_{h48}
Exa | {uuid}
Fal | {uuid}:{h32}
Figma | figd_{w40}
Firecrawl | fc-{h32}
Fireworks | fw_{a24}
Fly.io | fm2_{b120}
Friendli | flp_{a46}
GitHub | ghp_{a36}
GitHub fine-grained | github_pat_{a22}_{a59}
GitLab | glpat-{w20}
Google API | AIza{w35}
Google OAuth | GOCSPX-{w28}
Google access token | ya29.{w160}
Google service account id | AQ.{w50}
Grafana | glsa_{a32}_{h8}
Groq | gsk_{a52}
HashiCorp Vault | hvs.{w90}
Helicone | sk-helicone-{l7}-{l7}-{l7}-{l7}
Heroku | HRKU-AA{w58}
Hugging Face | hf_{L34}
Hugging Face organisation | api_org_{L34}
Humanloop | hl_sk_{h48}
Hyperbolic | eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.{w80}.{w43}
Inngest | signkey-prod-{h64}
Jina | jina_{a60}
Kaggle | KGAT_{h32}
Keywords AI | {a8}.{a32}
Lambda Cloud | secret_{l32}.{l48}
LanceDB | sk_{u52}
LangSmith | lsv2_pt_{h32}_{h10}
Langfuse | sk-lf-{uuid}
Lepton | nvapi-{w64}
Linear | lin_api_{a40}
LlamaCloud | llx-{a48}
Logfire | pylf_v1_us_{a43}
Luma | luma-{uuid}-{h32}
Mailgun | key-{h32}
Mem0 | m0-{a40}
Minimax | sk-api-{w100}
Mistral | {a32}
Modal | ak-{a22}
Modal secret | as-{a22}
Moonshot | sk-{a48}
NVIDIA | nvapi-{w64}
Nebius | v1.{w300}
Neon | napi_{l64}
Neptune | eyJhcGlfYWRkcmVzcyI6Imh0dHBzOi8v{a100}
Netlify | nfp_{a36}
ngrok | {a27}_{a21}
Notion | ntn_{d11}{a35}
Novita | sk_{w43}
npm | npm_{a36}
OpenAI | sk-{a20}T3BlbkFJ{a20}
OpenAI project | sk-proj-{w74}T3BlbkFJ{w74}
OpenPipe | opk_{h40}
OpenRouter | sk-or-v1-{h64}
Parallel | {w40}
Perplexity | pplx-{a48}
Pinecone | pcsk_{a5}_{a63}
PlanetScale | pscale_tkn_{w43}
Polar | polar_oat_{a43}
Portkey | {a27}=
PostHog | phx_{a43}
Predibase | pb_{w22}
Prefect | pnu_{a36}
Pulumi | pul-{h40}
PyPI | pypi-AgEIcHlwaS5vcmc{w150}
Qdrant | {a32}|{w40}
Qdrant Cloud | {uuid}|{w54}
Railway | {uuid}
Reka | {h64}
Render | rnd_{a28}
Replicate | r8_{a37}
Requesty | sk-{w80}
Resend | re_{a8}_{a24}
Roboflow | {a20}
RunPod | rpa_{u40}{l6}
Runway | key_{h128}
SambaNova | {uuid}
Scale | live_{h32}
Sentry | sntryu_{h64}
Segmind | SG_{h16}
Serper | {h40}
SerpAPI | {h64}
Shopify | shpat_{h32}
SiliconFlow | sk-{l48}
Slack | xoxb-{d12}-{d13}-{a24}
Snowflake | ver:1-hint:{d12}-ETMsDgAAA{b180}==
Sourcegraph | sgp_{h16}_{h40}
Stability | sk-{a48}
Stripe | sk_live_{a99}
Supabase | sbp_{h40}
Supabase secret | sb_secret_{w22}_{w8}
Tailscale | tskey-auth-{a17}-{a32}
Tavily | tvly-dev-{a32}
Telegram bot | {d10}:AA{w33}
Temporal | tmprl_{a40}
Together | tgp_v1_{w43}
Together older | {h64}
Trigger.dev | tr_prod_{a20}
Turbopuffer | tpuf_{a32}
Turso | eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9.{w100}.{w86}
Twelve Labs | tlk_{u32}
Upstash | AX{w60}
Vast.ai | {h64}
Vercel | vcp_{a56}
Vercel older | {a24}
Voyage | pa-{w43}
W&B | wandb_v1_{a77}
W&B older | {h40}
Weaviate | {a36}
Windmill | wm_token_{a32}
Writer | {a43}
xAI | xai-{a80}
Yandex | AQVN{w36}
You.com | ydc-sk-{h16}-{a32}-{h8}
Zilliz | {h72}
ZenML | ZENKEY_{a120}
base64 of a token | =hf_{L34}
base64 of a login | =https://bob:{a24}@example.com
base64 of a line | =OPENAI_API_KEY=sk-{a48}
hex of a token | #ghp_{a36}
hex of a line | #password={a24}
netrc | machine api.example.com login bob password {a24}
netrc with lines | machine api.example.com\n  login bob\n  password {a24}
docker login | docker login -u bob -p {a24} registry.example.com
pgpass | db.example.com:5432:metrics:bob:{a24}
"""
TOKENS: dict[str, str] = dict(line.split(" | ") for line in _TOKENS.strip().splitlines())
"""Tokens of services, many of them new, by service; `=` in front of a recipe means in Base64, `#` in hex."""


def token(service: str, seed: int) -> tuple[str, list[str]]:
    """Return a token of a service, and the parts of it that must not be seen."""
    recipe = TOKENS[service].replace("\\n", "\n")
    text, parts = sample(recipe.lstrip("=#"), seed)
    if recipe[0] == "=":
        text = base64.b64encode(text.encode()).decode()
        parts = [text.rstrip("=")[4:-4]]
    elif recipe[0] == "#":
        text = text.encode().hex()
        parts = [text]
    return text, parts


def document(text: str) -> str:
    """Return the text of `docs/figures/secret-shapes.md` with its table of shapes as it has to be."""
    rows = [("token of", "pattern"), ("---", "---"), *((one.service, _code(one.pattern)) for one in SHAPES)]
    before, mark, behind = text.partition("## The shapes\n")
    old = re.search(r"(?:^\|.*\n)+", behind, re.MULTILINE)
    assert mark
    assert old is not None
    table = "".join(f"| {one} | {other} |\n" for one, other in rows)
    return before + mark + behind[: old.start()] + table + behind[old.end() :]


def _code(pattern: str) -> str:
    return "`" + pattern.replace("|", "\\|") + "`"


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
