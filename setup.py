"""What pyproject.toml cannot say: how a wheel differs from the checkout.

- `dashboard` becomes `ai_toolkit_telemetry_dashboard`, so that a project with its own `dashboard` keeps its name.
- A line in a .pth file finds it as `dashboard` where there is no other, and our rooms in ai-toolkit's `toolkit`.
- The example configurations come along.

An editable install uses the checkout as it is.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

# Python runs it at every start in that environment: it imports nothing, and is asked last, for missing modules only.
FINDER = (
    'import sys; sys.meta_path.append(type("AiToolkitTelemetry", (), {"find_spec": classmethod('
    'lambda own, name, path=None, target=None: __import__("ai_toolkit_telemetry").spec_of_missing(name, path, own) '
    'if name in ("dashboard", "toolkit.telemetry.runfolder", "toolkit.telemetry") else None)}))\n'
)


DASHBOARD = "ai_toolkit_telemetry_dashboard"


class BuildWheel(build_py):
    """Arranges the files of a wheel."""

    def run(self) -> None:
        """Build, then move and add what is described above."""
        library = Path(self.build_lib)
        installed = library / DASHBOARD
        if not self.editable_mode and library.resolve() != Path.cwd():
            # An earlier build left modules there that may have been deleted since.
            for earlier in (library / "toolkit", library / "dashboard", installed):
                shutil.rmtree(earlier, ignore_errors=True)
        super().run()
        if self.editable_mode:
            return
        (library / "dashboard").rename(installed)
        examples = library / "toolkit" / "telemetry" / "trainer" / "examples"
        examples.mkdir(exist_ok=True)
        for config in sorted(Path("config", "examples").glob("*.yaml")):
            shutil.copy(config, examples)
        (library / "ai_toolkit_telemetry.pth").write_text(FINDER, encoding="utf-8")


class NameWheel(egg_info):
    """Lists the names that a wheel uses."""

    def run(self) -> None:
        """Write the metadata, then the names again: `dashboard` is not among them."""
        super().run()
        names = f"ai_toolkit_telemetry\n{DASHBOARD}\ntoolkit\n"
        Path(self.egg_info, "top_level.txt").write_text(names, encoding="utf-8")


setup(cmdclass={"build_py": BuildWheel, "egg_info": NameWheel})
