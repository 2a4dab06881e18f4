"""Made-up secrets and personal values to plant in a run, harmless ones that must survive, and how to look for them.

Whoever sends something somewhere plants each value of `PLANTED` in what is sent, with `ENVIRON` as the environment
(it holds the name of the user and of the machine, and some secrets), and asserts that `found_in` finds none of them;
and that each text of `HARMLESS` is still there. Each value is recognisable by itself: a password follows
its name, a path is whole. What must not be found is its telling part: the password, the private folder.
"""

from __future__ import annotations

import base64
import json
import random
import string
from functools import lru_cache
from urllib.parse import quote, quote_plus

from tests.privacy.anchors import sample

_chance = random.Random(20240607)
_TELLING: dict[str, tuple[str, ...]] = {}
"""The parts of a planted value that tell something; of all others it is the whole."""

PLANTED: list[tuple[str, str]] = []
"""Kind and value of everything private."""


def _letters(length, alphabet=string.ascii_letters + string.digits):
    text = "".join(_chance.choices(alphabet, k=length - 1))
    # A digit at the end: without any, some services' tokens are words.
    return text + _chance.choice(string.digits)


def _hex(length):
    return "".join(_chance.choices("0123456789abcdef", k=length))


def _drawn(recipe):
    text, parts = sample(recipe, 1)
    return text, *parts


def _codename():
    """Return the name of a client's project, which no list of words has."""
    first = _chance.choice(
        ["orchid", "zeppelin", "marlin", "quartz", "falcon", "saffron", "bramble", "tundra"]
    )
    second = _chance.choice(["merger", "patients", "payroll", "takeover", "lawsuit", "layoffs", "voters"])
    return f"{first}-{second}-{_chance.randrange(10**6):06d}"


def _plant(kind, value, *telling):
    assert all(value != planted for _, planted in PLANTED), value
    PLANTED.append((kind, value))
    if telling:
        _TELLING[value] = telling


USER = "jane.roe"
HOST = "janes-gpu-box"
ENVIRONMENT_SECRETS = {
    "HF_TOKEN": "plainword-for-hf-7741",
    "PGPASSWORD": "correct horse battery 93",
    "MY_SERVICE_API_KEY": "kf83jdk29dkcm4",
    "SMTP_PASS": "zug-berlin-1899",
    "VAULT_SECRET": "Öl-und-Wasser-77",
    "DEPLOY_TOKEN": "tea.pot/short+stout=1",
}
"""Secrets that only the name of their variable gives away."""

SECRETS = ("environment", "jwt", "keyed", "pem", "token", "wandb", "webhook")
"""Kinds that are masked in the run's own files too. Those of `random` are in free text: a setting may be a name."""

ENVIRON = {
    "USER": USER,
    "LOGNAME": USER,
    "HOME": f"/home/{USER}",
    "HOSTNAME": HOST,
    "LANG": "C.UTF-8",
    **ENVIRONMENT_SECRETS,
}


# ------------------------------------------------------------ who and where

_plant("user", USER)
_plant("user", f"{USER} started it")
_plant("host", HOST)
_plant("host", f"{HOST}.corp.internal", HOST)
_plant("host", "ip-10-31-7-212.eu-west-1.compute.internal")
_plant("host", "node-0042.cluster.lan")
for _form in (
    *("/home/{user}/{name}/train.csv", "/home/ubuntu/{name}/model.safetensors", "/mnt/nas/{name}/images"),
    *("/scratch/{user}/{name}/checkpoints/step_500.pt", "/opt/{name}", "/tmp/{name}.log"),
    *("/home/{user}/données/{name}/ünïcode.csv", "/home/{user}/a b/{name}/with spaces.txt"),
    *("/export/home/{user}/{name}:12", "//home/{user}/{name}/x", "/{name}", "~/{name}/train.csv"),
    *("~{user}/{name}/train.csv", "$HOME/{name}/data.json", "${{HOME}}/{name}/data.json"),
    *("../../home/{user}/{name}/x.txt", "/home/{user}/venv/../{name}/site-packages/x.py"),
):
    _name = _codename()
    _path = _form.format(user=USER, name=_name)
    _plant("path", repr(_path) if " " in _path else _path, _name)

