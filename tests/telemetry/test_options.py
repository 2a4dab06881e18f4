"""A wrong `telemetry:` block is heard of at once, by key, value and what is allowed; a right one is found anywhere."""

import dataclasses
import datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from toolkit.telemetry.core.fields import options_of
from toolkit.telemetry.logger.options import (
    OptionsError,
    TelemetryOptions,
    options_from_config,
    run_name_from_config,
)

KNOWN = list(options_of(TelemetryOptions))


# ---------------------------------------------------------------- one block


def test_the_defaults_are_those_of_the_contract():
    options = TelemetryOptions.from_mapping({})

    assert options == TelemetryOptions()
    assert (options.enabled, options.log_dir, options.log_every) == (True, "./logs", 10)
    assert (options.csv, options.tensorboard, options.wandb, options.control) == (True, False, False, True)
    assert (options.share, options.resume, options.ranks) == (None, False, "zero")
    assert (options.flush_interval, options.sync_interval, options.queue_max_mb) == (0.1, 5.0, 32.0)
    # Not of the options: those of tests have more.
    assert {field.name: field.default for field in dataclasses.fields(TelemetryOptions)}[
        "close_timeout"
    ] == 5.0


def test_a_whole_block_is_taken_over():
    text = """
        enabled: true
        mode: offline
        log_dir: "/data/logs"
        log_every: 25
        csv: false
        tensorboard: true
        wandb: true
        control: false
        system: false
        system_every: 2
        diagnostics: {plateau: info, nan: "off"}
        on_finding: {}
        spans: {keep: [forward], fold: [encode], drop: [noise], device: [backward], around: 3}
        perf_tag: baseline
        session_tag: night-7
        export_spans: {except: [forward, "checkpoint_*"]}
        mirrors: {my_store: {bucket: runs}}
        one_logger_file: spans.jsonl
        otlp: http://localhost:4318/v1/traces
        otlp_metrics: http://localhost:4318/v1/metrics
        errors: {hang: false, output_lines: 5}
        output: false
        messages: [{to: slack, url_env: SLACK_WEBHOOK, when: [failure]}]
        completions: {interval: 10, buffer: 64}
        batches: false
        alerts: [{name: too high, when: loss > 9}]
        profiling: {min_duration_ms: 1, log_interval: 10}
        usage_reports: {host: "https://eu.i.posthog.com"}
        strict: true
        resume: true
        run_id: abc
        project: faces
        tags: [a, b]
        share: true
        ranks: all
        tensorboard_dir: tb
        wandb_project: p
        wandb_run_name: n
        wandb_mode: offline
        journal: folder
        code: false
        quiet: true
        flush_interval: 0.5
        sync_interval: 0
        queue_max_mb: 8
        close_timeout: 2.5
    """
    block = yaml.safe_load(text)
    options = TelemetryOptions.from_mapping(block)

    assert sorted(block) == sorted(KNOWN)
    assert {**dataclasses.asdict(options), "tags": list(options.tags)} == {**block, "mistake": ""}


WRONG = {
    "alerts": ["loss > 1", 3, {"name": "a"}],
    "enabled": ["yes", 1, None, 0.0],
    "log_dir": ["", 5, None, ["logs"], "a\0b", b"logs"],
    "log_every": [0, -1, "10", 10.0, True, None, 1_000_001, 10**400, 10**5000, float("nan")],
    "csv": ["no", "short", 1, None, ["all"]],
    "tensorboard": ["true", 1],
    "wandb": ["offline", 1],
    "control": ["on"],
    "code": ["git"],
    "system": [[]],
    "system_every": [0, 0.5, "5", True, float("nan"), float("inf"), 10**400, None, 3601],
    "diagnostics": ["yes", 1, None, ["nan"]],
    "on_finding": ["stop", True, ["nan"]],
    "spans": ["some", 1, ["forward"]],
    "perf_tag": ["", 5, [1], {"a": 1}],
    "session_tag": ["", 5],
    "mirrors": ["my_store", ["my_store"], {1: True}, {"my_store": "runs"}],
    "export_spans": ["forward", {"only": ["a"], "except": ["b"]}],
    "one_logger_file": ["", 5, None],
    "otlp": ["", "localhost:4318", 5, "ftp://a"],
    "otlp_metrics": ["", "localhost:4318", 5, "ftp://a"],
    "mode": ["cloud", "", None, 2],
    "errors": ["yes", 1, ["source"]],
    "messages": ["slack", True, 5],
    "completions": ["yes", 5],
    "batches": ["yes", 1, None],
    "profiling": ["yes", []],
    "usage_reports": ["yes", 1],
    "strict": ["yes", 1],
    "quiet": ["yes", 1],
    "output": ["yes", 1, {}],
    "resume": ["auto"],
    "run_id": ["", 5, "a\0"],
    "project": ["", 7],
    "tags": ["abc", [1], [None], {"a": 1}, None, 5],
    "share": ["0755", 0o755],
    "ranks": [
        "none",
        0,
        None,
        [],
        "ALL",
        "every",
        "every:",
        "every:0",
        "every:-2",
        "every:1.5",
        "every:8 ",
        "first",
    ],
    "tensorboard_dir": ["", 5],
    "wandb_project": [""],
    "wandb_run_name": [5],
    "wandb_mode": ["on", 1, [], {}, ""],
    "journal": ["disk", True, None, "SHM", 1],
    "flush_interval": [0, -1, "fast", 61],
    "sync_interval": [-1, float("nan"), 3601],
    "queue_max_mb": [0.5, 5000, "32"],
    "close_timeout": [0, 601, None],
}


