"""`telemetry metrics`: what Prometheus is shown of the runs of one machine."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.telemetry.logged import make_logger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.core.install import install_extra


def samples_in(text):
    """Return the samples by name, run and what else tells them apart."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            others = [sample.labels[key] for key in ("metric", "severity", "status") if key in sample.labels]
            found[(sample.name, sample.labels["run"], *others)] = sample
    return found


@pytest.fixture
def logs(tmp_path):
    """A live run, and one that has ended."""
    logs = tmp_path / "logs"
    with make_logger(logs, 'en"ded') as ended:
        ended.log_step(1, train_loss=math.nan)
    with make_logger(logs, "live", log_every=1) as log:
        for step in range(5):
            log.log_step(step, train_loss=0.5, lr=1e-4, sec_per_step=0.25, gpu_mem_allocated=3.0)
        log.flush()
        with open(log.run_folder / "metrics.jsonl", "ab") as file:
            file.writelines(
                b'{"event":"finding","id":"b","severity":"warning","state":"%s"}\n' % state
                for state in (b"open", b"resolved")
            )
            file.write(b'{"event":"finding","id":"a","severity":"critical","state":"open"}\n')
            file.write(b'{"event":"finding","id":["a"],"severity":{},"state":"open"}\n')
        yield logs


def test_prometheus_scrapes_the_runs_of_this_machine(logs):
    command = [sys.executable, "-m", "toolkit.telemetry.cli", "metrics", str(logs), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().removeprefix("serving ").strip()
        with urllib.request.urlopen(url, timeout=60) as answer:
            found = samples_in(answer.read().decode())
    finally:
        process.kill()
        process.communicate()

    assert url.startswith("http://127.0.0.1:")
    values = {key: sample.value for key, sample in found.items()}
    assert values["telemetry_run_status", "live", "running"] == 1.0
    assert values["telemetry_run_live", "live"] == 1.0
    assert values["telemetry_run_age_seconds", "live"] >= 0.0
    last = {name: values["telemetry_run_last_value", "live", name] for name in ("train_loss", "lr")}
    assert last == {"train_loss": 0.5, "lr": 1e-4}
    assert values["telemetry_run_last_value", "live", "sec_per_step"] == 0.25
    assert values["telemetry_run_last_value", "live", "gpu_mem_allocated"] == 3.0
    severities = [
        values["telemetry_run_findings_open", "live", one] for one in ("info", "warning", "critical")
    ]
    assert severities == [0, 0, 1]
    (ended,) = (key[1] for key in found if key[0] == "telemetry_run_live" and key[1] != "live")
    assert values["telemetry_run_status", ended, "finished"] == 1.0
    assert math.isnan(values["telemetry_run_last_value", ended, "train_loss"])
    assert {one.labels["folder"] for one in found.values()} == {os.fspath(one) for one in logs.iterdir()}


def test_a_text_file_for_node_exporter_is_replaced_as_a_whole(logs, tmp_path):
    target = tmp_path / "telemetry.prom"
    target.write_text("old")
    before = target.stat().st_ino

    assert main(["metrics", str(logs), "--textfile", str(target), "--once"]) == 0
    assert samples_in(target.read_text())["telemetry_run_live", "live"].value == 1.0
    assert target.stat().st_ino != before
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["telemetry.prom"]


def test_what_cannot_be_done_is_said(logs, capsys, monkeypatch):
    for words, sentence in (
        ([str(logs), "--once"], "--once needs --textfile PATH"),
        ([f"{logs}/absent"], "absent"),
        ([str(logs), "--host", "192.0.2.1"], "192.0.2.1:9464 cannot be used"),
    ):
        assert main(["metrics", *words]) == 2
        assert sentence in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["metrics", str(logs)]) == 2
    assert f"needs prometheus-client: {install_extra('metrics')}" in capsys.readouterr().err
