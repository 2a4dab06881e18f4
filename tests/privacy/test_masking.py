from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from toolkit.telemetry.privacy.masking import Masker, mask_secrets, mask_table
from toolkit.telemetry.runfolder.layout import safe_run_name

HF = "hf_" + "aBcDeFgHiJ" * 3 + "kLmN"
WANDB = "0123456789abcdef0123456789abcdef01234567"
PEM = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjE\nAAAA\n-----END OPENSSH PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.SflKxwRJSMeKKF2QT4fw"


@pytest.fixture(autouse=True)
def _no_secrets_around(monkeypatch):
    """The machine that runs the tests may have secrets of its own."""
    monkeypatch.setattr("os.environ", {"PATH": "/usr/bin"})


@pytest.mark.parametrize(
    "name",
    [
        *("token", "hf_token", "HF_TOKEN", "hfToken", "hub-token", "HFToken", "access_token"),
        *("user.token", "token2", "password", "passwd", "db_password", "Password", "passphrase", "pwd"),
        *("secret", "client_secret", "secrets", "AWS_SECRET_ACCESS_KEY", "aws_access_key_id", "api_key"),
        *("apikey", "apiKey", "API-KEY", "openai_api_key", "api_keys", "accessKey", "private_key"),
        *("auth", "basic_auth", "authorization", "Authorization", "auth_header", "bearer", "credential"),
        *("credentials", "cookie", "cookies", "sentry_dsn", "webhook", "webhook_url", "slackWebhookUrl"),
        *("connection_string", "api_tokens", "ssh_key", "wandb_key"),
    ],
)
def test_a_name_that_says_secret_hides_its_text(name):
    assert mask_secrets({name: "plain text"}) == {name: "***"}


@pytest.mark.parametrize(
    "name",
    [
        *("max_token_length", "tokenizer", "num_tokens", "tokens", "max_tokens", "token_dropout"),
        *("tokenizer_path", "keyboard", "author", "authors", "monkey", "direction", "hidden_key_dim"),
        *("key_proj", "key", "keys", "pad_token", "eos_token", "trigger_token", "special_tokens"),
        *("image_token", "loss_per_token", "secretary", "passage", "compass", "cookiecutter", "oauthlib"),
        *("authentic", "donkey_kong", "token_file", "password_env", "webhook_url_env"),
        *("credentials_file", "auth_type", "secret_name", "monitor", "primary_key", "sort_key"),
        *("key_frame", "keyword", "trigger_word", "accessory"),
    ],
)
def test_a_name_that_only_sounds_like_it_hides_nothing(name):
    assert mask_secrets({name: "plain text"}) == {name: "plain text"}


def test_numbers_and_switches_are_settings_unless_the_name_is_a_passwords():
    config = {"token": 5, "use_auth_token": True, "auth": 1.5, "use_secret": False}

    assert mask_secrets({**config, "password": 1234, "api_key": 12}) == {
        **config,
        "password": "***",
        "api_key": "***",
    }


def test_an_absent_secret_stays_visibly_absent():
    assert mask_secrets({"hf_token": None, "password": ""}) == {"hf_token": None, "password": ""}


def test_a_tokenizers_marks_are_no_secrets():
    assert mask_secrets({"token": "<|endoftext|>", "some_token": "[MASK]"}) == {
        "token": "<|endoftext|>",
        "some_token": "[MASK]",
    }