def test_what_a_finding_may_ask_for_is_taken_over():
    options = TelemetryOptions.from_mapping(
        yaml.safe_load(
            "{diagnostics: {plateau: off, overfit: critical}, on_finding: {overfit: save_and_stop, nan: stop}}"
        )
    )

    assert options.on_finding == {"overfit": "save_and_stop", "nan": "stop"}
    assert TelemetryOptions.from_mapping({"on_finding": None}).on_finding == {}


@pytest.mark.parametrize("ranks", ["zero", "all", "first_per_node", "every:1", "every:128"])
def test_the_ranks_that_write_are_chosen_by_name_or_number(ranks):
    block = yaml.safe_load(f"ranks: {ranks}")

    assert TelemetryOptions.from_mapping(block).ranks == ranks


def test_every_option_has_wrong_values_here():
    assert sorted(WRONG) == sorted(KNOWN)


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, wrong in WRONG.items() for value in wrong],
    ids=lambda item: ascii(item)[:20] if not isinstance(item, int) or item < 10**9 else "huge",
)
def test_a_wrong_value_is_refused_by_key_value_and_what_is_allowed(key, value):
    with pytest.raises(OptionsError) as refusal:
        TelemetryOptions.from_mapping({key: value})

    message = str(refusal.value)
    shown = "bits" if type(value) is int and value.bit_length() > 1000 else repr(value)
    assert message.startswith(f"telemetry.{key} is ")
    assert shown in message
    assert "; it must be " in message
    assert len(message) < 500


WRONG_WITHIN = [
    (
        {"spans": {"kept": ["a"]}},
        "telemetry.spans.kept (with the value ['a']) is not an option; did you mean 'keep'? Known: all, around",
    ),
    ({"spans": {"keep": [1]}}, "telemetry.spans.keep is [1]; it must be a list of texts"),
    ({"spans": {"around": -1}}, "telemetry.spans.around is -1; it must be a whole number from 0 to 1000"),
    (
        {"export_spans": {"not": ["a"]}},
        "telemetry.export_spans.not (with the value ['a']) is not an option. Known: except, only",
    ),
    ({"export_spans": {"only": [1]}}, "telemetry.export_spans.only is [1]; it must be a list of texts"),
    (
        {"diagnostics": {"nann": "off"}},
        "telemetry.diagnostics.nann: 'nann' is not a kind of finding; did you mean 'nan'?",
    ),
    ({"diagnostics": {5: "off"}}, "telemetry.diagnostics.5: 5 is not a kind of finding"),
    (
        {"diagnostics": {"nan": "loud"}},
        "telemetry.diagnostics.nan is 'loud'; it must be info, warning, critical or off",
    ),
    (
        {"on_finding": {"nann": "stop"}},
        "telemetry.on_finding.nann: 'nann' is not a kind of finding; did you mean 'nan'?",
    ),
    (
        {"on_finding": {"nan": "explode"}},
        "on_finding.nan is 'explode'; it must be one of save, stop, save_and_stop",
    ),
    ({"on_finding": {"overfit": "stop"}}, "add `diagnostics: {overfit: critical}`"),
    ({"on_finding": {"nan": "stop"}, "control": False}, "while telemetry.control is false"),
    ({"on_finding": {"nan": "stop"}, "diagnostics": False}, "while telemetry.diagnostics is false"),
    ({"errors": {"output_lines": -1}}, "errors.output_lines is -1; it must be "),
    ({"errors": {"hang_after": 0}}, "errors.hang_after is 0; it must be "),
    ({"messages": [{"url_env": "A"}]}, "messages[0].to is required; it must be "),
    ({"messages": [{"to": "slack", "url_env": "A"}, {"to": "fax"}]}, "messages[1].to is 'fax'; it must be "),
    ({"messages": {"to": "slack", "when": ["lunch"]}}, "messages[0].when is 'lunch'; it must be "),
    ({"completions": {"interval": 0}}, "completions.interval is 0; it must be "),
    ({"profiling": {"min_duration_ms": -1}}, "profiling.min_duration_ms is -1; it must be "),
    ({"usage_reports": True}, "usage_reports.host is None; it must be "),
    (
        {"usage_reports": {"host": "http://a.example"}},
        "usage_reports.host is 'http://a.example'; it must be ",
    ),
    (
        {"errors": {"signal": True}},
        "errors.signal (with the value True) is not an option; did you mean 'signals'?",
    ),
    (
        {"completions": {"every": 5}},
        "completions.every (with the value 5) is not an option. Known: buffer",
    ),
    ({"usage_reports": {"key": "phc_x"}}, "usage_reports.key is not an option; did you mean 'key_env'?"),
]


