from __future__ import annotations

import math

import pytest

from tests.diagnostics.synthetic_runs import curve, run_of
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE
from toolkit.telemetry.diagnostics.examiner import examine
from toolkit.telemetry.diagnostics.finding import SEVERITIES
from toolkit.telemetry.diagnostics.policy import ACTIONS, OFF, PolicyError, policy_from


def _severity(policy, kind="spike", found=None):
    return policy.severity(kind, usual=CATALOGUE[kind].severity, found=found)


@pytest.mark.parametrize(
    ("chosen", "found", "severity"),
    [
        *((severity, None, severity) for severity in SEVERITIES),
        (None, None, "warning"),
        (None, "critical", "critical"),
        ("warning", "critical", "warning"),
        # What the detector calls harmless is not made louder.
        ("critical", "info", "info"),
    ],
)
def test_the_yaml_chooses_the_severity_of_a_kind_else_the_detector_else_its_kind(chosen, found, severity):
    policy = policy_from({"loss_scale": chosen} if chosen else {})

    assert _severity(policy, "loss_scale", found=found) == severity
    assert _severity(policy, "plateau") == "warning"


@pytest.mark.parametrize("off", [OFF, False])
def test_off_silences_a_kind_as_text_and_as_yaml_reads_it(off):
    losses = [*curve(1, records=40), *[math.nan] * 10]

    kinds = [finding.kind for finding in examine(run_of(losses), policy_from({"nan": off}))]

    assert _severity(policy_from({"nan": off}), "nan") is None
    assert _severity(policy_from({"nan": off}), "nan", found="info") is None
    assert kinds == []
    assert [finding.kind for finding in examine(run_of(losses))] == ["nan"]


@pytest.mark.parametrize(
    ("diagnostics", "on_finding", "said"),
    [
        *(
            (wrong, None, "diagnostics is .*; it must be true, false, or kinds")
            for wrong in (None, "off", 3, ["nan"])
        ),
        *(
            ({"spike": wrong}, None, r"diagnostics\.spike is .*; it must be info, warning, critical or off")
            for wrong in ("loud", 3, None, ["warning"], {})
        ),
        *(
            (True, {"nan": wrong}, r"on_finding\.nan is .*; it must be one of save, stop, save_and_stop")
            for wrong in ("explode", True, None, 3, ["stop"])
        ),
        *(
            (True, wrong, "on_finding is .*; it must be kinds with an action")
            for wrong in ("stop", True, ["nan"], 3)
        ),
        *(
            (True, {"nann": action}, r"on_finding\.nann: .* did you mean 'nan'\?")
            for action in ("stop", False)
        ),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(diagnostics, on_finding, said):
    with pytest.raises(PolicyError, match=rf"^{said}"):
        policy_from(diagnostics, on_finding)


@pytest.mark.parametrize("value", ["warning", True, False])
@pytest.mark.parametrize(
    ("wrong", "meant"), [("platoe", "plateau"), ("spikes", "spike"), ("over_fit", "overfit")]
)
def test_a_kind_that_is_written_wrongly_is_refused_with_the_one_that_was_meant(wrong, meant, value):
    with pytest.raises(
        PolicyError, match=rf"diagnostics\.{wrong}: .* did you mean '{meant}'\?.*Known: nan, spike"
    ):
        policy_from({wrong: value})


@pytest.mark.parametrize("action", ACTIONS)
def test_a_critical_kind_may_ask_for_an_action(action):
    assert policy_from(True, {"nan": action}).actions == {"nan": action}


def test_nothing_acts_by_itself():
    assert policy_from(True).actions == {}
    assert policy_from(True, {"nan": False}).actions == {}


def test_only_critical_kinds_act_and_the_message_says_how_to_make_one_so():
    with pytest.raises(PolicyError, match=r"only critical.*diagnostics: \{plateau: critical\}"):
        policy_from(True, {"plateau": "stop"})

    assert policy_from({"plateau": "critical"}, {"plateau": "stop"}).actions == {"plateau": "stop"}
