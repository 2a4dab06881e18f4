from __future__ import annotations

import json
import os
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.access.login import AllowList
from dashboard.settings import (
    SETTINGS_VARIABLE,
    DashboardSettings,
    EngineSettings,
    PageAccess,
    SettingsError,
)
from toolkit.telemetry.core.user_folders import user_folder

names = st.text(st.characters(exclude_characters="\0"), min_size=1)


admissions = st.sampled_from(
    [
        PageAccess(),
        PageAccess(by="token"),
        PageAccess(
            by="login",
            allow_list=AllowList(operators=("a@b.example",), viewers=("@c.example",)),
        ),
    ]
)


@hypothesis.settings(deadline=None)
@given(folders=st.lists(names, min_size=1), read_only=st.booleans(), access=admissions)
def test_settings_survive_the_trip_through_the_environment(folders, read_only, access):
    settings = DashboardSettings(
        log_dirs=tuple(Path("/", folder).absolute() for folder in folders),
        read_only=read_only,
        cache_dir=Path("/cache"),
        access=access,
        engines=(EngineSettings(url="clickhouse://h", team=folders[0], ca=Path("/ca")),) if read_only else (),
        other_tools=read_only,
    )

    assert DashboardSettings.from_environment(settings.to_environment()) == settings


def test_a_folder_whose_name_is_not_utf8_survives_the_real_environment(monkeypatch):
    settings = DashboardSettings(log_dirs=(Path(os.fsdecode(b"/runs-\xff:a;b")),))
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)

    assert DashboardSettings.from_environment() == settings


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
    settings = DashboardSettings.from_environment({})

    assert settings.cache_dir is None
    assert DashboardSettings.from_environment(settings.to_environment()) == settings
    assert user_folder("cache", {"XDG_CACHE_HOME": "/elsewhere"}) == Path("/elsewhere/ai-toolkit-telemetry")


def _no_home():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_dirs", "/a:/b"),
        ("log_dirs", [1]),
        ("log_dirs", ["relative"]),
        ("log_dirs", []),
        ("cache_dir", "relative"),
        ("access", "anyone"),
        ("access", {}),
        ("access", {"by": "no one", "allow_list": None}),
        ("access", {"by": "login", "allow_list": {"operators": [], "viewers": []}}),
        ("engines", [{"url": "clickhouse://h"}]),
    ],
)
def test_a_value_that_cannot_be_is_named(name, value):
    text = json.dumps(json.loads(DashboardSettings().to_environment()[SETTINGS_VARIABLE]) | {name: value})
    for changed in (text, "no JSON", "{}"):
        with pytest.raises(SettingsError, match="must be what the launcher wrote") as caught:
            DashboardSettings.from_environment({SETTINGS_VARIABLE: changed})
        assert changed in str(caught.value)


def test_only_false_makes_it_writable():
    text = DashboardSettings(log_dirs=(Path("/a"),)).to_environment()[SETTINGS_VARIABLE]
    odd = text.replace('"read_only": false', '"read_only": null')

    assert odd != text
    assert DashboardSettings.from_environment({SETTINGS_VARIABLE: odd}).read_only