for _form in (
    *("C:\\Users\\{user}\\{name}\\train.csv", "D:\\{name}\\model.safetensors", "E:/{name}/images/1.png"),
    *("C:\\\\Users\\\\{user}\\\\{name}\\\\escaped.txt", "%USERPROFILE%\\{name}\\x.txt"),
    "\\\\?\\C:\\Users\\{user}\\{name}\\long.txt",
):
    _name = _codename()
    _plant("path", _form.format(user=USER, name=_name), _name)

for _form in (
    *("\\\\fileserver\\{name}\\x.txt", "\\\\10.4.0.9\\share\\{name}\\x.txt"),
    *("\\\\nas01.corp.internal\\{name}", "\\\\\\\\fileserver\\\\{name}\\\\escaped.txt"),
    "//fileserver/{name}/x.txt",
):
    _name = _codename()
    _plant("path", _form.format(name=_name), _name)

for _form in (
    *("file:///home/{user}/{name}/x.txt", "file:/home/{user}/{name}/x.txt", "s3://{name}/data/train"),
    *("sqlite:////home/{user}/{name}.db", "https://example.com/open?path=%2Fhome%2F{user}%2F{name}"),
):
    _name = _codename()
    _plant("path", _form.format(user=USER, name=_name), _name)

for _name in (
    *("jane.roe@orchid-clinic.example", "j.roe+train@mail.orchid.example.org", "JANE@ORCHID.EXAMPLE.COM"),
    *("1234567@students.example.ac.at", "müller@beispiel.example.de", "bob%40example.com"),
):
    _plant("email", _name)

for _ in range(4):
    _octets = [_chance.choice([10, 52, 83, 172, 192]), *(_chance.randrange(11, 250) for _ in range(3))]
    _plant("ip", ".".join(map(str, _octets)))
_plant("ip", "tcp://10.77.12.9:29500", "10.77.12.9")
_plant("ip", "MASTER_ADDR=10.78.12.9", "10.78.12.9")
_plant("ip", "::ffff:10.79.12.9", "10.79.12.9", ".79.12.9")
for _name in (
    *("2001:db8:85a3::8a2e:370:7334", "fe80::1ff:fe23:4567:890a", "fd12:3456:789a:1::1"),
    *("2001:0db8:0000:0000:0000:ff00:0042:8329", "2a02:8109:9c40:1b2c:45d:1a9f:be33:7c01"),
):
    _plant("ip", _name)
_plant("ip", "http://[2001:db8:1:2::99]:8080/x", "2001:db8:1:2::99")
_plant("mac", "3c:22:fb:9a:10:e7")
_plant("mac", "3C-22-FB-9A-10-E8")
_plant("mac", "00:16:3e:5e:6c:09")
_plant("device", "GPU-5ce4c1c4-2b8e-7d52-9a01-3f3f7d1f0c11")

# ------------------------------------------------------------ tokens that are known by their look

for _form in (
    *("hf_{0}", "hf_{0}", "api_org_{0}", "sk-{0}", "sk-proj-{0}", "sk-ant-api03-{0}", "sk-or-v1-{0}"),
    *("sk-svcacct-{0}", "ghp_{0}", "gho_{0}", "ghu_{0}", "ghs_{0}", "ghr_{0}", "github_pat_{0}"),
    *("glpat-{0}", "AIza{0}", "xoxb-1234567890-{0}", "xoxp-1234567890-{0}", "xapp-1-{0}", "wandb_v1_{0}"),
    *("npm_{0}", "pypi-AgEIcHlwaS5vcmc{0}", "gsk_{0}", "r8_{0}", "nvapi-{0}", "xai-{0}", "pplx-{0}"),
    *("phc_{0}", "phx_{0}", "rpa_{0}", "lsv2_pt_{0}", "ya29.{0}", "GOCSPX-{0}", "dop_v1_{0}"),
    *("sk_live_{0}", "rk_live_{0}", "SG.{0}.{0}", "lin_api_{0}", "ATATT3{0}", "sntrys_{0}", "tvly-{0}"),
):
    _name = _letters(36)
    _plant("token", _form.format(_name), _name)
