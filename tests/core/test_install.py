"""How to install a package: with pip where it is there, else with what is."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from toolkit.telemetry.core import install


@pytest.mark.parametrize(
    ("has_pip", "uv", "is_conda", "said"),
    [
        (True, "/bin/uv", False, "pip install 'x[y]'"),
        (False, "/bin/uv", False, "uv pip install --python /bin/py 'x[y]'"),
        (False, None, False, "/bin/py -m ensurepip && /bin/py -m pip install 'x[y]'"),
        (False, None, True, "conda install pip && /bin/py -m pip install 'x[y]'"),
    ],
)
def test_the_command_uses_what_is_installed(monkeypatch, has_pip, uv, is_conda, said):
    monkeypatch.setattr(sys, "executable", "/bin/py")
    monkeypatch.setattr(install, "find_spec", lambda _name: has_pip or None)
    monkeypatch.setattr("shutil.which", lambda _name: uv)
    monkeypatch.setattr(install.os.path, "isdir", lambda _path: is_conda)

    assert install.install_command("x[y]") == said


@pytest.mark.parametrize("origin", [None, "/wheels/ours 1.whl"])
def test_an_extra_is_installed_from_where_the_package_was(monkeypatch, tmp_path, origin):
    assert install.install_extra("sql").endswith(f"install -e '{Path(__file__).parents[2]}[sql]'")

    monkeypatch.setattr(install, "__file__", str(tmp_path / "toolkit" / "telemetry" / "core" / "install.py"))
    text = origin and json.dumps({"url": Path(origin).as_uri()})
    monkeypatch.setattr(metadata, "distribution", lambda _name: SimpleNamespace(read_text=lambda _file: text))
    assert install.install_extra("sql").endswith(f"install '{origin or 'ai-toolkit-telemetry'}[sql]'")
