"""What people do with runs: names, tags, notes, the archive, the trash, downloads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboard import session
from tests.dashboard.views.pages import open_page, open_settings
from tests.made_runs import write_run
from tests.waiting import wait_until
from toolkit.telemetry.runfolder.labels import Labels, read_labels, write_labels
from toolkit.telemetry.runfolder.trash import list_trash, move_to_trash
from toolkit.telemetry.runs.store import Refused


def names(tab):
    return list(tab.run_table()["Run"])


def test_notes_and_tags_of_the_notes_page_are_kept_and_shown(logs):
    folder = write_run(logs, "r", tags=("old",))
    tab = open_page("config_notes", "r")
    tab.text_input(key="_name r").set_value("New name").run()
    tab.multiselect(key="_tags r").set_value([]).run()

    # The field for notes is tested in a browser.
    assert read_labels(folder) == Labels(display_name="New name", tags=())

    write_labels(folder, replace(read_labels(folder), notes="It <b>diverged</b> at **500**."))
    # Folders are looked at twice a second at most.
    wait_until(lambda: "It <b>diverged</b> at **500**." in open_page("config_notes", "r").said())
    again = open_page("config_notes", "r")

    assert again.name_shown() == "New name"
    assert "old" not in again.badges()


def test_labels_that_cannot_be_kept_are_refused_in_words(logs):
    write_run(logs, "r")
    tab = open_page("config_notes", "r")
    tab.multiselect(key="_tags r").set_value([f"tag {number}" for number in range(51)]).run()

    assert not tab.exception
    assert any("at most 50 are allowed" in error.value for error in tab.error)


def test_archiving_hides_a_run_the_switch_shows_it_and_it_can_be_taken_out_again(logs):
    folder = write_run(logs, "r", labels=Labels(notes="kept"))
    write_run(logs, "other")

    open_page("overview", "r").choose("Archive")

    assert read_labels(folder).archived
    runs = open_page("runs")
    assert names(runs) == ["other"]
    assert "1 archived hidden" in runs.said()

    runs.toggle(key="archived").set_value(True).run()

    assert sorted(names(runs)) == ["other", "r"]
    assert open_page("overview", "r").choose("Unarchive").is_well()
    assert read_labels(folder) == Labels(archived=False, notes="kept")


def test_a_deleted_run_goes_to_the_trash_and_settings_brings_it_back(logs):
    folder = write_run(logs, "r", display_name="My run")
    write_run(logs, "other")
    tab = open_page("overview", "r")

    tab.choose("Delete")

    assert not folder.exists()
    assert tab.title[0].value.startswith("Runs"), "the list is where one ends up"
    assert names(tab) == ["other"]
    assert "My run was moved to the trash." in tab.said()

    settings = open_settings()
    assert list(settings.tables()[0]["run"]) == ["r"]
    settings.press_in_settings("Restore")

    assert folder.exists()
    assert "Deleted runs stay here" in open_settings().said()
    assert sorted(names(open_page("runs"))) == ["My run", "other"]


def test_a_live_run_is_not_deleted(logs):
    folder = write_run(logs, "r", status="running")

    tab = open_page("overview", "r").choose("Delete")

    assert "The run is running: stop it first." in tab.said()
    assert folder.exists()


def test_emptying_the_trash_is_asked_for_once_more(logs):
    write_run(logs, "r")
    move_to_trash(logs, "r")
    tab = open_settings()

    assert "This cannot be undone." in tab.said()
    assert len(list_trash(logs)) == 1

    tab.press_in_settings("Delete permanently")

    assert list_trash(logs) == []


def test_a_read_only_dashboard_offers_no_changes_and_refuses_them_in_words(logs, look_at):
    folder = write_run(logs, "r")
    write_run(logs, "gone")
    move_to_trash(logs, "gone")
    look_at(logs, read_only=True)

    tab = open_page("overview", "r")

    assert tab.entries() == ["Report…", "Export…"]
    offered = [item.label for item in open_settings().button]
    assert not {"Restore", "Empty the trash…", "Clear the cache"}.intersection(offered)
    with pytest.raises(Refused, match="the dashboard was started with --read-only"):
        session.store().label("r", Labels(archived=True))
    assert not (folder / "labels.json").exists()


def test_what_was_logged_can_be_downloaded(logs):
    folder = write_run(logs, "r")

    tab = open_page("overview", "r").choose("Export…")

    labels = tab.downloads()
    assert labels[:2] == ["All metrics as CSV", "All metrics as Parquet"]
    assert labels[2].startswith("All records as JSONL")
    assert str(folder / "metrics.jsonl") in [code.value for code in tab.code]