for _form in (
    *("hvs.{a90}", "dckr_pat_{w27}", "shpat_{h32}", "FwoGZXIvYXdzE{b200}", "{a3}8Q~{a34}", "SK{h32}"),
    *("AC{h32}", "key-{h32}", "{h32}-{h8}-{h8}", "{a14}.atlasv1.{a67}"),
):
    _plant("token", *_drawn(_form))
for _form in ("M{a23}.{a6}.{a38}", "{b40}", "{a25}"):
    _plant("random", *_drawn(_form))
for _ in range(3):
    _plant("token", "AKIA" + _letters(16, string.ascii_uppercase + string.digits))
_plant("token", "ASIA" + _letters(16, string.ascii_uppercase + string.digits))
_plant("token", f"dapi{_hex(32)}")
_plant("token", f"{_letters(10, string.digits)}:AA{_letters(33)}")
for _ in range(4):
    _parts = [
        base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        for text in ('{"alg":"HS256","typ":"JWT"}', f'{{"sub":"{_letters(12)}","name":"x"}}')
    ]
    _name = _letters(43)
    _plant("jwt", ".".join([*_parts, _name]), _name, _parts[1])
for _label in ("RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PRIVATE KEY", "PGP PRIVATE KEY BLOCK"):
    _body = "\n".join(_letters(64, string.ascii_letters + string.digits + "+/") for _ in range(3))
    _plant("pem", f"-----BEGIN {_label}-----\n{_body}\n-----END {_label}-----", *_body.split("\n"))

# ------------------------------------------------------------ secrets that are recognised by their context

for _form in (
    *("password={0}", "password: {0}", "DB_PASSWORD={0}", "--password {0}", "--db-password={0}"),
    *("passwd = '{0}'", '"passphrase": "{0}"', "api_key={0}", "apiKey: '{0}'", "OPENAI_API_KEY={0}"),
    *("--api-key {0}", "--hf-token {0}", "hub_token={0}", 'token="{0}"', '{{"access_token": "{0}"}}'),
    *("client_secret={0}", "secret: {0}", "AWS_SECRET_ACCESS_KEY={0}", "private_key={0}"),
    *("encryption_key={0}", "deploy_key={0}", "credentials={0}"),
    *("https://api.example.com/v1?api_key={0}&x=1", "https://example.com/cb?access_token={0}"),
    "https://b.s3.amazonaws.com/f?X-Amz-Signature={0}",
    "https://acct.blob.core.windows.net/c?sv=2022&sig={0}",
    "DefaultEndpointsProtocol=https;AccountName=x;AccountKey={0}",
    *("Server=db;User Id=sa;Password={0};", "Authorization: Bearer {0}", "authorization: Basic {0}"),
    *("'Authorization': 'Token {0}'", "X-Api-Key: {0}", "Cookie: session={0}"),
    *("Set-Cookie: sid={0}; Path=/", "curl -u admin:{0} https://example.com"),
    *("https://bob:{0}@example.com/x.git", "postgresql://bob:{0}@db.example.com:5432/x"),
    *("redis://:{0}@cache.example.com:6379/0", "https://{0}@github.com/a/b.git"),
    *("mongodb+srv://bob:{0}@cluster0.example.net", "sshpass -p {0} ssh x", "export SECRET_TOKEN={0}"),
    *("$env:API_KEY = '{0}'", "set AWS_SESSION_TOKEN={0}", "password = getpass() or '{0}'"),
    *("the password is {0}, she said", 'token = os.environ.get("X", "{0}")', 'password: str = "{0}"'),
    'curl -H "X-Auth-Token: {0}" https://example.com',
):
    _name = _letters(24)
    _plant("keyed", _form.format(_name), _name)

for _form in (
    *("wandb login {0}", "WANDB_API_KEY={0}", "wandb.login(key='{0}')", "wandb: {0}"),
    "wandb.api_key = {0}",
):
    _name = _hex(40)
    _plant("wandb", _form.format(_name), _name)

