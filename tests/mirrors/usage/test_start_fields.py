from __future__ import annotations

import pytest

from toolkit.mirrors.usage.start_fields import about_machine, about_training


@pytest.mark.parametrize(
    ("platform", "reported"),
    [
        ("Linux-6.1.0-17-amd64-x86_64-with-glibc2.36", ("Linux", "6.1", "x86_64")),
        ("Linux-5.15.0-1052.acme-orchid-aarch64-with-glibc2.35", ("Linux", "5.15", "aarch64")),
        ("macOS-14.4-arm64-arm-64bit", ("macOS", "14.4", "arm64")),
        ("Windows-10-10.0.19045-SP0", ("Windows", "10", None)),
    ],
)
def test_of_a_system_only_name_version_and_processor_are_reported(platform, reported):
    machine = about_machine({"os": platform})

    assert (machine["os"], machine["os_version"], machine["machine"]) == reported


@pytest.mark.parametrize("platform", [None, 5, "", "???", "janes-gpu-box"])
def test_an_unknown_system_is_not_reported(platform):
    assert about_machine({"os": platform}).get("os") is None


def test_the_machine_is_reported_in_coarse_figures():
    machine = about_machine(
        {
            "python": "3.11.9",
            "packages": {"torch": "2.5.1"},
            "cpu": {"logical": 64, "physical": 32, "model": "Xeon of jane"},
            "memory_gb": 503.59,
            "accelerators": [
                {"index": 0, "name": "NVIDIA H100 80GB HBM3", "memory_gb": 79.65, "kind": "cuda"},
                {"index": 1, "name": "NVIDIA H100 80GB HBM3", "memory_gb": 79.65, "kind": "cuda"},
            ],
        }
    )

    assert machine == {
        "python_version": "3.11.9",
        "package_versions": {"torch": "2.5.1"},
        "cpu_count": 64,
        "memory_gb": 504,
        "accelerator_type": "cuda",
        "accelerator_count": 2,
        "accelerator_models": ["NVIDIA H100 80GB HBM3"] * 2,
        "accelerator_memory_gb": [80, 80],
    }


@pytest.mark.parametrize("accelerators", [None, [], "gpu", [None]])
def test_accelerators_that_were_not_found_are_not_reported_as_none(accelerators):
    machine = about_machine({"accelerators": accelerators})

    assert not any(name.startswith("accelerator") for name in machine)


@pytest.mark.parametrize(
    ("start", "name"),
    [
        ({"model_name_or_path": "google/gemma-2b"}, "google/gemma-2b"),
        ({"model_name_or_path": "/home/jane/model", "model_name": "google/gemma-2b"}, "google/gemma-2b"),
        ({"model_name": "acme/orchid"}, None),
        ({"model_name": ["google/gemma-2b"]}, None),
        ({}, None),
    ],
)
def test_a_model_is_named_only_where_it_is_a_public_one(start, name):
    about = about_training(start, is_public_model=lambda given: given.startswith("google/"))

    assert about["model"] == name


def test_axolotl_is_known_by_what_it_says_of_itself():
    about = about_training({"axolotl_version": "0.9"}, is_public_model=lambda _: False)

    assert about["trainer"] == "axolotl"
