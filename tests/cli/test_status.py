"""`telemetry status`: whether a run is running, how far it is and how fast."""

from __future__ import annotations

import json

from tests.cli.runs import write_run
from tests.exchange.commands import telemetry
from tests.telemetry.logged import make_logger
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main


def test_a_running_run_says_how_far_it_is(tmp_path, capsys):
    with make_logger(tmp_path, "greyjacket", log_every=1) as log:
        log.log_start(training={"max_steps": 100})
        for step in range(11):
            log.log_step(step, train_loss=0.5, sec_per_step=2.0)
        log.flush()

        def about_it():
            return telemetry(capsys, "status", tmp_path)

        # run.json follows the records by a second or two.
        wait_until(lambda: about_it()["step"] == 10 and about_it()["eta_s"] is not None)
        about = about_it()
        assert main(["status", str(tmp_path)]) == 0
        said = capsys.readouterr().out

    assert (about["status"], about["step"], about["max_steps"]) == ("running", 10, 100)
    assert (about["loss"], about["sec_per_step"], about["eta_s"]) == (0.5, 2.0, 178.0)
    assert said.startswith("greyjacket: running, step 10 of 100, train_loss 0.5, 2 s/step, 3 min left, ")


def test_the_exit_code_says_whether_the_run_is_well(tmp_path, capsys):
    finished = write_run(tmp_path, "finished", [0.5])
    manifest = json.loads((finished / "run.json").read_text())
    manifest["summary"] |= {"findings_critical": 1, "findings_warning": 2}
    (finished / "run.json").write_text(json.dumps(manifest))
    assert main(["status", str(finished)]) == 0
    assert "findings: 3, which `telemetry doctor`" in capsys.readouterr().out
    failed = make_logger(tmp_path, "failed")
    failed.close("failed")
    assert main(["status", str(failed.run_folder)]) == 1
