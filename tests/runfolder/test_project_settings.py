import pytest

from toolkit.telemetry.runfolder.labels import (
    PROJECTS,
    ProjectSettings,
    ProjectSettingsError,
    read_project,
    write_project,
)


def test_each_project_has_settings_of_its_own(tmp_path):
    mine = ProjectSettings(primary_metric="val_loss", direction="min", columns=("name", "loss"), baseline="a")
    write_project(tmp_path, "faces", mine)
    write_project(tmp_path, None, ProjectSettings(primary_metric="reward"))

    assert read_project(tmp_path, "faces") == mine
    assert read_project(tmp_path, None).primary_metric == "reward"
    assert read_project(tmp_path, "other") == ProjectSettings()


def test_keys_of_a_later_version_are_kept(tmp_path):
    (tmp_path / PROJECTS).write_text('{"projects": {"": {"primary_metric": "loss", "pins": [1]}}}')
    known = read_project(tmp_path, None)
    write_project(tmp_path, None, known)

    assert known.other == {"pins": [1]}
    assert read_project(tmp_path, None) == known


def test_a_broken_file_is_not_replaced(tmp_path):
    (tmp_path / PROJECTS).write_text("{oops")

    with pytest.raises(ProjectSettingsError):
        write_project(tmp_path, None, ProjectSettings())
    assert (tmp_path / PROJECTS).read_text() == "{oops"


@pytest.mark.parametrize(
    "text", ['{"projects": 3}', '{"projects": {"": [1]}}', '{"projects": {"": {"columns": 3}}}']
)
def test_odd_values_count_as_nothing_chosen(tmp_path, text):
    (tmp_path / PROJECTS).write_text(text)

    assert read_project(tmp_path, None) == ProjectSettings()