@pytest.mark.parametrize(("block", "said"), WRONG_WITHIN, ids=[said for _, said in WRONG_WITHIN])
def test_what_is_wrong_inside_a_block_is_refused_by_its_whole_name(block, said):
    with pytest.raises(OptionsError) as refusal:
        TelemetryOptions.from_mapping(block)

    assert str(refusal.value).startswith("telemetry.")
    assert said in str(refusal.value)
    assert "phc_x" not in str(refusal.value)


@pytest.mark.parametrize(
    ("typed", "meant"), [("log_evry", "log_every"), ("logdir", "log_dir"), ("tag", "tags")]
)
def test_a_misspelt_key_is_refused_with_what_was_probably_meant(typed, meant):
    with pytest.raises(OptionsError) as refusal:
        TelemetryOptions.from_mapping({typed: 5})

    assert f"telemetry.{typed}" in str(refusal.value)
    assert f"did you mean '{meant}'?" in str(refusal.value)
    assert "value 5" in str(refusal.value)
    assert all(name in str(refusal.value) for name in KNOWN)


@pytest.mark.parametrize("key", ["zzz", "", 5, None, ("a",), "x" * 5000])
def test_a_key_that_is_nothing_of_ours_is_refused(key):
    with pytest.raises(OptionsError, match="is not an option") as refusal:
        TelemetryOptions.from_mapping({key: 1})

    assert "did you mean" not in str(refusal.value)
    assert len(str(refusal.value)) < 1000


def test_what_a_script_says_is_checked_like_what_a_block_says():
    with pytest.raises(OptionsError, match="did you mean 'log_every'"):
        TelemetryOptions.from_mapping({}, log_evry=5)
    with pytest.raises(OptionsError, match="did you mean 'log_every'"):
        TelemetryOptions().changed(log_evry=5)
    with pytest.raises(OptionsError, match=r"telemetry\.log_every is 0"):
        TelemetryOptions().changed(log_every=0)
    with pytest.raises(OptionsError, match=r"telemetry\.log_every is 0"):
        TelemetryOptions(log_every=0)


def test_paths_and_lists_are_taken_from_a_script_as_they_come():
    for options in (
        TelemetryOptions(log_dir=Path("a/b"), tags=["x"], tensorboard_dir=Path("t")),
        TelemetryOptions().changed(log_dir=Path("a/b"), tags=["x"], tensorboard_dir=Path("t")),
        TelemetryOptions.from_mapping({"tags": ["x"]}, log_dir=Path("a/b"), tensorboard_dir=Path("t")),
    ):
        assert (options.log_dir, options.tags, options.tensorboard_dir) == (str(Path("a/b")), ("x",), "t")


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.text())


@settings(max_examples=longer(25, 60), deadline=None)
@given(block=st.dictionaries(st.sampled_from(KNOWN), anything, max_size=4))
def test_any_block_is_taken_or_refused_and_never_worse(block):
    try:
        TelemetryOptions.from_mapping(block)
    except OptionsError:
        pass


# ---------------------------------------------------------------- where the block is


def training(process=None, config=None, top=None, **of_process):
    """Return a training YAML with a `telemetry:` block at some of the three places."""
    job = {
        "job": "extension",
        "config": {"name": "greyjacket", "process": [{"type": "sd_trainer", **of_process}]},
    }
    for place, block in ((job["config"]["process"][0], process), (job["config"], config), (job, top)):
        if block is not None:
            place["telemetry"] = block
    return job


INNER, MIDDLE, OUTER = {"log_every": 1}, {"log_every": 2, "csv": False}, {"log_every": 3, "share": True}
WANDB = {"use_wandb": True, "project_name": "flux", "run_name": "first", "verbose": True}
OFTEN = {"log_every": 100}


