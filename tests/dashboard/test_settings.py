from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.access.login import AllowList
from dashboard.settings import (
    ACCESS_VARIABLE,
    CACHE_DIR_VARIABLE,
    LOG_DIRS_VARIABLE,
    READ_ONLY_VARIABLE,
    DashboardSettings,
    PageAccess,
    SettingsError,
)
from toolkit.core.user_folders import user_folder

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
    )

    assert DashboardSettings.from_environment(settings.to_environment()) == settings


def test_a_folder_whose_name_is_not_utf8_survives_the_real_environment(monkeypatch):
    settings = DashboardSettings(log_dirs=(Path(os.fsdecode(b"/runs-\xff:a;b")),))
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)

    assert DashboardSettings.from_environment() == settings


def test_an_empty_environment_gives_the_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = DashboardSettings.from_environment({})

    assert settings.log_dirs == (tmp_path / "logs",)
    assert not settings.read_only
    assert settings.cache_dir.name == "ai-toolkit-telemetry"


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
    monkeypatch.setattr("toolkit.core.user_folders.sys.platform", platform)

    assert user_folder("cache", environ) == Path(folder).expanduser() / "ai-toolkit-telemetry"


@pytest.mark.parametrize("home", [None, "relative"])
def test_a_user_without_a_home_has_no_cache(monkeypatch, tmp_path, home):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("toolkit.core.user_folders.sys.platform", "linux")
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
        (LOG_DIRS_VARIABLE, "/a:/b"),
        (LOG_DIRS_VARIABLE, '"/a"'),
        (LOG_DIRS_VARIABLE, "[1]"),
        (LOG_DIRS_VARIABLE, '["relative"]'),
        (READ_ONLY_VARIABLE, "perhaps"),
        (CACHE_DIR_VARIABLE, "relative"),
        (ACCESS_VARIABLE, "anyone"),
        (ACCESS_VARIABLE, "{}"),
        (ACCESS_VARIABLE, '{"by": "no one", "allow_list": null}'),
        (ACCESS_VARIABLE, '{"by": "login", "allow_list": {"operators": [], "viewers": []}}'),
    ],
)
def test_a_value_that_cannot_be_is_named(name, value):
    with pytest.raises(SettingsError, match="must be") as caught:
        DashboardSettings.from_environment({name: value})

    assert value.strip('[]"') in str(caught.value)


def test_a_login_without_a_list_of_guests_cannot_be_made():
    with pytest.raises(SettingsError, match="an allow list"):
        PageAccess(by="login")
    with pytest.raises(SettingsError, match="an allow list"):
        PageAccess(by="token", allow_list=AllowList(operators=("a@b.example",)))
