"""What pyproject.toml cannot say: folders of the checkout that have another name once installed.

The wheel has `toolkit/telemetry`, in a namespace that others may share, and `ai_toolkit_telemetry`.
"""

from __future__ import annotations

from setuptools import find_namespace_packages, find_packages, setup

setup(
    packages=[
        "ai_toolkit_telemetry",
        # The example trainer, with its weights, is for a checkout.
        *find_namespace_packages(include=["toolkit.telemetry*"], exclude=["toolkit.telemetry.trainer*"]),
        *(f"ai_toolkit_telemetry.{name}" for name in find_packages(include=["dashboard*"])),
    ],
    package_dir={"ai_toolkit_telemetry.dashboard": "dashboard"},
)