@pytest.mark.parametrize(
    ("config", "script", "expected"),
    [
        # The innermost block, of the first process that has one, is not mixed with the others.
        (training(INNER, MIDDLE, OUTER), {}, INNER),
        (training(None, MIDDLE, OUTER), {}, MIDDLE),
        (training(None, None, OUTER), {}, OUTER),
        ({"config": {"process": [{"type": "a"}, {"telemetry": INNER}, {"telemetry": MIDDLE}]}}, {}, INNER),
        ({"config": {"process": {"telemetry": INNER}}}, {}, INNER),
        # Without a block nothing is logged, unless the script wants it.
        (training(), {}, {"enabled": False}),
        ({}, {}, {"enabled": False}),
        (training(), {"enabled": True}, {}),
        (training(), {"enabled": True, "log_every": 7}, {"log_every": 7}),
        # It may be a word.
        (training(False), {}, {"enabled": False}),
        (training(True), {}, {}),
        ({"config": {"process": [{"telemetry": None}]}}, {}, {}),
        (training({}), {}, {}),
        (training({"enabled": False}), {}, {"enabled": False}),
        (training(False, {"enabled": True}, {"enabled": True}), {}, {"enabled": False}),
        # What ai-toolkit's own keys say of the process that has the block, which the defaults do not silence.
        (training({}, log_dir="/tb"), {}, {"tensorboard": True, "tensorboard_dir": "/tb"}),
        (
            {"config": {"process": [{"log_dir": "other"}, {"telemetry": {}, "log_dir": "mine"}]}},
            {},
            {"tensorboard": True, "tensorboard_dir": "mine"},
        ),
        (
            training({"tensorboard": False}, log_dir="/tb"),
            {},
            {"tensorboard": True, "tensorboard_dir": "/tb"},
        ),
        (training({"tensorboard": True}, log_dir="/tb"), {}, {"tensorboard": True}),
        (training({"wandb": False}, logging={"use_wandb": True}), {}, {"wandb": True}),
        (
            training({}, logging=WANDB),
            {},
            {"wandb": True, "wandb_project": "flux", "wandb_run_name": "first"},
        ),
        (training({}, logging=OFTEN), {}, OFTEN),
        (training(INNER, logging=OFTEN), {}, INNER),
        (training(INNER, logging=OFTEN), {"log_every": 6}, {"log_every": 6}),
    ],
)
def test_the_options_of_a_training_are_those_of_its_block_its_own_keys_and_the_script(
    config, script, expected
):
    assert options_from_config(config, **script) == TelemetryOptions(**expected)


@pytest.mark.parametrize("block", ["on", 5, ["enabled"], 0.5])
@pytest.mark.parametrize(
    ("place", "said"), [("process", "config.process[0]"), ("config", "config"), ("top", "top level")]
)
def test_a_block_that_is_no_mapping_is_refused_with_its_place(block, place, said):
    with pytest.raises(OptionsError) as refusal:
        options_from_config(training(**{place: block}))

    assert said in str(refusal.value)
    assert repr(block) in str(refusal.value)


@pytest.mark.parametrize(
    "config",
    [
        {"config": None},
        {"config": []},
        {"config": {"process": None}},
        {"config": {"process": "text"}},
        {"config": {"process": [None, 5, "x"]}},
        {"config": {"process": []}, "telemetry": None},
    ],
)
def test_a_yaml_of_an_odd_shape_is_looked_through(config):
    options_from_config(config)
    run_name_from_config(config)


# ---------------------------------------------------------------- ai-toolkit's own keys


@pytest.mark.parametrize(
    ("of_process", "said"),
    [
        ({"logging": {"log_every": 0}}, "logging.log_every is 0; it must be a whole number"),
        ({"logging": {"log_every": "often"}}, "logging.log_every is 'often'"),
        ({"logging": {"project_name": ["x"]}}, "logging.project_name is ['x']"),
        ({"log_dir": 5}, "log_dir is 5"),
    ],
)
def test_a_wrong_key_of_theirs_is_named_as_the_yaml_has_it(of_process, said):
    with pytest.raises(OptionsError) as refusal:
        options_from_config(training({}, **of_process))

    assert said in str(refusal.value)


# ---------------------------------------------------------------- the name


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"config": {"name": "greyjacket"}}, "greyjacket"),
        ({"config": {"name": "inner"}, "name": "outer"}, "inner"),
        ({"name": "outer"}, "outer"),
        ({"config": {"name": 7}}, "7"),
        ({"config": {"name": 1.5}}, "1.5"),
        ({"config": {"name": datetime.date(2024, 1, 2)}}, "2024-01-02"),
        ({"config": {"name": "../x"}}, "../x"),
        ({"config": {"name": ""}}, None),
        ({"config": {"name": None}}, None),
        ({"config": {"name": True}}, None),
        ({"config": {"name": ["x"]}}, None),
        ({}, None),
    ],
)
def test_a_run_is_called_what_its_yaml_calls_the_job(config, name):
    assert run_name_from_config(config) == name
