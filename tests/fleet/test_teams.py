"""Pages on the databases of several teams: one list, and each run asked for and changed in its own database."""

import pytest

from dashboard import launcher
from tests.fleet.engines import free_ports
from tests.fleet.shipped_runs import append, id_of, make_run, ship
from tests.fleet.test_store import PATIENCE_S
from tests.runs.sources.store_answers import answers_of
from tests.runs.sources.test_store_answers import write_rich_run
from toolkit.telemetry.core.run_search import QueryError
from toolkit.telemetry.fleet.address import address_of
from toolkit.telemetry.fleet.schema import set_up
from toolkit.telemetry.runfolder.labels import Labels, ProjectSettings
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.sources.team_stores import TeamStores
from toolkit.telemetry.runs.store import Refused, RunQuery, StoreUnavailable, UnknownRun

TEAMS = ("vision", "robots")


@pytest.fixture(scope="module")
def shipped(engine, tmp_path_factory):
    """Folders of two teams, each shipped to a database of its own: three runs each, and a rich one."""
    folders = {}
    for team in TEAMS:
        set_up(engine.address(team))
        logs = folders[team] = tmp_path_factory.mktemp("teams") / team
        for number in range(3):
            name = f"{team}-{number}" if number else "same"
            folder = make_run(logs, name, project="faces" if number else None)
            append(folder, range(20, 22 + number + 3 * (team == "robots")))
    write_rich_run(folders["vision"])
    for team, logs in folders.items():
        ship(engine.address(team), logs)
    return folders


@pytest.fixture
def stores(engine, shipped):
    return TeamStores(
        {
            team: ClickHouseStore(
                engine.address(team), patience_s=PATIENCE_S, visitor=lambda: "ann@example.org"
            )
            for team in TEAMS
        }
    )


def names(stores, **how):
    return [card.name for card in stores.list_runs(RunQuery(**how)).cards]


def test_every_answer_is_that_of_the_run_in_its_own_database(stores, shipped):
    key = f"vision~{id_of(shipped['vision'] / 'r')}"
    expected = answers_of(LocalStore([shipped["vision"]], cache_dir=None), "r")

    found = answers_of(stores, key)

    # Project and team are named in the card.
    assert [name for name in expected if found[name] != expected[name]] == ["card", "meta"]
    card = stores.card(key)
    assert (card.key, card.team, card.project) == (key, "vision", stores.meta(key).card.project)


def test_one_list_of_all_teams_is_sorted_searched_and_cut_into_pages(stores):
    every = ["robots-1", "robots-2", "same", "same", "vision-1", "vision-2"]
    found = stores.list_runs(RunQuery(sort="name"))
    assert [card.name for card in found.cards if card.name in every] == every
    assert found.total == sum(found.statuses.values()) == found.matching == 7
    assert found.projects[:2] == ("robots", "robots/faces")
    assert [
        name for page in (1, 2, 3) for name in names(stores, sort="name", page=page, per_page=3)
    ] == names(stores, sort="name")
    last = stores.list_runs(RunQuery(sort="name", page=9, per_page=3))
    assert (last.page, last.matching, len(last.cards)) == (3, 7, 1)
    assert names(stores, sort="-step")[:3] == names(stores, sort="-step", per_page=3)

    assert set(names(stores, text="team:robots")) == {"same", "robots-1", "robots-2"}
    assert (
        names(stores, text="-team:vision robots-2")
        == names(stores, text="team=ROBOTS robots-2")
        == ["robots-2"]
    )
    assert names(stores, project="robots/faces", sort="name") == ["robots-1", "robots-2"]
    assert names(stores, text='project:"vision/faces"', sort="name") == ["vision-1", "vision-2"]
    assert len(names(stores, project="vision")) == 4
    assert names(stores, text="team:other") == []
    assert stores.list_runs(RunQuery(text="team:other")).total == 7
    for text in ("not_logged>1", "team:robots not_logged>1"):
        with pytest.raises(QueryError, match="unknown name"):
            stores.list_runs(RunQuery(text=text))
    assert names(stores, text="-team:robots", per_page=2, sort="name") == ["r", "same"]


