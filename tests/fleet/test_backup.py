"""A back-up by the engine's own statements, as docs/fleet.md has them, and its return."""

from __future__ import annotations

import re

from tests.fleet.conftest import started
from tests.fleet.engines import ROOT
from tests.fleet.shipped_runs import id_of, log_run, make_run, pull, record_bytes, ship
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.schema import set_up
from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore

_CONFIG = """<clickhouse><users_config>{folder}/users.xml</users_config><default_profile>default</default_profile>
<backups><allowed_path>{folder}/backups/</allowed_path></backups></clickhouse>"""
_USERS = """<clickhouse><profiles><default/></profiles><quotas><default/></quotas><users><default><password></password>
<networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota></default></users></clickhouse>"""
DATABASE = "telemetry_lab"


def statements(word):
    """Return the document's statements that begin with a word."""
    text = (ROOT / "docs" / "fleet.md").read_text("utf-8")
    found = re.findall(rf"^{word} .*?;$", text, re.MULTILINE | re.DOTALL)
    assert len(found) == 2
    return [statement.removesuffix(";") for statement in found]


def test_labels_come_back_from_a_backup_and_everything_moves_to_another_engine(logs, tmp_path):
    (tmp_path / "backups").mkdir()
    (tmp_path / "config.xml").write_text(_CONFIG.format(folder=tmp_path))
    (tmp_path / "users.xml").write_text(_USERS)
    folders = [make_run(logs, "long", 60), log_run(logs, "logged")]
    key = id_of(folders[0])
    backs, restores = statements("BACKUP"), statements("RESTORE")
    for engine in started(tmp_path / "one", tmp_path / "config.xml"):
        set_up(engine.address(DATABASE))
        ship(engine.address(DATABASE), logs)
        store, ask = ClickHouseStore(engine.address(DATABASE)), Engine(engine.address(DATABASE))
        store.list_runs()
        store.label(key, Labels(display_name="a new name"))
        for statement in backs:
            ask.query(statement)
        store.label(key, Labels(display_name="newer"))
        (labels,) = [statement for statement in restores if "labels" in statement]
        ask.query(labels)
        assert ClickHouseStore(engine.address(DATABASE)).card(key).name == "newer", "the last writer wins"
        ask.query("TRUNCATE TABLE labels")
        ask.query(labels)
        assert ClickHouseStore(engine.address(DATABASE)).card(key).name == "a new name"

    for engine in started(tmp_path / "other", tmp_path / "config.xml"):
        (everything,) = [statement for statement in restores if "labels" not in statement]
        Engine(engine.address("default")).query(everything)
        store = ClickHouseStore(engine.address(DATABASE))
        assert store.card(key).name == "a new name"
        for folder in folders:
            back = pull(Engine(engine.address(DATABASE)), id_of(folder), tmp_path / "back").folder
            assert record_bytes(back) == record_bytes(folder)
        # Shippers go on there.
        assert ship(engine.address(DATABASE), logs).totals.lines == 0