@pytest.mark.parametrize("secret", [HF, JWT, PEM, PEM.partition("-----END")[0]])
def test_a_secret_is_known_by_its_look_anywhere(secret):
    masked = mask_secrets({"note": f"use {secret}", "deep": [{"x": (secret,)}], secret: 1})

    assert secret not in repr(masked)
    assert masked["deep"] == [{"x": ("***",)}]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Bearer x", "Authorization: Bearer ***"),
        ("curl -H 'authorization: Basic dXNlcjpwYXNz'", "curl -H 'authorization: Basic ***'"),
        ("sent Bearer abc123def456", "sent Bearer ***"),
        ("https://user:pass@host/x", "https://***@host/x"),
        ("postgresql+psycopg://u:p@db:5432/x", "postgresql+psycopg://***@db:5432/x"),
        ("https://0123456789abcdef0123@sentry.io/1", "https://***@sentry.io/1"),
        ("https://h/f?api_key=abc&x=1", "https://h/f?api_key=***&x=1"),
        (
            "https://b.s3.amazonaws.com/f?X-Amz-Signature=abc&n=1",
            "https://b.s3.amazonaws.com/f?X-Amz-Signature=***&n=1",
        ),
        ("python t.py --hf-token abc --lr 1e-4", "python t.py --hf-token *** --lr 1e-4"),
        ("t.py --password=abc hub.token=abc", "t.py --password=*** hub.token=***"),
        ('{"token": "abc", "lr": 1}', '{"token": "***", "lr": 1}'),
        ("password: hunter2", "password: ***"),
        ("x=y&token=abc", "x=y&token=***"),
        ("wandb login " + WANDB, "wandb login ***"),
        ("WANDB_API_KEY=" + WANDB + " python t.py", "WANDB_API_KEY=*** python t.py"),
        ('token = os.environ.get("HF_TOKEN")', 'token = os.environ.get("HF_TOKEN")'),
        ('password: str = "abc"', 'password: str = "***"'),
        ("password: str | None = None", "password: str | None = None"),
        ("deploy_key=a1b2c3d4e5f6", "deploy_key=***"),
        ('-password = "abc"', '-password = "***"'),
        ('login(token=ask(), password="abc")', 'login(token=ask(), password="***")'),
        ('config["api_key"] = "abc"', 'config["api_key"] = "***"'),
        ("sort_key=length", "sort_key=length"),
        ("X-Auth-Token: abc", "X-Auth-Token: ***"),
        ("the API key is abc123", "the API key is ***"),
        ("the password is required", "the password is required"),
        ('{\\"password\\": \\"abc\\"}', '{\\"password\\": \\"***\\"}'),
        ("[--password abc]", "[--password ***"),
        ("curl -u me:abc https://x.example", "curl -u me:*** https://x.example"),
        ("Cookie: sid=abc; theme=dark", "Cookie: ***"),
        ("ntfy.sh/mine", "***"),
        ('password := "abc"', 'password := "***"'),
        ("TOKEN ?= abc", "TOKEN ?= ***"),
        ("'password' => 'abc',", "'password' => '***',"),
        ('if password == "abc":', 'if password == "***":'),
        ('if (token !== "abc") {', 'if (token !== "***") {'),
        ('token: string = "abc";', 'token: string = "***";'),
        ('let token: &\'static str = "abc";', 'let token: &\'static str = "***";'),
        ('api: SecretStr = "abc"', 'api: SecretStr = "***"'),
        ('password="it\'s abc"', 'password="***"'),
        ("password='a \"b\" c'", "password='***'"),
        ('password = b"abc"', 'password = "***"'),
        ('password = """abc"""', 'password = """***"""'),
        (r'{"password": "ab\"c"}', '{"password": "***"}'),
        ('auth=("jane", "abc"), timeout=5', 'auth=("***", "***"), timeout=5'),
        ('"password": ["abc", "def"]', '"password": ["***", "***"]'),
        ('"password": "abc and what was cut off', '"password": "***"'),
        ("the API key is\nabc123", "the API key is\n***"),
    ],
)
def test_a_secret_inside_a_sentence_a_program_or_a_command_is_cut_out(text, masked):
    assert mask_secrets(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        *("a photo of a cat, token: the smallest piece of text", "black-forest-labs/FLUX.1-dev"),
        *("sk-learn-pipeline-experiment-name", "task-1234567890-abcdefghij"),
        *("https://github.com/ostris/ai-toolkit", "ssh://git@github.com/a/b", "git@github.com:a/b.git"),
        *("commit 0123456789abcdef0123456789abcdef01234567", "basic transformer training"),
        *("bearer of good news", "C:/models/x.safetensors", "max_tokens=512 num_tokens: 3"),
        *("KeyError: 'HF_TOKEN'", "token=None password=None", "if token == eos: break"),
        *("assert password == confirmation", 'token = "<s>" if token != "</s>" else "[PAD]"'),
        "def login(user: str, password: str) -> bool:",
        *("interface Login { password: string; secret: string }", 'password = input("Enter password: ")'),
        "password: bytes | None",
        *("['--token', '--lr', '1']", '["token", "label"]', "use --token, or log in", "('x', 'token')"),
        "google-auth=2.29.0",
        *(
            "| token | count |\n| the | 5 |",
            "password      Required",
            "tokens_per_sec .... 12345.6",
            "auth | 3/4",
        ),
        *(
            "token: step_1000",
            "auth: oauth2",
            "key   runs/2024/a1b2c3d4",
            "cache key: 5f2a1b3c4d5e",
            "bos_token: <s>",
        ),
        *("{'name': 'loss', 'value': 'a1b2c3d4'}", "tokenizer_type ..... GPT2BPETokenizer"),
    ],
)
def test_plain_text_code_lists_and_tables_are_left_alone(text):
    assert mask_secrets(text) == text


