"""What of a record may be shared is what a list names; everything else stays behind."""

from __future__ import annotations

import json

import pytest

from tests.privacy.planted import ENVIRON
from toolkit.telemetry.privacy.redaction import Redactor
from toolkit.telemetry.privacy.shareable import Shareable


@pytest.mark.parametrize(
    "fields",
    [
        {"train_loss": 0.5, "eval/accuracy": 1, "lr": None, "is_best": True, "grad_norm_max": 2.0},
        {
            "optimizer": "adamw8bit",
            "dtype": "bf16",
            "lr_scheduler": "cosine_with_restarts",
            "status": "finished",
        },
        {"base_model": "google/gemma-2b", "model_name": "black-forest-labs/FLUX.1-dev", "dataset": "mnist"},
        {"packages": {"torch": "2.5.1+cu124", "optimum-quanto": "0.2.7"}, "python": "3.11.9"},
        {"accelerators": [{"name": "NVIDIA H100 80GB HBM3", "memory_gb": 79.6}]},
        {"config": {"train": {"steps": 2000, "learning_rate": "1e-4"}}, "target_modules": ["to_q", "to_k"]},
        {"non_finite": {"train_loss": "NaN"}, "nan_inf_detected": True},
        {"id": "a448eca800000001", "name": "forward", "duration": 0.5, "clock": "host"},
        {
            "kind": "memory_growth",
            "metric": "gpu_mem_allocated",
            "severity": "warning",
            "evidence": {"rise_pct": 3},
        },
    ],
)
def test_numbers_known_settings_and_public_names_pass_as_they_are(fields):
    shareable = Shareable(local_folders=())

    assert shareable.record({"event": "x", **fields}) == {"event": "x", **fields}
    assert not shareable.left_out


def test_a_metric_of_a_private_name_keeps_its_curve_under_one_number():
    shareable = Shareable()
    first = shareable.record(
        {"event": "step", "orchid": 0.5, "orchid_min": 0.4, "non_finite": {"orchid": "NaN"}}
    )
    finding = shareable.record({"event": "finding", "metric": "orchid", "message": "orchid is NaN"})

    assert first == {"event": "step", "name_1": 0.5, "name_1_min": 0.4, "non_finite": {"name_1": "NaN"}}
    assert finding == {"event": "finding", "metric": "name_1"}
    assert (shareable.renamed, dict(shareable.left_out)) == (1, {"message": 1})


@pytest.mark.parametrize(
    "name",
    [
        *(
            "acme/gemma-2b",
            "google/../x",
            "google//x",
            "google/x/",
            "g\u043e\u043egle/x",
            "google\\x",
            "/google/x",
        ),
        *("google/a--b", "orchid-7b", "~/google/x"),
    ],
)
def test_any_other_model_does_not_pass(name):
    assert Shareable().record({"event": "start", "base_model": name}) == {"event": "start"}


def test_a_model_that_may_be_a_local_folder_does_not_pass(tmp_path):
    (tmp_path / "google").mkdir()

    assert Shareable(local_folders=[tmp_path]).text("google/gemma-2b", "model") is None


def test_a_number_under_the_name_of_a_password_does_not_pass():
    assert Shareable().record({"event": "x", "password": 4711, "max_tokens": 512}) == {
        "event": "x",
        "max_tokens": 512,
    }


def test_with_text_everything_passes_without_secrets_and_paths():
    shareable = Shareable(redactor=Redactor(environ=ENVIRON))
    record = {"event": "sample", "prompt": "an orchid in /home/jane.roe/x", "hf_token": "abc", "orchid": 0.5}

    assert shareable.record(record) == {
        **record,
        "prompt": "an orchid in <path>",
        "hf_token": "***",
    }


@pytest.mark.parametrize(
    "text",
    ["a1b2c3d4e5f6", "b1374f2199d8b5d00f35845f2b667f41", "v10.0.0.12", "host-10-0-0-12", "a351f368052a"],
)
def test_letters_and_numbers_that_may_be_a_token_or_an_address_are_not_plain_words(text):
    assert Shareable().record({"event": "step", "type": text, text: 1, "metric": text}) == {
        "event": "step",
        "name_1": 1,
        "metric": "name_1",
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"command_line": ["--hf-token", "plum"]},
        {"env": [{"name": "HF_TOKEN", "value": "plum"}]},
        {"applied": {"kind": "Secret", "data": {"a": "plum"}}},
        {"host": "plum", "boot_id": "plum", "gpu": [{"uuid": "plum"}]},
    ],
)
def test_with_text_a_secret_is_known_by_what_is_next_to_it_and_a_machine_by_its_field(fields):
    assert "plum" not in json.dumps(Shareable(redactor=Redactor(environ={})).record({"event": "x", **fields}))
