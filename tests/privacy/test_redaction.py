"""What is shared does not reveal who made it, where, or with what keys; and is still useful."""

from __future__ import annotations

import base64
import json
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import in_make_faults, is_long, longer
from tests.privacy.planted import ENVIRON, HARMLESS, PLANTED, found_in
from toolkit.privacy.names import is_identifying
from toolkit.privacy.redaction import Redactor
from toolkit.runfolder import records
from toolkit.runfolder.columns import FIRST_COLUMNS

CONTEXTS = {
    "alone": lambda text: text,
    "in a sentence": lambda text: f"failed to open {text} (why?)",
    "in JSON": lambda text: json.dumps({"a": text}),
    "in JSON in JSON": lambda text: json.dumps(json.dumps({"a": text})),
    "as Python shows it": lambda text: repr({"a": [text, (text,)]}),
    "as Python shows bytes": lambda text: repr(text.encode()),
    "in a line of a program": lambda text: f"    x = load({text!r}, device='cuda')",
    "behind an equals sign": lambda text: f"x={text}",
    "quoted": lambda text: f"x='{text}' y=\"{text}\" z=`{text}`",
    "in brackets": lambda text: f"[{text}] f({text}) <{text}>",
    "on a line of its own": lambda text: f"a\n{text}\nb\t{text}\tc",
    "at the end of a sentence": lambda text: f"It was {text}.",
    "in a list": lambda text: f"{text},{text};{text}|{text}",
    "in a message": lambda text: f"Error: {text}: no such thing",
    "on a command line": lambda text: f"train.py --x {text} --y 3",
}


def redactor(**options):
    return Redactor(environ=ENVIRON, **options)


def some_of(values, context):
    """Return all values, or a third of them in `make test`: those of three contexts are all of them."""
    return values if is_long() else values[list(CONTEXTS).index(context) % 3 :: 3]


@pytest.mark.parametrize("context", CONTEXTS)
def test_no_planted_value_is_left_in_any_text(context):
    planted = [value for _, value in some_of(PLANTED, context)]
    written = {value: redactor().redact_text(CONTEXTS[context](value)) for value in planted}

    assert {value: text for value, text in written.items() if found_in(text.encode(), value)} == {}


@pytest.mark.parametrize("context", CONTEXTS)
def test_no_harmless_value_is_touched_in_any_text(context):
    texts = [CONTEXTS[context](text) for text in some_of(HARMLESS, context)]

    assert [text for text in texts if redactor().redact_text(text) != text] == []


def test_no_planted_value_is_left_in_values_or_keys():
    for _, value in PLANTED:
        tree = {"note": value, "deep": [{"x": (value,)}], value: 1, "option": ["--note", value]}

        assert not found_in(repr(redactor().redact(tree)).encode(), value)


@pytest.mark.parametrize(
    "text",
    [
        "<s>[INST] Why? [/INST] Because.</s>[INST] And? [/INST]",
        "[THINK]two and two[/THINK] four",
        'text.split("/") or "/".join(parts)',
    ],
)
def test_marks_of_a_chat_and_a_lone_slash_are_no_paths(text):
    assert Redactor(environ={}).redact_text(text) == text


def test_no_harmless_value_is_touched_in_values_or_keys():
    for text in HARMLESS:
        tree = {"note": text, "deep": [{"x": [text]}]}

        assert redactor().redact(tree) == tree
        assert list(redactor().redact({text: "x"})) == [text]


# ------------------------------------------------------------ placeholders


def test_the_same_private_text_has_the_same_placeholder_however_it_is_written():
    taking_out = Redactor(environ={})

    first = taking_out.redact({"a": "/srv/acme/x.csv", "b": ["/srv/acme/x.csv", "/srv/other/y.csv"]})
    second = taking_out.redact_text(r"C:\acme\x.csv and C:\\acme\\x.csv, then /srv/acme/x.csv")

    assert first == {"a": "<path-1>/x.csv", "b": ["<path-1>/x.csv", "<path-2>/y.csv"]}
    assert second == "<path-3>/x.csv and <path-3>/x.csv, then <path-1>/x.csv"


def test_what_was_replaced_is_counted_by_kind_and_field():
    taking_out = Redactor(environ={})

    taking_out.redact(
        {"out": "/srv/acme/x", "deep": {"mail": "a.b@example.com, c.d@example.com"}, "token": "abc"}
    )

    assert taking_out.replaced == {"path": 1, "email": 2, "secret": 1}
    assert taking_out.places == {("path", "out"): 1, ("email", "deep/mail"): 2, ("secret", "token"): 1}


