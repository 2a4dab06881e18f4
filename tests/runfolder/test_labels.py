"""labels.json keeps what people say about a run; a broken one is refused with the reason, and hides nothing else."""

import json
import os
import stat

import pytest

from toolkit.telemetry.runfolder.labels import (
    MAX_LABELS_BYTES,
    PROJECTS,
    Labels,
    LabelsError,
    ProjectSettings,
    ProjectSettingsError,
    read_labels,
    read_project,
    write_labels,
    write_project,
)


def write(folder, content):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "labels.json").write_bytes(data)


def test_no_tags_and_unchanged_tags_are_two_things(tmp_path):
    write_labels(tmp_path, Labels(tags=()))

    assert read_labels(tmp_path).tags == ()
    assert Labels().tags is None


def test_what_a_later_version_wrote_is_kept(tmp_path):
    write(tmp_path, {"notes": "x", "shape": {"of": ["line"]}})

    write_labels(tmp_path, read_labels(tmp_path))

    assert json.loads((tmp_path / "labels.json").read_bytes())["shape"] == {"of": ["line"]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"display_name": "x" * 201}, "display_name is .* of 201 characters, not of at most 200"),
        ({"display_name": " "}, "display_name is ' ', not a text of 1 to 200"),
        ({"display_name": 7}, "display_name is 7, not a text"),
        ({"display_name": "half \ud800"}, "display_name is .*, not a text of whole characters"),
        ({"tags": ("x" * 65,)}, "a tag is .* of 65 characters, not of at most 64"),
        ({"tags": ("",)}, "a tag is '', not a text of 1 to 64"),
        ({"tags": tuple(map(str, range(51)))}, "tags holds 51 tags, at most 50"),
        ({"tags": "face"}, "tags is 'face', not a list of texts"),
        ({"notes": None}, "notes is None, not a text"),
        ({"archived": "yes"}, "archived is 'yes', not true or false"),
        ({"acknowledged": (1,)}, "an item of acknowledged is 1, not a text"),
        ({"muted": "spike"}, "muted is 'spike', not a list of texts"),
        ({"muted": (None,)}, "an item of muted is None, not a text"),
    ],
)
def test_a_value_that_cannot_be_kept_is_named_with_what_is_allowed(changes, said):
    with pytest.raises(LabelsError, match=said):
        Labels(**changes)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        ([], "holds a list, not an object"),
        ({"tags": {"a": 1}}, "tags is .*not a list"),
        ({"archived": 1}, "archived is 1"),
        (b" " * (MAX_LABELS_BYTES + 1), "larger than"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_broken_file_is_refused_with_the_reason(tmp_path, content, said):
    write(tmp_path, content)

    with pytest.raises(LabelsError, match=rf"labels\.json.*{said}"):
        read_labels(tmp_path)


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    write_labels(tmp_path, Labels(notes="before"))

    with pytest.raises(LabelsError, match=r"at most 262144; shorten the notes"):
        write_labels(tmp_path, Labels(notes="x" * MAX_LABELS_BYTES))
    with pytest.raises(LabelsError, match="as JSON"):
        write_labels(tmp_path, Labels(other={"x": object()}))
    assert read_labels(tmp_path).notes == "before"


def test_labels_have_the_permissions_of_the_manifest(tmp_path):
    old = os.umask(0)
    try:
        write_labels(tmp_path, Labels())
        alone = stat.S_IMODE((tmp_path / "labels.json").stat().st_mode)
        (tmp_path / "run.json").write_text("{}")
        (tmp_path / "run.json").chmod(0o644)
        write_labels(tmp_path, Labels())
        of_others = stat.S_IMODE((tmp_path / "labels.json").stat().st_mode)
    finally:
        os.umask(old)

    assert (oct(alone), oct(of_others)) == ("0o600", "0o644")


# ---------------------------------------------------------------- the settings of a project


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
