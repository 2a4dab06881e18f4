"""What pyproject.toml cannot say: folders of the checkout that have another name once installed.

The wheel has `toolkit/telemetry`, in a namespace that others may share, and `ai_toolkit_telemetry`.
"""

from __future__ import annotations

from setuptools import find_namespace_packages, find_packages, setup

setup(
    packages=[
        "ai_toolkit_telemetry",
        *find_namespace_packages(include=["toolkit.telemetry*"]),
        *(f"ai_toolkit_telemetry.{name}" for name in find_packages(include=["dashboard*"])),
        "toolkit.telemetry.trainer.examples",
    ],
    package_dir={
        "ai_toolkit_telemetry.dashboard": "dashboard",
        "toolkit.telemetry.trainer.examples": "config/examples",
    },
)