def test_a_field_is_named_without_what_is_private_in_its_name():
    taking_out = Redactor(environ={})

    taking_out.redact({"/srv/acme/x": {"note": "a.b@example.com"}})

    assert taking_out.places == {("path", "(a key)"): 1, ("email", "<path-1>/x/note"): 1}


def test_two_private_keys_stay_two_entries():
    written = Redactor(environ={}).redact({"/srv/acme/one-x": 1, "/srv/acme/two-x": 2, "a@b.example": 3})

    assert sorted(written.values()) == [1, 2, 3]


def test_what_was_redacted_once_is_not_changed_by_redacting_it_again():
    for _, value in PLANTED:
        once = redactor().redact_text(f"see {value} there")

        assert redactor().redact_text(once) == once


# ------------------------------------------------------------ paths


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/jane/venv/lib/python3.11/site-packages/torch/nn/x.py", "site-packages/torch/nn/x.py"),
        ("/srv/acme/lib/python3/dist-packages/yaml/loader.py", "dist-packages/yaml/loader.py"),
        ("/opt/conda/envs/acme/lib/python3.12/json/decoder.py", "lib/python3.12/json/decoder.py"),
        (r"C:\Users\jane\Python311\Lib\json\decoder.py", "Lib/json/decoder.py"),
    ],
)
def test_a_path_into_a_library_keeps_the_librarys_part(path, shown):
    written = Redactor(environ={}).redact_text(f'  File "{path}", line 12, in load')

    assert written == f'  File "<path-1>/{shown}", line 12, in load'


@pytest.mark.parametrize(
    "path",
    [
        "/home/jane/site-packages/../acme-merger/x.py",
        "/home/jane/site-packages/acme-merger.csv",
        "/home/jane/site-packages/acme merger/x.py",
    ],
)
def test_a_folder_that_is_merely_called_so_is_no_library(path):
    assert "acme" not in Redactor(environ={}).redact_text(f"'{path}'")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/work/acme/train_lora.py", "<path-1>/train_lora.py"),
        ("/work/acme/checkpoint-500", "<path-1>/checkpoint-500"),
        ("/work/acme/step_1000.safetensors", "<path-1>/step_1000.safetensors"),
        ("/work/acme/patients_of_dr_smith.csv", "<path-1>.csv"),
        ("/work/acme/x.smithfile", "<path-1>"),
        ("/work/acme:12", "<path-1>:12"),
    ],
)
def test_a_file_name_of_plain_words_is_kept(path, shown):
    assert Redactor(environ={}).redact_text(path) == shown


def test_a_relative_path_is_replaced_where_paths_are_expected():
    written = Redactor(environ={}).redact(
        {
            "output_dir": "out/acme",
            "data_path": "clients/smith/train.jsonl",
            "log_dir": "./logs",
            "path": "samples/step_10.png",
            "checkpoint_path": "epoch=3-step=500.ckpt",
            "direction": "out/acme",
            "--out-dir": 3,
        }
    )

    assert written == {
        "output_dir": "<path-1>",
        "data_path": "<path-2>/train.jsonl",
        "log_dir": "./logs",
        "path": "samples/step_10.png",
        "checkpoint_path": "epoch=3-step=500.ckpt",
        "direction": "out/acme",
        "--out-dir": 3,
    }


def test_a_path_may_be_an_object():
    written = Redactor(environ={}).redact(
        {"x": Path("/srv/acme/y"), "z": Path("plain"), "w": [Path("/srv/acme/y")]}
    )

    assert written == {"x": "<path-1>/y", "z": Path("plain"), "w": ["<path-1>/y"]}


def test_the_files_of_a_stack_are_paths_though_they_are_relative():
    stack = ["acme_secret/loader.py:12 in load", "train.py:3 in main", "lib/python3.11/threading.py:9 in run"]

    written = Redactor(environ={}).redact({"stack": stack})

    assert written == {
        "stack": [
            "<path-1>/loader.py:12 in load",
            "train.py:3 in main",
            "lib/python3.11/threading.py:9 in run",
        ]
    }


# ------------------------------------------------------------ names


def test_this_machines_own_names_are_taken_out_even_where_the_environment_does_not_say_them(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "orchid-node-7.corp.example")

    written = Redactor(environ={}).redact_text("on orchid-node-7 and on orchid-node-7.corp.example")

    assert "orchid" not in written