def test_curves_of_several_teams_are_compared_in_the_order_asked(stores):
    keys = [card.key for card in stores.list_runs(RunQuery(text="same")).cards]
    keys += [card.key for card in stores.list_runs(RunQuery(text="-same -r")).cards]
    stores.refresh_all(keys, wait_s=PATIENCE_S)
    assert [health.records for health in stores.refresh_all(keys)] == [
        stores.refresh(key).records for key in keys
    ]

    assert list(stores.series_of([*keys, "no such run", "vision~x"], "train_loss")) == keys
    assert set(stores.trends(keys)) == set(keys)
    with pytest.raises(UnknownRun) as caught:
        stores.card("same")
    assert caught.value.near == ("vision~same", "robots~same")
    assert stores.card("vision~same").key in keys
    assert stores.card("robots-2").team == "robots"


def test_changes_go_to_the_database_of_the_run(stores, engine):
    first, second = (f"{team}~{id_of_named(stores, f'{team}-1')}" for team in TEAMS)
    stores.label(second, Labels(tags=("mine",)))
    alone = {team: ClickHouseStore(engine.address(team), patience_s=PATIENCE_S) for team in TEAMS}
    assert [store.list_runs().tags for store in alone.values()] == [(), ("mine",)]
    stores.label(second, Labels())

    token = stores.delete(first)
    assert [item.token for item in stores.trash()] == [token] == [first]
    assert stores.restore(token) == first

    stores.set_project_settings("robots/faces", ProjectSettings(pinned_metrics=("lr",)))
    assert stores.project_settings("robots/faces").pinned_metrics == ("lr",)
    assert stores.project_settings("vision/faces") == stores.project_settings(None) == ProjectSettings()
    with pytest.raises(Refused, match="choose a team"):
        stores.set_project_settings(None, ProjectSettings())


def id_of_named(stores, name):
    (card,) = stores.list_runs(RunQuery(text=name)).cards
    return card.key.partition("~")[2]


def test_a_store_that_does_not_answer_is_named_and_the_others_are_shown(engine, shipped):
    nowhere = address_of(f"clickhouse://127.0.0.1:{free_ports(1)[0]}/away")
    stores = TeamStores(
        {
            "away": ClickHouseStore(nowhere, patience_s=PATIENCE_S),
            "vision": ClickHouseStore(engine.address("vision"), patience_s=PATIENCE_S),
        }
    )
    found = stores.list_runs()

    assert {card.team for card in found.cards} == {"vision"}
    assert found.is_stale
    (problem,) = found.problems
    assert problem.startswith("away: The engine has not answered since")
    with pytest.raises(StoreUnavailable, match="away~x"):
        stores.card("away~x")
    assert [place.partition(":")[0] for place in stores.state().places] == ["away", "vision"]


def refusal(capsys, *options):
    with pytest.raises(SystemExit):
        launcher.parse_options(list(options))
    return capsys.readouterr().err


def test_each_store_has_its_own_options_in_the_same_order(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two = (
        "--store",
        "clickhouse://a@h1/telemetry_vision",
        "--store",
        "robots=clickhouse://b@h2/telemetry?secure=1",
    )
    chosen = launcher.parse_options(
        [*two, "--password-file", "/a", "--password-file", "/b", "--objects", "none", "--ca", "/ca"]
    )
    shown = [
        (one.team, one.url[-9:], str(one.password_file), str(one.ca), one.objects)
        for one in chosen.settings.engines
    ]
    assert shown == [("vision", "ry_vision", "/a", "/ca", None), ("robots", "?secure=1", "/b", "/ca", None)]

    assert "there are 2 stores and 1 of it" in refusal(capsys, *two, "--password-file", "/a")
    assert "in the order of --store" in refusal(capsys, *two, *["--ca", "/ca"] * 3)
    assert "the same name" in refusal(capsys, *["--store", "clickhouse://h/telemetry"] * 2)

    (tmp_path / "fleet.toml").write_text(
        '[dashboard]\nengine = ["clickhouse://h/a", "b=clickhouse://h/x"]\npassword-file = ["a.pw", "b.pw"]\n'
    )
    engines = launcher.parse_options([]).settings.engines
    assert [(one.team, one.password_file) for one in engines] == [
        ("a", tmp_path / "a.pw"),
        ("b", tmp_path / "b.pw"),
    ]