for _form in (
    "https://hooks.slack.com/services/T0{1}/B0{1}/{0}",
    *("https://hooks.slack.com/workflows/T0{1}/A0{1}/{0}", "https://discord.com/api/webhooks/{2}/{0}"),
    *("https://discordapp.com/api/webhooks/{2}/{0}", "https://ptb.discord.com/api/v10/webhooks/{2}/{0}"),
    "https://open.feishu.cn/open-apis/bot/v2/hook/{0}",
    "https://open.larksuite.com/open-apis/bot/v2/hook/{0}",
    "https://oapi.dingtalk.com/robot/send?access_token={0}",
    "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key={0}",
    "https://example.webhook.office.com/webhookb2/{0}/IncomingWebhook/{2}/x",
    "https://api.telegram.org/bot{2}:AA{0}/sendMessage",
    "https://chat.googleapis.com/v1/spaces/AAAA/messages?key=x&token={0}",
    "https://hooks.zapier.com/hooks/catch/{2}/{0}",
    *("https://maker.ifttt.com/trigger/done/with/key/{0}", "https://ntfy.sh/{0}", "ntfy_topic={0}"),
    "--ntfy-topic {0}",
):
    _name = _letters(33)
    _plant(
        "webhook",
        _form.format(_name, _letters(9, string.ascii_uppercase + string.digits), _letters(18, string.digits)),
        _name,
    )

for _secret in ENVIRONMENT_SECRETS.values():
    _plant("environment", f"refused {_secret} at the gate", _secret)

# ------------------------------------------------------------ private models

for _form in (
    "base_model=acme-corp/{0}",
    "https://huggingface.co/acme-corp/{0}/resolve/main/x.bin",
    "we fine-tuned acme-corp/{0} last night",
    "acme-corp/{0}",
):
    _name = _codename()
    _plant("model", _form.format(_name), _name)


# ------------------------------------------------------------ what must survive

HARMLESS: list[str] = [
    *("1e+12", "+0.123456789", "1,234,567,890", "12:34:56:78", "seed 1234567890", "tokens 1234567"),
    *("/usr/share/dict/words", "CUDA 12.4.99.1", "GET /index.html HTTP/1.1", "mAP@0.5:0.95=0.34"),
    *("q@k:v", 'token = os.environ.get("HF_TOKEN")', "password: str = None", "[train.py:123] loading"),
    *("direction", "redirect_uri", "1e-4", "train/loss", "eval/accuracy", "a/b", "3/4", "and/or"),
    *("lr=1e-4", "lr: 0.0001", "loss=0.1234", "[4, 16]", "(4, 16, 64, 64)", "torch.Size([4, 16])"),
    *("0.5 it/s", "12.3 tokens/s", "1,234 img/s", "s/it", "torch.nn.functional", "transformers.trainer"),
    *("torch.float16", "bf16", "numpy.float32", "2024-05-17", "2024-05-17T12:34:56Z", "17/05/2024"),
    *("12:34:56", "2024-05-17 12:34:56.789", "5/17", "https://docs.python.org/3/library/zipfile.html"),
    "https://pytorch.org/docs/stable/notes/cuda.html",
    "https://huggingface.co/docs/transformers/main_classes/trainer",
    "https://huggingface.co/google/gemma-2b",
    *("https://github.com/huggingface/transformers/issues/12345", "https://arxiv.org/abs/2106.09685"),
    *("https://ui.perfetto.dev", "http://localhost:8501", "http://127.0.0.1:6006", "127.0.0.1", "::1"),
    *("0.0.0.0", "commit 0123456789abcdef0123456789abcdef01234567"),
    *("3f2504e0-4f89-41d3-9a0c-0305e82c3301", "c0ffee1234", "0123456789abcdef"),
    *("sha256:9f86d081884c7d65", "torch==2.5.1", "12.4.5.8-py3-none-any.whl", "version 2.13.0.1"),
    *("nvidia-cublas-cu12==12.4.5.8", "v1.2.3.4", "CUDA 12.4", "Python 3.11.9", "sm_90", "cuda:0"),
    *("cuda:7", "google/gemma-2b", "meta-llama/Llama-3.1-8B-Instruct", "black-forest-labs/FLUX.1-dev"),
    *("stabilityai/stable-diffusion-xl-base-1.0", "Qwen/Qwen2.5-7B", "mistralai/Mistral-7B-v0.1"),
    *("bert-base-uncased", "openai/clip-vit-large-patch14", "runwayml/stable-diffusion-v1-5"),
    *("google-t5/t5-small", "gpt2", "<pad>", "</s>", "<|endoftext|>", "[MASK]", "[CLS]", "<s>"),
    *("<image>", "a photo of a cat, highly detailed, 8k", "token: the smallest piece of text"),
    *("key insight: attention", "the secret of good training", "password-free login", "author", "monkey"),
    *("donkey_kong", "tokenizer", "max_tokens=512", "num_tokens: 3", "pad_token", "hidden_key_dim"),
    *("key_proj", "sort_key=length", "KeyError: 'lora_rank'"),
    *("ValueError: shapes (3,4) and (5,6) not aligned", "CUDA out of memory"),
    *("RuntimeError: CUDA error: device-side assert triggered", "loss is NaN at step 120", "x[::2]"),
    *("a[1::2]", "std::vector<int>", "c10::Error", "at::Tensor", "q @ k.T", "x // 2", "y = a / b", "50%"),
    *("100% 1024/1024", "@torch.no_grad()", "git@github.com:huggingface/peft.git"),
    *("ssh://git@github.com/pytorch/pytorch", "n/a", "N/A", "I/O error", "TCP/IP", "client/server"),
    *("input/output", "read/write", "w/o", "24/7", "Flux/SDXL", "he/she"),
    *("up_blocks.0.attentions.1.to_q", "lora_A.weight", "model.layers.31.self_attn.q_proj"),
    *("decoder.block.0", "epoch 3/10", "step 500/2000", "[500/2000 12:34<56:78, 1.23it/s]", "rank 0/8"),
    *("1.5e+10", "-0.0", "nan", "inf", "AdamW(lr=0.0001, betas=(0.9, 0.999), eps=1e-08)"),
    *("cosine_with_restarts", "linear warm-up", "gradient clipping", "batch_size=4, accumulation=8"),
    *("16 GB of 24 GB", "GPU 0: 97 %", "NVIDIA H100 80GB HBM3", "Linux-6.1-x86_64", "checkpoint-500"),
    *("step_1000.safetensors", "model-00001-of-00003.safetensors", "samples/step_10.png"),
    *("sk-learn-pipeline-experiment-name", "task-force", "hf_transfer", "eyes wide open", "glossary"),
    *("ghost_norm", "basic transformer training", "bearer of good news", "authored by", "compass"),
    *("passage", "secretary", "Ratio 16:9", "10:1", "1.2.3", "3.14159", "0x7f3a", "#123", "100k"),
    *("\u03b1=0.5", "日本語のテキスト", "naïve café", "/dev/null", "tests/second", "loss/step", "./train.py"),
    *("config.yaml", "train.py:42", 'File "train.py", line 3'),
]
"""Texts that look a little like something private and are not."""