def test_a_name_that_one_text_gives_away_is_taken_out_of_all():
    taking_out = Redactor(environ={})

    written = taking_out.redact({"note": "run by zacharias", "out": "/home/zacharias/x", "host": "box-nine"})

    assert written == {"note": "run by <user-1>", "out": "<path-1>/x", "host": "<host-1>"}
    assert taking_out.redact_text("Zacharias on box-nine") == "<user-1> on <host-1>"


@pytest.mark.parametrize("name", ["root", "user", "ubuntu", "admin", "adam", "train", "model", "bob"])
def test_a_name_that_is_also_a_word_is_taken_out_of_paths_only(name):
    taking_out = Redactor(environ={"USER": name, "HOME": f"/home/{name}"})

    assert taking_out.redact_text(f"{name} says: {name}_size=3") == f"{name} says: {name}_size=3"
    assert name not in taking_out.redact_text(f"/home/{name}/acme")


def test_common_addresses_and_words_are_kept_in_settings_of_names():
    config = {"host": "127.0.0.1", "master_addr": "localhost", "bind": {"host": "0.0.0.0"}, "user": "root"}

    assert Redactor(environ={}).redact(config) == config


def test_a_conversation_gives_no_names_away():
    text = "Host: Welcome, everybody. User=assistant says: Welcome! The assistant and everybody left."

    assert Redactor(environ={}).redact_text(text) == text


def test_our_own_field_names_are_never_taken_for_names_of_people():
    kinds = {value for name, value in vars(records).items() if name.isupper() and isinstance(value, str)}

    assert [name for name in {*FIRST_COLUMNS, *records.ENVELOPE, *kinds} if is_identifying(name)] == []


# ------------------------------------------------------------ models


@pytest.mark.parametrize(
    "name",
    [
        *("google/gemma-2b", "NVIDIA/Nemotron-4", "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-0.5B"),
        *("gpt2", "bert-base-uncased", "UNet2DModel", "sdxl", "tiny-model"),
    ],
)
def test_a_public_model_keeps_its_name(name):
    config = {
        "model": name,
        "base_model": name,
        "args": ["--model", name],
        "line": f"--model {name} base_model={name}",
    }

    assert Redactor(environ={}).redact(config) == config


@pytest.mark.parametrize(
    "name",
    [
        *(
            "acme-corp/secret-7b",
            "nvidia/../../home",
            "nvidia/..",
            "google/gemma/",
            "google//gemma",
            "google/gemma/x",
        ),
        *(
            "google\\gemma",
            "g\u043e\u043egle/gemma",
            "google\u2215gemma",
            "google/gem\u200bma",
            "\uff47oogle/gemma",
        ),
        *(
            "./google/gemma",
            "../google/gemma",
            "/google/gemma",
            "~/google/gemma",
            " google/gemma",
            "google/gemma\n",
        ),
        *(
            "C:\\google\\gemma",
            "google /gemma",
            "acme-merger-7b",
            "google/-gemma",
            "-google/gemma",
            "google/.gemma",
        ),
    ],
)
def test_any_other_model_does_not(name):
    written = Redactor(environ={}).redact({"base_model": name})["base_model"]

    assert written != name
    assert "acme" not in written


def test_a_model_that_may_be_a_local_folder_does_not_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "google" / "acme-merger").mkdir(parents=True)
    (tmp_path / "microsoft").symlink_to("/nowhere")

    written = Redactor(environ={}).redact(
        {"model": ["google/acme-merger", "microsoft/phi-2", "mistralai/Mistral-7B-v0.1"]}
    )

    assert written == {"model": ["<model-1>", "<model-2>", "mistralai/Mistral-7B-v0.1"]}


def test_a_name_of_ordinary_words_is_no_secret_where_models_are_expected():
    config = {"checkpoint": "eval/accuracy", "model": "models/checkpoint-500", "line": "--model models/tiny"}

    assert Redactor(environ={}).redact(config) == config


def test_the_organisations_are_the_callers_to_choose():
    taking_out = Redactor(environ={}, allowed_organisations=["Acme"], local_folders=[Path("/nowhere")])

    assert taking_out.redact({"model": ["acme/x", "google/gemma-2b"]}) == {"model": ["acme/x", "<model-1>"]}


