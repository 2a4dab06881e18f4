from __future__ import annotations

from pathlib import Path

import pytest

from dashboard.settings import DashboardSettings, PageAccess, SettingsError
from toolkit.telemetry.core.user_folders import user_folder


@pytest.mark.parametrize(
    ("platform", "environ", "folder"),
    [
        ("linux", {}, "~/.cache"),
        ("linux", {"XDG_CACHE_HOME": "/elsewhere"}, "/elsewhere"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "~/.cache"),
        ("darwin", {}, "~/Library/Caches"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local"),
        ("win32", {}, "~/AppData/Local"),
    ],
)
def test_what_can_be_computed_again_goes_where_each_system_keeps_it(monkeypatch, platform, environ, folder):
    monkeypatch.setattr("toolkit.telemetry.core.user_folders.sys.platform", platform)

    assert user_folder("cache", environ) == Path(folder).expanduser() / "ai-toolkit-telemetry"


@pytest.mark.parametrize("home", [None, "relative"])
def test_a_user_without_a_home_has_no_cache(monkeypatch, tmp_path, home):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("toolkit.telemetry.core.user_folders.sys.platform", "linux")
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr("pathlib.Path.home", _no_home)
    else:
        monkeypatch.setenv("HOME", home)

    assert DashboardSettings().cache_dir is None
    assert user_folder("cache", {"XDG_CACHE_HOME": "/elsewhere"}) == Path("/elsewhere/ai-toolkit-telemetry")


def _no_home():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize(
    "value", [{"log_dirs": ()}, {"log_dirs": (Path("a"),)}, {"cache_dir": Path("a")}], ids=str
)
def test_folders_are_named_and_absolute(value):
    with pytest.raises(SettingsError, match="must"):
        DashboardSettings(**value)


@pytest.mark.parametrize("value", [{"by": "no one"}, {"by": "login"}], ids=str)
def test_no_access_is_given_by_a_value_that_cannot_be(value):
    with pytest.raises(SettingsError):
        PageAccess(**value)