def test_what_looks_made_by_chance_under_a_name_that_says_key_is_hidden():
    config = {
        "deploy": {"ssh_host_key": "x"},
        "row_key": "a1b2c3d4e5f6",
        "cache_key": "v1-linux",
        "key": "a1b2c3d4e5f6",
    }

    assert mask_secrets(config) == {
        "deploy": {"ssh_host_key": "***"},
        "row_key": "***",
        "cache_key": "v1-linux",
        "key": "***",
    }


@pytest.mark.parametrize(
    "form",
    [
        *(
            "['x', '--api-key', '{}']",
            '["x", "--api-key", "{}"]',
            "('x', '--api-key', '{}')",
            "['--api-key' '{}']",
        ),
        *(
            "[\n 'x',\n '--api-key',\n '{}',\n]",
            '{{\\"a\\": [\\"--api-key\\", \\"{}\\"]}}',
            "[b'--api-key', b'{}']",
        ),
        *(
            "args:\n  - --api-key\n  - {}",
            'args:\n  - "--api-key"\n  - "{}"',
            "x, --api-key, {}",
            "--api-key\n{}",
        ),
        *(
            "'--api-key={} and more'",
            '["--api-key=a {}"]',
            "'--api-key' '{}'",
            '--api-key "{}"',
            "api_key={}",
        ),
        *("dict_items([('lr', 1), ('api_key', '{}')])", '[["lr", 1], ["api_key", "{}"]]', "-api_key {}"),
        *(
            "['curl', '-u', 'me:{}', 'x']",
            "['sshpass', '-p', '{}', 'ssh']",
            "['docker', 'login', '-p', '{}']",
        ),
        "Command '['x', '--api-key', '{}']' returned non-zero exit status 1.",
    ],
)
def test_an_argument_after_a_secret_option_is_hidden_in_every_form_of_a_list(form):
    assert "hunter2" not in mask_secrets(form.format("hunter2"))


@pytest.mark.parametrize(
    "form",
    [
        *("| api_key | {} |", "│ lr │ 1 │\n│ hf_token │ {} │", "  api_key ........ {}", "api_key\t{}\nlr\t1"),
        *("lr: 1\nhf_token: {}\n", "api_key: |\n  {}\n", "API key: {}", "x.py --api-key \\\n  {}"),
        *(
            "{{'name': 'api_key', 'value': '{}'}}",
            "Env(name='API_KEY', value='{}')",
            "key=password, value={}",
        ),
    ],
)
def test_a_printed_table_or_configuration_shows_no_secret(form):
    masked = mask_secrets(form.format("Zq8xkp2Lw9"))

    assert "Zq8xkp2Lw9" not in masked
    assert "***" in masked


@pytest.mark.parametrize(
    "given",
    [
        *(["--password=correct hunter2"], [("lr", "1"), ("api_key", "hunter2")], [["api_key", "hunter2"]]),
        *(("--api-key", "hunter2"), {"a": [["x"], ["--api-key", "hunter2"]]}, ["db.password=a hunter2"]),
    ],
)
def test_an_argument_after_a_secret_option_is_hidden_in_every_list(given):
    assert "hunter2" not in repr(mask_secrets(given))


