"""What gitleaks and detect-secrets look for, and what of ours finds it: the tables of `docs/figures/secret-shapes.md`.

`python -m tests.privacy.anchors` writes them. A sample is a recipe: `{a20}` means twenty
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


GITLEAKS_VERSION = "8.30.0"
GITLEAKS = _rules(r"""
1password-secret-key | 1Password | A3-{u6}-{u6}-{u5}-{u5}-{u5}-{u5}
1password-service-account-token | JSON in Base64, such as a JSON web token | ops_eyJ{a250}
adafruit-api-key | service name | adafruit {w32}
adobe-client-id | - an id: public by design |
adobe-client-secret | Adobe | p8e-{l32}
age-secret-key | age | AGE-SECRET-KEY-1{u58}
airtable-api-key | service name | airtable {l17}
airtable-personnal-access-token | Airtable | pat{a14}.{h64}
algolia-api-key | service name | algolia {l32}
alibaba-access-key-id | Alibaba Cloud | LTAI{a20}
alibaba-secret-key | service name | alibaba {l30}
anthropic-admin-api-key | OpenAI, Anthropic and others | sk-ant-admin01-{w93}AA
anthropic-api-key | OpenAI, Anthropic and others | sk-ant-api03-{w93}AA
artifactory-api-key | Artifactory | AKCp{a69}
artifactory-reference-token | Artifactory reference | cmVmd{a59}
asana-client-id | - an id: public by design |
asana-client-secret | service name | asana {l32}
atlassian-api-token | Atlassian | ATATT3{w186}
authress-service-client-access-key | Authress | sc_{l20}.{l5}.acc_{l20}.{b60}
aws-access-token | AWS access key | AKIA{u16}
aws-amazon-bedrock-api-key-long-lived | Amazon Bedrock | ABSK{b120}
aws-amazon-bedrock-api-key-short-lived | Amazon Bedrock | bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t{b40}
azure-ad-client-secret | Azure | {a3}8Q~{w32}
beamer-api-token | service name | beamer b_{w44}
bitbucket-client-id | - an id: public by design |
bitbucket-client-secret | service name | bitbucket {w64}
bittrex-access-key | service name | bittrex {l32}
bittrex-secret-key | service name | bittrex {l32}
cisco-meraki-api-key | service name | meraki {h40}
clickhouse-cloud-api-secret-key | ClickHouse Cloud | 4b1d{a38}
clojars-api-token | Clojars | CLOJARS_{l60}
cloudflare-api-key | service name | cloudflare {w40}
cloudflare-global-api-key | service name | cloudflare {h37}
cloudflare-origin-ca-key | Cloudflare | v1.0-{h24}-{h146}
codecov-access-token | service name | codecov {l32}
cohere-api-token | service name | cohere {a40}
coinbase-access-token | service name | coinbase {w64}
confluent-access-token | service name | confluent {l16}
confluent-secret-key | service name | confluent {l64}
contentful-delivery-api-token | service name | contentful {w43}
curl-auth-header | text | curl -H "Authorization: Bearer {w20}" https://example.com
curl-auth-user | text | curl -u admin:{a12} https://example.com
databricks-api-token | Databricks | dapi{h32}
datadog-access-token | service name | datadog {l40}
defined-networking-api-token | Defined Networking | dnkey-{w26}-{w52}
digitalocean-access-token | DigitalOcean | doo_v1_{h64}
digitalocean-pat | DigitalOcean | dop_v1_{h64}
digitalocean-refresh-token | DigitalOcean | dor_v1_{h64}
discord-api-token | service name | discord {h64}
discord-client-id | - an id: public by design |
discord-client-secret | service name | discord {w32}
doppler-api-token | Doppler | dp.pt.{l43}
droneci-access-token | service name | droneci {l32}
dropbox-api-token | name | dropbox_api_token {l15}
dropbox-long-lived-api-token | service name | dropbox {l11}AAAAAAAAAA{w43}
dropbox-short-lived-api-token | Dropbox | sl.{w135}
duffel-api-token | Duffel | duffel_live_{w43}
dynatrace-api-token | Dynatrace | dt0c01.{u24}.{u64}
easypost-api-token | EasyPost | EZAK{a54}
easypost-test-api-token | EasyPost | EZTK{a54}
etsy-access-token | service name | etsy {l24}
facebook-access-token | Facebook app | {d16}|{w30}
facebook-page-access-token | Facebook, Square | EAAM{a120}
facebook-secret | service name | facebook {h32}
fastly-api-token | service name | fastly {w32}
finicity-api-token | service name | finicity {h32}
finicity-client-secret | service name | finicity {l20}
finnhub-access-token | service name | finnhub {l20}
flickr-access-token | service name | flickr {l32}
flutterwave-encryption-key | Flutterwave | FLWSECK_TEST-{h12}
flutterwave-public-key | - a public key |
flutterwave-secret-key | Flutterwave | FLWSECK_TEST-{h32}-X
flyio-access-token | Fly.io | fm2_{b120}
frameio-api-token | Frame.io | fio-u-{w64}
freemius-secret-key | name | secret_key sk_{a29}
freshbooks-access-token | service name | freshbooks {l64}
gcp-api-key | Google | AIza{w35}
generic-api-key | name | api_key {a24}
github-app-token | GitHub | ghs_{a36}
github-fine-grained-pat | GitHub | github_pat_{a82}
github-oauth | GitHub | gho_{a36}
github-pat | GitHub | ghp_{a36}
github-refresh-token | GitHub | ghr_{a36}
gitlab-cicd-job-token | GitLab | glcbt-{a3}_{w20}
gitlab-deploy-token | GitLab | gldt-{w20}
gitlab-feature-flag-client-token | GitLab | glffct-{w20}
gitlab-feed-token | GitLab | glft-{w20}
gitlab-incoming-mail-token | GitLab | glimt-{w25}
gitlab-kubernetes-agent-token | GitLab | glagent-{w50}
gitlab-oauth-app-secret | GitLab | gloas-{w64}
gitlab-pat | GitLab | glpat-{w20}
gitlab-pat-routable | GitLab | glpat-{w27}.{l9}
gitlab-ptt | GitLab | glptt-{h40}
gitlab-rrt | GitLab | GR1348941{w20}
gitlab-runner-authentication-token | GitLab | glrt-{w20}
gitlab-runner-authentication-token-routable | GitLab | glrt-t1_{w27}.{l9}
gitlab-scim-token | GitLab | glsoat-{w20}
gitlab-session-cookie | GitLab | _gitlab_session={h32}
gitter-access-token | service name | gitter {w40}
gocardless-api-token | GoCardless | live_{w40}
grafana-api-key | JSON in Base64, such as a JSON web token | eyJrIjoi{a80}
grafana-cloud-api-token | Grafana | glc_{b64}
grafana-service-account-token | Grafana | glsa_{a32}_{h8}
harness-api-key | Harness | pat.{w22}.{a24}.{a20}
hashicorp-tf-api-token | HashiCorp Terraform | {a14}.atlasv1.{w65}
hashicorp-tf-password | name | administrator_login_password {w16}
heroku-api-key | service name | heroku {uuid}
heroku-api-key-v2 | Heroku | HRKU-AA{w58}
hubspot-api-key | service name | hubspot {uuid}
huggingface-access-token | Hugging Face | hf_{L34}
huggingface-organization-api-token | Hugging Face | api_org_{L34}
infracost-api-token | Infracost | ico-{a32}
intercom-api-key | service name | intercom {w60}
intra42-client-secret | 42 Intra | s-s4t2ud-{h64}
jfrog-api-key | service name | jfrog {l73}
jfrog-identity-token | service name | artifactory {l64}
jwt | JSON in Base64, such as a JSON web token | eyJ{a30}.eyJ{a40}.{w43}
jwt-base64 | JSON web token, Base64 twice | ZXlKaGJHY2lPaU{a60}
kraken-access-token | service name | kraken {b84}
kubernetes-secret-yaml | text | apiVersion: v1\nkind: Secret\ndata:\n  user: {b20}\nmetadata:\n  name: x
kucoin-access-token | service name | kucoin {h24}
kucoin-secret-key | service name | kucoin {uuid}
launchdarkly-access-token | service name | launchdarkly {w40}
linear-api-key | Linear | lin_api_{l40}
linear-client-secret | name | linear_client_secret {h32}
linkedin-client-id | - an id: public by design |
linkedin-client-secret | service name | linkedin {l16}
lob-api-key | Lob | live_{h35}
lob-pub-api-key | Lob | test_pub_{h31}
looker-client-id | - an id: public by design |
looker-client-secret | service name | looker {l24}
mailchimp-api-key | Mailchimp | {h32}-us12
mailgun-private-api-token | Mailgun | key-{h32}
mailgun-pub-key | Mailgun | pubkey-{h32}
mailgun-signing-key | Mailgun | {h32}-{h8}-{h8}
mapbox-api-token | Mapbox | pk.{l60}.{l22}
mattermost-access-token | service name | mattermost {l26}
maxmind-license-key | MaxMind | {a6}_{a29}_mmk
messagebird-api-token | service name | messagebird {l25}
messagebird-client-id | - an id: public by design |
microsoft-teams-webhook | address | https://acme.webhook.office.com/webhookb2/{uuid}@{uuid}/IncomingWebhook/{h32}/{uuid}
netlify-access-token | service name | netlify {w43}
new-relic-browser-api-token | New Relic | NRJS-{h19}
new-relic-insert-key | New Relic | NRII-{a32}
new-relic-user-api-id | service name | newrelic {l64}
new-relic-user-api-key | New Relic | NRAK-{u27}
notion-api-token | Notion | ntn_{d11}{a35}
npm-access-token | npm | npm_{a36}
nuget-config-password | text | <add key="ClearTextPassword" value="{a12}" />
nytimes-access-token | service name | nytimes {w32}
octopus-deploy-api-key | Octopus Deploy | API-{u26}
okta-access-token | random | 00{a40}
openai-api-key | OpenAI, Anthropic and others | sk-proj-{w58}T3BlbkFJ{w58}
openshift-user-token | OpenShift | sha256~{w43}
perplexity-api-key | Perplexity | pplx-{a48}
pkcs12-file | - a kind of file: no file is read |
plaid-api-token | Plaid | access-sandbox-{uuid}
plaid-client-id | - an id: public by design |
plaid-secret-key | service name | plaid {l30}
planetscale-api-token | PlanetScale | pscale_tkn_{w43}
planetscale-oauth-token | PlanetScale | pscale_oauth_{w43}
planetscale-password | PlanetScale | pscale_pw_{w43}
postman-api-token | Postman | PMAK-{h24}-{h34}
prefect-api-token | Prefect | pnu_{a36}
private-key | text | -----BEGIN RSA PRIVATE KEY-----\n{b64}\n{b64}\n-----END RSA PRIVATE KEY-----
privateai-api-token | name | private_ai_key {l32}
pulumi-api-token | Pulumi | pul-{h40}
pypi-upload-token | PyPI | pypi-AgEIcHlwaS5vcmc{w60}
rapidapi-access-token | service name | rapidapi {w50}
readme-api-token | ReadMe | rdme_{l70}
rubygems-api-token | RubyGems | rubygems_{h48}
scalingo-api-token | Scalingo | tk-us-{w48}
sendbird-access-id | - an id: public by design |
sendbird-access-token | service name | sendbird {h40}
sendgrid-api-token | SendGrid | SG.{w22}.{w43}
sendinblue-api-token | Sendinblue | xkeysib-{h64}-{l16}
sentry-access-token | service name | sentry {h64}
sentry-org-token | Sentry | sntrys_eyJpYXQiO{a60}LCJyZWdpb25fdXJs{a40}_{b43}
sentry-user-token | Sentry | sntryu_{h64}
settlemint-application-access-token | SettleMint | sm_aat_{a16}
settlemint-personal-access-token | SettleMint | sm_pat_{a16}
settlemint-service-access-token | SettleMint | sm_sat_{a16}
shippo-api-token | Shippo | shippo_live_{h40}
shopify-access-token | Shopify | shpat_{h32}
shopify-custom-access-token | Shopify | shpca_{h32}
shopify-private-app-access-token | Shopify | shppa_{h32}
shopify-shared-secret | Shopify | shpss_{h32}
sidekiq-secret | service name | BUNDLE_GEMS__CONTRIBSYS__COM {h8}:{h8}
sidekiq-sensitive-url | text | https://{h8}:{h8}@gems.contribsys.com/
slack-app-token | Slack | xapp-1-{u11}-{d13}-{h64}
slack-bot-token | Slack | xoxb-{d12}-{d12}-{a24}
slack-config-access-token | Slack | xoxe.xoxp-1-{u164}
slack-config-refresh-token | Slack | xoxe-1-{u146}
slack-legacy-bot-token | Slack | xoxb-{d12}-{a24}
slack-legacy-token | Slack | xoxs-{d12}-{d12}-{d12}-{h32}
slack-legacy-workspace-token | Slack | xoxa-2-{a40}
slack-user-token | Slack | xoxp-{d12}-{d12}-{d12}-{h32}
slack-webhook-url | address | https://hooks.slack.com/services/T{u10}/B{u10}/{a24}
snyk-api-token | name | snyk_token {uuid}
sonar-api-token | Sonar | squ_{h40}
sourcegraph-access-token | Sourcegraph | sgp_{h40}
square-access-token | Facebook, Square | EAAA{w60}
squarespace-access-token | service name | squarespace {uuid}
stripe-access-token | Stripe | sk_live_{a24}
sumologic-access-id | - an id: public by design |
sumologic-access-token | service name | sumologic {l64}
telegram-bot-api-token | Telegram bot | {d10}:A{w34}
travisci-access-token | service name | travis {l22}
twilio-api-key | Twilio | SK{h32}
twitch-api-token | service name | twitch {l30}
twitter-access-secret | service name | twitter {l45}
twitter-access-token | Twitter | {d19}-{a40}
twitter-api-key | service name | twitter {l25}
twitter-api-secret | service name | twitter {l50}
twitter-bearer-token | Twitter | AAAAAAAAAAAAAAAAAAAAAA{a90}
typeform-api-token | Typeform | tfp_{w59}
vault-batch-token | HashiCorp Vault | hvb.{w140}
vault-service-token | HashiCorp Vault | hvs.{w95}
yandex-access-token | Yandex Cloud | t1.{a60}.{w86}
yandex-api-key | Yandex Cloud | AQVN{w36}
yandex-aws-access-token | Yandex Cloud | YC{a38}
zendesk-secret-key | service name | zendesk {l40}
""")

DETECT_SECRETS_VERSION = "1.5.0"
DETECT_SECRETS = _rules(r"""
ArtifactoryDetector | Artifactory | AKC{a40}
ArtifactoryDetector (password) | Artifactory | AP5{a40}
AWSKeyDetector | AWS access key | ASIA{u16}
AWSKeyDetector (secret) | AWS secret key | {b40}
AzureStorageKeyDetector | name | AccountKey {b86}==
Base64HighEntropyString | - any text of high entropy: checksums, ids and data would go |
BasicAuthDetector | text | https://bob:{a12}@example.com/x
CloudantDetector | text | https://acme:{h64}@acme.cloudant.com
DiscordBotTokenDetector | Discord bot | M{a23}.{a6}.{a27}
GitHubTokenDetector | GitHub | ghu_{a36}
GitLabTokenDetector | GitLab | glpat-{w40}
HexHighEntropyString | - any text of hex digits: commits, checksums and ids would go |
IbmCloudIamDetector | name | ibm_cloud_iam_api_key {w44}
IbmCosHmacDetector | name | cos_hmac_secret_access_key {h48}
IPPublicDetector | - no secret |
JwtTokenDetector | JSON in Base64, such as a JSON web token | eyJ{a30}.{a40}.{w43}
KeywordDetector | name | contraseña {a12}
MailchimpDetector | Mailchimp | {l32}-us9
NpmDetector | name | _authToken {uuid}
OpenAIDetector | OpenAI, Anthropic and others | sk-{a20}T3BlbkFJ{a20}
PrivateKeyDetector | text | -----BEGIN EC PRIVATE KEY-----\n{b64}\n-----END EC PRIVATE KEY-----
PrivateKeyDetector (PuTTY) | text | PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 1\n{b64}\nPrivate-MAC: {h40}
PypiTokenDetector | PyPI | pypi-AgENdGVzdC5weXBpLm9yZw{w70}
SendGridDetector | SendGrid | SG.{a22}.{a43}
SlackDetector | Slack | xoxr-{d12}-{a24}
SlackDetector (webhook) | address | https://hooks.slack.com/services/T{u8}/B{u8}/{a24}
SoftlayerDetector | name | softlayer_api_key {l64}
SoftlayerDetector (address) | address | https://api.softlayer.com/soap/v3/{l64}
SquareOAuthDetector | Square | sq0csp-{w43}
StripeDetector | Stripe | rk_live_{a24}
TelegramBotTokenDetector | Telegram bot | {d9}:{w35}
TwilioKeyDetector | Twilio | AC{h32}
TwilioKeyDetector (key) | Twilio | SK{h32}
""")

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
    """Return the text of `docs/figures/secret-shapes.md` with its tables as they have to be."""
    for heading, table in (
        ("The shapes", _table("token of", "pattern", [(one.service, _code(one.pattern)) for one in SHAPES])),
        (f"gitleaks {GITLEAKS_VERSION}", _table_of(GITLEAKS)),
        (f"detect-secrets {DETECT_SECRETS_VERSION}", _table_of(DETECT_SECRETS)),
    ):
        before, mark, behind = text.partition(f"## {heading}\n")
        assert mark, heading
        rows = re.search(r"(?:^\|.*\n)+", behind, re.MULTILINE)
        assert rows is not None, heading
        text = before + mark + behind[: rows.start()] + table + behind[rows.end() :]
    return text


def _table_of(rules: list[Rule]) -> str:
    rows = [
        (f"`{rule.name}`", rule.found_by if rule.applies else f"does not apply: {rule.found_by[2:]}")
        for rule in rules
    ]
    return _table("rule", "found by", rows)


def _table(left: str, right: str, rows: list[tuple[str, str]]) -> str:
    return "".join(f"| {one} | {other} |\n" for one, other in [(left, right), ("---", "---"), *rows])


def _code(pattern: str) -> str:
    return "`" + pattern.replace("|", "\\|") + "`"


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
