"""The configuration of a job: any value may be a function, may come late, and is checked at once."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from nv_one_logger.api.config import OneLoggerConfig
from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig

from tests.telemetry.logged import records_of
from tests.telemetry.training.event_reader import events, train
from toolkit.telemetry import OptionsError
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.training import ConfigError, TrainingConfig
from toolkit.telemetry.logger.training.config import ConfigSource
from toolkit.telemetry.runfolder.manifest import read_manifest

GOOD = {
    "application_name": "greyjacket",
    "perf_tag": ["a100", "bf16"],
    "session_tag": "night",
    "is_baseline_run": True,
    "custom_metadata": {"branch": "main"},
    "world_size": 8,
    "global_batch_size": 64,
    "micro_batch_size": 2,
    "seq_length": 4096,
    "flops_per_sample": 10**12,
    "train_iterations_target": 1000,
    "train_samples_target": 64_000,
    "log_every_n_train_iterations": 10,
    "is_log_throughput_enabled": True,
    "save_checkpoint_strategy": "async",
    "is_train_iterations_enabled": False,
    "is_validation_iterations_enabled": False,
    "is_test_iterations_enabled": False,
    "is_save_checkpoint_enabled": False,
    "summary_data_schema_version": "2.1.0",
}


def source(**given):
    made = ConfigSource(Guard())
    made.take(given)
    return made


def test_every_field_can_be_given_as_a_value_a_function_or_by_one_loggers_spelling():
    assert set(GOOD) == {field.name for field in fields(TrainingConfig)}

    as_values = source(**GOOD).now()
    as_functions = source(**{name: lambda value=value: value for name, value in GOOD.items()}).now()
    by_their_spelling = source(**{f"{name}_or_fn": value for name, value in GOOD.items()}).now()

    assert as_values == as_functions == by_their_spelling
    assert as_values.perf_tag == ("a100", "bf16")
    assert as_values != TrainingConfig()


def test_the_whole_configuration_of_one_logger_is_taken():
    training = TrainingTelemetryConfig(
        perf_tag_or_fn="a100", global_batch_size_or_fn=lambda: 64, custom_metadata={"branch": "main"}
    )
    theirs = OneLoggerConfig(
        application_name="greyjacket",
        world_size_or_fn=8,
        session_tag_or_fn="night",
        custom_metadata={"team": "vision"},
        summary_data_schema_version="3.0.0",
        error_handling_strategy="disable_quietly_and_report_metric_error",
        telemetry_config=training,
    )
    given = {name: getattr(theirs, name) for name in type(theirs).model_fields}

    found = source(**given).now()
    assert source(**theirs.model_dump()).now() == found

    assert (found.application_name, found.world_size, found.session_tag) == ("greyjacket", 8, "night")
    assert (found.perf_tag, found.global_batch_size) == ("a100", 64)
    assert found.custom_metadata == {"team": "vision", "branch": "main"}
    assert found.summary_data_schema_version == "3.0.0"
    assert source(telemetry_config={"perf_tag": "b"}).now().perf_tag == "b"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"telemetry_config": 7}, "telemetry_config is 7; it must be OneLogger's TrainingTelemetryConfig"),
        ({"telemetry_config": {"perf_tags": "a"}}, "did you mean 'perf_tag'"),
        ({"telemetry_config": {"custom_metadata": {"a": 1}}, "custom_metadata": 7}, "custom_metadata is 7"),
    ],
)
def test_a_telemetry_config_of_one_loggers_is_checked_like_any_other(given, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        source(**given)


def test_every_key_of_one_loggers_is_known():
    for config in (OneLoggerConfig, TrainingTelemetryConfig):
        ignored = {"error_handling_strategy", "logger_config", "enable_for_current_rank"}
        for name in config.model_fields.keys() - ignored:
            with pytest.raises(ConfigError) as refused:
                source(**{name: object()})
            assert "is not an option" not in str(refused.value), name


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("global_batch_size", 0, "a whole number of 1 or more"),
        ("global_batch_size", True, "a whole number of 1 or more"),
        ("global_batch_size", 2.5, "a whole number of 1 or more"),
        ("world_size", "8", "a whole number of 1 or more"),
        ("log_every_n_train_iterations", None, "a whole number of 1 or more"),
        ("flops_per_sample", float("nan"), "a number above 0"),
        ("flops_per_sample", float("inf"), "a number above 0"),
        ("flops_per_sample", -1, "a number above 0"),
        ("perf_tag", [], "a text that is not empty, or a list of such"),
        ("perf_tag", ["a", ""], "a text that is not empty, or a list of such"),
        ("session_tag", " ", "a text that is not empty"),
        ("save_checkpoint_strategy", "later", "one of 'sync', 'async'"),
        ("is_baseline_run", "yes", "true or false"),
        ("custom_metadata", {1: "a"}, "a mapping whose keys are texts"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_what_is_allowed(name, value, allowed):
    with pytest.raises(ConfigError) as refused:
        source(**{name: value})

    assert isinstance(refused.value, OptionsError)
    assert name in str(refused.value)
    assert repr(value)[:200] in str(refused.value)
    assert allowed in str(refused.value)


def test_an_unknown_key_is_refused_with_the_one_that_was_meant(log):
    with pytest.raises(ConfigError, match="did you mean 'global_batch_size'"):
        log.training.configure(globl_batch_size_or_fn=8)
    with pytest.raises(ConfigError, match="given twice"):
        log.training.configure(seq_length=8, seq_length_or_fn=8)


def test_a_function_that_fails_or_returns_nonsense_is_reported_once_and_left_out(make):
    log = make()

    def fails():
        raise RuntimeError("the loader is not there yet")

    log.training.configure(global_batch_size=fails, seq_length=lambda: -1, micro_batch_size=lambda: 2)
    log.training.configure(world_size=4)

    recorded = events(log, "update_training_telemetry_config")
    assert [set(event) & {"global_batch_size", "seq_length", "micro_batch_size"} for event in recorded] == [
        {"micro_batch_size"},
        {"micro_batch_size"},
    ]
    assert log.guard.counts == {
        "calling the function given as global_batch_size: RuntimeError": 2,
        "calling the function given as seq_length: ConfigError": 2,
    }


def test_each_call_is_an_event_of_the_application_or_the_run(log):
    log.training.configure(perf_tag="a")
    with log.training.application() as application:
        log.training.configure(global_batch_size=4)

    recorded = [event for event in records_of(log, "span_event") if event["name"].startswith("update")]
    assert [event.get("span_id") for event in recorded] == [None, application.id, application.id]
    assert [event["attributes"].get("global_batch_size") for event in recorded] == [None, None, 4]
    assert {event["attributes"]["perf_tag"] for event in recorded} == {"a"}


def test_a_total_over_some_of_the_iterations_is_not_given_as_one_over_all(log, clock):
    training = log.training
    training.configure(log_every_n_train_iterations=2)
    with training.training_loop():
        train(log, clock, [1.0, 1.0])
        training.configure(global_batch_size=8)
        train(log, clock, [1.0, 1.0])

    first, second = events(log, "training_metrics_update")
    assert (first["num_iterations"], second["num_iterations"]) == (2, 4)
    assert "num_train_samples" not in first.keys() | second.keys()


def test_a_batch_size_function_is_called_for_each_iteration(log, clock):
    sizes = iter([2, 2, 4, 6])
    log.training.configure(global_batch_size=lambda: next(sizes), seq_length=10)
    with log.training.training_loop():
        train(log, clock, [1.0, 1.0])

    [recorded] = events(log, "training_metrics_update")
    assert recorded["num_train_samples"] == 4 + 6
    assert recorded["avg_batch_size"] == 5.0
    assert recorded["train_tokens"] == 100


def test_tags_that_are_known_late_reach_the_manifest(log):
    log.training.configure(perf_tag=lambda: ["a", "b"], session_tag="night")
    log.close()

    session = read_manifest(log.run_folder).latest
    assert (session.perf_tag, session.session_tag) == ("a,b", "night")
