"""Secrets in Python code are found by what the code does with them, before and after a change."""

from __future__ import annotations

import warnings

import pytest

from toolkit.telemetry.privacy.diff_masking import mask_diff
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.privacy.source_masking import mask_code, mask_source


def masked_source(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return "\n".join(mask_source(text.split("\n")))


@pytest.mark.parametrize(
    "code",
    [
        *(
            'os.environ["WANDB_API_KEY"] = "{}"',
            'config["db"]["password"] = "{}"',
            "config['api_key'] = r'{}'",
        ),
        *(
            'user, password = "jane", "{}"',
            'os.environ.setdefault("HF_TOKEN", "{}")',
            "login(password=f'{}')",
        ),
        'parser.add_argument("--api-key", default="{}")',
        'def connect(host, password="{}", *, port=1): pass',
        'password = (\n    "{}"\n    "more"\n)',
        *(
            'if "{}" == password: pass',
            'if password in ("a", "{}"): pass',
            'x = {{"lr": 1, "password": "{}"}}',
        ),
        *('run(["x", "--token", "{}"])', 'secret = SecretStr("{}")', 'token = "{}".encode()'),
        *('password = getpass() or "{}"', 'self.api_key: str = field(default="{}")'),
        *(
            'password = """\n{}\n"""',
            'headers = [("api_key", "{}")]',
            'é = 1; login(user="é", password=b"{}")',
        ),
        'token = os.environ.get("X", "a1b2c3d4e5hunter2")',
        *('def get_password():\n    return "{}"', 'password = lambda: "{}"'),
    ],
)
@pytest.mark.parametrize("around", ["{}", "class A:\n    def f(self):\n        {}", "x = '\\d'\n{}\ny = 2"])
def test_a_text_is_masked_that_is_assigned_passed_or_compared_under_a_telling_name(code, around):
    text = around.format(code.format("hunter2").replace("\n", "\n" + " " * 8 * ("class" in around)))
    masked = masked_source(text)

    assert "hunter2" not in masked
    assert '"***"' in masked
    assert masked.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "code",
    [
        *('tok = os.environ["HF_TOKEN"]', 'password = input("Enter password: ")', 'tokenizer = "gpt2"'),
        *('token = "<pad>"', 'if name == "password": pass', 'columns = ["password", "email"]', "x = '\\d'"),
    ],
)
def test_other_code_stays_as_it_is(code):
    assert masked_source(code) == code


@pytest.mark.parametrize("broken", ["def (:", "%matplotlib inline", '"""'])
def test_code_that_cannot_be_parsed_is_looked_at_line_by_line(broken):
    code = (
        f'{broken}\n    if f(password="hunter2"):\n  config["api_key"] = "hunter2"\n   "password": "hunter2",'
    )

    assert "hunter2" not in "".join(mask_code("a.py", code.split("\n"), Masker().mask_lines))


def test_a_diff_is_masked_as_both_of_its_sides_are():
    after = {"a.py": 'API_KEYS = [\n    "h1",\n    "h2",\n    "h3",\n    "h4",\n    "h6",\n]\nlr = 1\n'}
    diff = (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n"
        '@@ -3,5 +3,5 @@ API_KEYS = [\n     "h2",\n     "h3",\n     "h4",\n-    "h5",\n+    "h6",\n ]\n'
        "diff --git a/b.yaml b/b.yaml\n--- a/b.yaml\n+++ /dev/null\n"
        "@@ -1,2 +0,0 @@\n-lr: 1\n-password: h7\n\\ No newline at end of file\n"
    )

    def masked(after):
        return mask_diff(diff, lambda name, lines: mask_code(name, lines, Masker({}).mask_lines), after)

    both = masked(after)
    assert not any(f"h{number}" in both for number in range(1, 8))
    assert both.count('    "***",\n') == 5
    assert "-lr: 1\n-password: ***\n\\ No newline at end of file\n" in both
    assert masked({"a.py": "changed since\n"}) == masked({})
    assert "h7" not in masked({})
