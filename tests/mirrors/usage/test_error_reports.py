from __future__ import annotations

import pytest

from toolkit.mirrors.usage.error_reports import ErrorReports, public_stack, public_type


@pytest.mark.parametrize(
    ("name", "module", "reported"),
    [
        ("ValueError", "builtins", "ValueError"),
        ("KeyError", None, "KeyError"),
        ("OutOfMemoryError", "torch", "torch.OutOfMemoryError"),
        ("HfHubHTTPError", "huggingface_hub.errors", "huggingface_hub.HfHubHTTPError"),
        ("JSONDecodeError", "json.decoder", "json.JSONDecodeError"),
        ("SIGTERM", "signal", "SIGTERM"),
        ("OrchidMergerError", "__main__", "an_exception_of_the_script"),
        ("OrchidMergerError", "acme.training", "an_exception_of_the_script"),
        ("OrchidMergerError", "builtins", "an_exception_of_the_script"),
        ("print", "builtins", "an_exception_of_the_script"),
        ("a b", "torch", "an_exception_of_the_script"),
        ("SIGORCHID", "signal", "an_exception_of_the_script"),
        (None, None, "an_exception_of_the_script"),
        ("KeyError", 5, "an_exception_of_the_script"),
    ],
)
def test_types_of_python_and_of_public_packages_are_reported_and_others_are_not(name, module, reported):
    assert public_type(name, module) == reported


def test_of_a_stack_public_code_is_reported_and_the_script_is_not(tmp_path):
    stack = [
        "train_orchid_merger.py:12 in main",
        "~/orchid/loop.py:99 in step_for_jane",
        "/opt/orchid/x.py:3 in f",
        "… 12 frames …",
        "transformers/trainer.py:2240 in train",
        "torch/nn/modules/__init__.py:7 in <module>",
        "/usr/lib/python3.11/threading.py:982 in run",
        "/usr/lib/python3.11/site-packages/orchid.py:1 in f",
        "/home/jane/.pyenv/lib/python3.12/json/decoder.py:355 in raw_decode",
        "C:\\Python311\\Lib\\json\\decoder.py:355 in raw_decode",
        "acme_private/model.py:1 in forward",
        "torch/../acme/model.py:1 in forward",
        "/home/jane/torch/secret.py:1 in forward",
        "torch/nn/functional.py:1 in a function named by someone",
        "nonsense",
        5,
    ]

    assert public_stack(stack, [tmp_path]) == [
        "(script)",
        "(script)",
        "(script)",
        "… 12 frames",
        "transformers.trainer:2240 in train",
        "torch.nn.modules:7 in <module>",
        "threading:982 in run",
        "(script)",
        "json.decoder:355 in raw_decode",
        "json.decoder:355 in raw_decode",
        "(script)",
        "(script)",
        "(script)",
        "torch.nn.functional:1",
        "(script)",
        "(script)",
    ]


def test_a_package_in_the_script_s_folder_is_private(tmp_path):
    (tmp_path / "transformers").mkdir()

    assert public_stack(["transformers/orchid_merger.py:1 in f"], [tmp_path]) == ["(script)"]


def test_every_distinct_error_is_reported_with_how_often_it_came(tmp_path):
    reports = ErrorReports([tmp_path])
    for count in (1, 10):
        reports.take(
            {"type": "ValueError", "module": "builtins", "fingerprint": "a", "count": count, "message": "x"}
        )
    reports.take(
        {
            "type": "OutOfMemoryError",
            "module": "torch",
            "fingerprint": "b",
            "count": 1,
            "stack": ["a.py:1 in f"],
        }
    )
    reports.take({"type": "OSError", "source": "telemetry", "doing": "writing"})
    reported = reports.totals(
        {"errors_total": 15, "errors": [{"type": "ValueError", "fingerprint": "a", "count": 14}]}
    )

    assert reported == {
        "errors_total": 15,
        "errors": [
            {"type": "ValueError", "count": 14, "stack": None},
            {"type": "torch.OutOfMemoryError", "count": 1, "stack": ["(script)"]},
        ],
    }


def test_errors_without_end_are_bounded():
    reports = ErrorReports()
    for number in range(1000):
        reports.take({"type": "ValueError", "fingerprint": str(number)})

    assert len(reports.totals({})["errors"]) == 10