def test_a_private_model_is_taken_out_wherever_its_name_comes_again():
    written = Redactor(environ={}).redact(
        {"error": "acme-corp/secret-7b is gated, ask acme-corp", "model": "acme-corp/secret-7b"}
    )

    assert written == {"error": "<model-1> is gated, ask <model-2>", "model": "<model-1>"}


def test_the_model_of_a_processor_is_no_model():
    config = {"cpu": {"model": "Xeon-8480C"}, "accelerators": [{"model": "H100-SXM"}]}

    assert Redactor(environ={}).redact(config) == config


# ------------------------------------------------------------ secrets


def test_a_secret_is_found_in_base64_too():
    hidden = base64.b64encode(b"password=hunter2 at /home/jane/acme").decode()
    harmless = base64.b64encode(b"a plain sentence about training").decode()

    written = redactor().redact_text(f"{hidden} and {harmless}")

    assert written == f"*** and {harmless}"


def test_under_a_name_that_says_key_whatever_is_no_plain_word_is_hidden():
    written = Redactor(environ={}).redact(
        {
            "deploy_key": "open-sesame",
            "sort_key": "length",
            "key": "train/loss",
            "my_key": "zebra",
            "x_key": "8f3k2l9d",
        }
    )

    assert written == {
        "deploy_key": "***",
        "sort_key": "length",
        "key": "train/loss",
        "my_key": "***",
        "x_key": "***",
    }


# ------------------------------------------------------------ hostile input

HOSTILE = [
    *("token=a(", "token=a('x1y2z3", "password: str = "),
    *(
        "eyJ-",
        "-sk-",
        "a://b:",
        "--token ",
        "-----BEGIN ",
        "token=",
        "wandb login --x ",
        "xoxb-",
        "/",
        "//",
        "/a",
    ),
    *(
        "\\",
        "\\\\",
        "\\\\a\\",
        "C:\\",
        "C:\\a ",
        "~",
        "~a/",
        "a@",
        "a@b.",
        "a.",
        "1.1.1.1.",
        ":",
        "::",
        "ff:",
        "00-",
    ),
    *(
        "%2F",
        "%2Fa",
        "..",
        "../",
        "a/../",
        "home/",
        "/home/a/",
        "'/",
        "'/a\"",
        "model: a/",
        "--model a/",
        "http://a",
    ),
    *(
        "https://huggingface.co/",
        "file:/",
        "curl -u ",
        "GPU-",
        "ip-1-",
        "</",
        "\n/a",
        "/a A/",
        "$a/",
        "%A%\\",
    ),
    *(
        "YWJj",
        'key="',
        "password = f() or '",
        "cookie: a=",
        "user=",
        "wandb(",
        '\\"key\\": \\"',
        "site-packages/a",
    ),
    *('File "', "ssh a@", "a.internal.", "<path-1>/", "A", "0", " "),
]


@pytest.mark.parametrize("piece", HOSTILE[:: longer(3, 1)])
def test_a_hostile_text_takes_no_long_time(piece):
    text = (piece * (64 * 1024 // len(piece) + 1))[: 64 * 1024]

    began = time.perf_counter()
    redactor().redact_text(text + "\0!")

    # It takes well under a second; what grows with the square of the length takes minutes.
    assert time.perf_counter() - began < 20


@in_make_faults
def test_a_run_that_gives_away_thousands_of_names_takes_no_long_time():
    taking_out = redactor()
    homes = {f"k{n}": f"/home/zz{n}person/x" for n in range(2_000)}

    began = time.perf_counter()
    taking_out.redact(homes)
    taking_out.redact_text("plain words " * 5_000)

    assert time.perf_counter() - began < 20


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
anything = st.recursive(
    plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@settings(max_examples=longer(30, 60), deadline=None)
@given(anything)
def test_redacting_never_raises_and_keeps_the_shape(value):
    def shape(tree):
        if isinstance(tree, dict):
            return [shape(inner) for inner in tree.values()]
        return [shape(inner) for inner in tree] if isinstance(tree, list) else None

    written = redactor().redact({"note": value})

    assert shape(written) == shape({"note": value})


@given(st.text(alphabet="/\\:.~@'\" \nabC1-=%", max_size=60))
@settings(max_examples=longer(30, 300), deadline=None)
def test_any_text_is_rewritten_to_a_text(text):
    written = redactor().redact_text(text)

    assert isinstance(written, str)
    assert written.count("\n") <= text.count("\n")