# ------------------------------------------------------------ looking for them


def found_in(data: bytes, value: str) -> bool:
    """Return whether `data` contains `value` or a distinctive part of it, plain or in base64, URL- or JSON-encoded."""
    return any(form in data for part in telling_parts(value) for form in forms_of(part))


def telling_parts(value: str) -> tuple[str, ...]:
    """Return what of a planted value must not be found; the whole of one that is not planted."""
    return _TELLING.get(value, (value,))


@lru_cache(maxsize=8192)
def forms_of(text: str) -> frozenset[bytes]:
    """Return the byte strings of which one is in anything that holds `text` in one of the encodings looked at."""
    plain = text.encode()
    forms = {plain, json.dumps(text)[1:-1].encode(), json.dumps(text, ensure_ascii=False)[1:-1].encode()}
    for encoded in (quote(text, safe=""), quote(text), quote_plus(text)):
        forms |= {encoded.encode(), encoded.encode().replace(b"%2F", b"%2f").replace(b"%3A", b"%3a")}
    for before in range(3):
        # Three bytes are four characters: what precedes the text shifts it by up to two bytes, and the
        # letters at both ends belong in part to the neighbours.
        for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
            encoded = alphabet(b"\0" * before + plain).rstrip(b"=")
            first = (before * 8 + 5) // 6
            last = (before + len(plain)) * 8 // 6
            if last - first >= 6:
                forms.add(encoded[first:last])
    return frozenset(forms)


def leaks_in(data: bytes) -> list[tuple[str, str]]:
    """Return the planted values that are found in `data`."""
    return [(kind, value) for kind, value in PLANTED if found_in(data, value)]