def test_names_and_plain_settings_are_never_guessed_to_be_secrets():
    """Not even those that are as random as a token; in free text that would be taken for one."""
    for name in ("SDXLv10Rank64Alpha32Steps3000", "2cYcAtGhTb3xVqLmZ9KpWsXrN7d", "qX3vTzPn9LwK7sRbYcM2Hd"):
        plain = {
            "run_name": f"my {name}",
            "output_dir": f"/data/{name}",
            "x": name,
            f"acc/{name}": 1.0,
            "packages": {"google-auth": "2.29.0", "django-secrets": "1.0rc1", name: "1.0"},
            "log": f"wrote /data/{name}/x.pt and {name}.safetensors, run_name={name}",
        }

        assert mask_secrets(plain) == plain
        assert mask_table([name], [[name]]) == ([name], [[name]])
        assert mask_secrets(f"we use {name} here") == "we use *** here"


def test_no_masking_makes_two_names_equal():
    masker = Masker({"DB_PASSWORD": "correct-horse"})
    names = [
        f"run-{HF}",
        f"run-{HF[:-1]}Z",
        "run-correct-horse",
        "run-correct-horse-2",
        "x token=a",
        "x token=b",
    ]
    masked = [masker.mask_name(name) for name in names]

    assert len({*masked}) == len({*map(safe_run_name, masked)}) == len(names)
    assert all("***" in name for name in masked)
    assert [masker.mask_name(name) for name in masked] == masked
    assert len({masker.mask({"path": f"out/{name}"})["path"] for name in names}) == len(names)
    assert mask_secrets(f"{HF} ***-0123abcd").startswith("*** ")


def test_an_old_wandb_key_is_known_only_where_wandb_is_meant():
    config = {"wandb": {"login": WANDB}, "git": {"commit": WANDB}}

    assert mask_secrets(config) == {"wandb": {"login": "***"}, "git": {"commit": WANDB}}


def test_everything_under_a_secret_name_is_hidden_and_its_shape_kept():
    config = {"credentials": {"user": "me", "keys": ["a", "b"], "port": 1, "tls": True}, "lr": 1}

    assert mask_secrets(config) == {
        "credentials": {"user": "***", "keys": ["***", "***"], "port": "***", "tls": True},
        "lr": 1,
    }


def test_a_name_next_to_its_value_counts_as_its_name():
    config = [{"name": "HF_TOKEN", "value": "abc"}, {"name": "LR", "value": "abc"}]

    assert mask_secrets(config) == [{"name": "HF_TOKEN", "value": "***"}, {"name": "LR", "value": "abc"}]


def test_what_a_secret_variable_holds_is_hidden_wherever_it_appears():
    masker = Masker(
        {
            "HF_TOKEN": "correct-horse",
            "PGPASSWORD": "battery-staple",
            "PWD": "/home/someone",
            "X_KEY": "short",
        }
    )

    masked = masker.mask(
        {"note": "it is correct-horse or battery-staple", "where": "/home/someone", "x": "short"}
    )

    assert masked == {"note": "it is *** or ***", "where": "/home/someone", "x": "short"}


def test_a_configuration_that_contains_itself_ends():
    config: dict = {"lr": 1}
    config["self"] = config
    deep: list = []
    for _ in range(10_000):
        deep = [deep]

    assert mask_secrets(config) == {"lr": 1, "self": "***"}
    assert "***" in repr(mask_secrets(deep))


def test_a_container_that_raises_is_hidden_alone():
    class Evil(dict):
        def items(self):
            raise RuntimeError("no")

    assert mask_secrets({"evil": Evil(a=1), "lr": 1}) == {"evil": "***", "lr": 1}


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
anything = st.recursive(
    plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@settings(max_examples=longer(40, 60), deadline=None)
@given(anything)
def test_masking_never_raises_and_masking_twice_changes_nothing_more(value):
    once = mask_secrets(value)

    assert mask_secrets(once) == once
