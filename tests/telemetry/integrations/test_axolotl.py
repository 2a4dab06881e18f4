"""Runs against Axolotl if it is installed, else against a fake that calls the hooks in Axolotl's order.

Axolotl pins its packages, so it has an environment of its own; these tests run there unchanged.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import shutil
import sys
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from tests.lazy_module import LazyModule
from tests.project.markdown import INTEGRATIONS, blocks
from tests.records import read_records
from tests.telemetry.integrations import control_requests
from tests.telemetry.integrations.tiny_language_model import make_examples, make_model, make_tokenizer
from tests.telemetry.logged import PATIENCE_S
from toolkit.telemetry import TelemetryLogger

transformers = LazyModule("transformers")
odd_trainers = LazyModule("tests.telemetry.integrations.odd_trainers")

MODULE = "toolkit.telemetry.integrations.axolotl"
PLUGIN = f"{MODULE}.TelemetryPlugin"
IS_REAL = importlib.util.find_spec("axolotl") is not None
only_real = pytest.mark.skipif(not IS_REAL, reason="axolotl is not installed: only the fake was tested")
os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"


class StandInPlugin:
    """The hooks that Axolotl 0.19 documents for a plugin, none of which does anything."""

    def register(self, cfg):
        pass

    def get_input_args(self):
        pass

    def load_datasets(self, cfg, preprocess=False):
        pass

    def pre_model_load(self, cfg):
        pass

    def post_model_build(self, cfg, model):
        pass

    def pre_lora_load(self, cfg, model):
        pass

    def post_lora_load(self, cfg, model):
        pass

    def post_model_load(self, cfg, model):
        pass

    def post_trainer_create(self, cfg, trainer):
        pass

    def add_callbacks_pre_trainer(self, cfg, model):
        return []

    def add_callbacks_post_trainer(self, cfg, trainer):
        return []

    def post_train(self, cfg, model):
        pass

    def post_train_unload(self, cfg):
        pass


class StandInConfig(dict):
    """Axolotl's configuration answers None for a key that it does not have."""

    def to_dict(self):
        return dict(self)


class StandIn:
    """Does what Axolotl's `train` command does, as far as a plugin can see, with the real `Trainer`."""

    def __init__(self):
        self.plugin = None

    def load(self, **given):
        """Return the checked configuration, with the plugin made and its keys among Axolotl's own."""
        self.plugin = importlib.import_module(MODULE).TelemetryPlugin()
        self.plugin.register(given)
        module, _, name = self.plugin.get_input_args().rpartition(".")
        keys = getattr(importlib.import_module(module), name)

        class Own(BaseModel):
            model_config = ConfigDict(extra="allow")

        class Merged(Own, keys):
            pass

        return StandInConfig(Merged(**given).model_dump(exclude_none=True))

    def train(self, cfg, callbacks=(), through_command=True):
        plugin, saved = self.plugin, cfg["output_dir"]
        if through_command:
            assert plugin.load_datasets(cfg, preprocess=False) is None
        plugin.pre_model_load(cfg)
        model = make_model()
        plugin.post_model_build(cfg, model)
        plugin.pre_lora_load(cfg, model)
        if cfg.get("adapter"):
            from peft import LoraConfig, get_peft_model

            model = get_peft_model(model, LoraConfig(r=cfg["lora_r"], target_modules=["q_proj", "v_proj"]))
        plugin.post_lora_load(cfg, model)
        plugin.post_model_load(cfg, model)
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=saved,
                per_device_train_batch_size=cfg["micro_batch_size"],
                gradient_accumulation_steps=cfg["gradient_accumulation_steps"],
                max_steps=cfg["max_steps"],
                logging_steps=cfg["logging_steps"],
                save_steps=cfg["save_steps"],
                eval_strategy="steps" if cfg.get("eval_steps") else "no",
                eval_steps=cfg.get("eval_steps"),
                learning_rate=cfg["learning_rate"],
                lr_scheduler_type=cfg["lr_scheduler"],
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=make_examples(8),
            eval_dataset=make_examples(4),
            callbacks=plugin.add_callbacks_pre_trainer(cfg, model),
        )
        for callback in [*plugin.add_callbacks_post_trainer(cfg, trainer), *callbacks]:
            trainer.add_callback(callback)
        plugin.post_trainer_create(cfg, trainer)
        trainer.train(resume_from_checkpoint=cfg.get("resume_from_checkpoint"))
        plugin.post_train(cfg, trainer.model)
        model.save_pretrained(saved)
        plugin.post_train(cfg, model)
        if through_command:
            plugin.post_train_unload(cfg)
        return trainer


class Real:
    """Axolotl's own `train` command, in this process."""

    @property
    def plugin(self):
        from axolotl.integrations.base import PluginManager

        return PluginManager.get_instance().plugins[PLUGIN]

    def load(self, **given):
        from axolotl.cli.config import load_cfg
        from axolotl.utils.dict import DictDefault

        return load_cfg(DictDefault({"plugins": [PLUGIN], **given}))

    def train(self, cfg, callbacks=(), through_command=True):
        from axolotl.cli.args import TrainerCliArgs
        from axolotl.cli.train import do_train
        from axolotl.common.datasets import load_datasets
        from axolotl.integrations.base import BasePlugin, PluginManager
        from axolotl.train import train

        seen = []

        class Probe(BasePlugin):
            def add_callbacks_post_trainer(self, cfg, trainer):
                seen.append(trainer)
                return list(callbacks)

        PluginManager.get_instance().plugins["probe"] = Probe()
        if through_command:
            do_train(cfg, TrainerCliArgs())
        else:
            train(cfg=cfg, dataset_meta=load_datasets(cfg=cfg, cli_args=TrainerCliArgs()))
        return seen[-1]


@pytest.fixture(scope="module")
def axolotl():
    """Axolotl or its fake; the plugin's module is imported again, with the available base class."""
    if IS_REAL:
        yield Real()
        return
    names = ("axolotl", "axolotl.integrations", "axolotl.integrations.base")
    for name in names:
        sys.modules[name] = ModuleType(name)
    sys.modules["axolotl.integrations.base"].BasePlugin = StandInPlugin
    try:
        yield StandIn()
    finally:
        for name in (*names, MODULE):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """A model, a tokenizer and some sentences on disk, for Axolotl to load."""
    folder = tmp_path_factory.mktemp("material")
    if IS_REAL:
        make_model().save_pretrained(folder / "model")
        make_tokenizer().save_pretrained(folder / "model")
    sentences = ["the sky is blue", "the sky is green", "what colour is the sky", "user is blue"] * 6
    (folder / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences))
    return folder


@pytest.fixture(scope="module")
def config(material):
    """What a YAML says, given the folder that the training writes to."""

    def of(folder, telemetry=None, **given):
        return {
            "base_model": str(material / "model"),
            "datasets": [{"path": str(material / "data.jsonl"), "ds_type": "json", "type": "completion"}],
            "dataset_prepared_path": str(material / "prepared"),
            "output_dir": str(folder / "out"),
            "sequence_len": 32,
            "val_set_size": 0.2,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "max_steps": 4,
            "num_epochs": 2,
            "logging_steps": 1,
            "save_steps": 100,
            "optimizer": "adamw_torch",
            "lr_scheduler": "linear",
            "learning_rate": 0.01,
            "bf16": False,
            "tf32": False,
            "telemetry": {
                "log_dir": str(folder / "logs"),
                "log_every": 1,
                "run_name": "greyjacket",
                "system": False,
                "csv": False,
                "close_timeout": PATIENCE_S,
                **(telemetry or {}),
            },
            **{name: value for name, value in given.items() if value is not None},
        }

    return of


WITH_LORA = {
    "adapter": "lora",
    "lora_r": 4,
    "lora_alpha": 8,
    "lora_target_modules": ["q_proj", "v_proj"],
    # Axolotl's own kernels need a GPU.
    "lora_mlp_kernel": False,
    "lora_qkv_kernel": False,
    "lora_o_kernel": False,
    "lora_embedding_kernel": False,
}


def only_run(folder):
    (run,) = [path.parent for path in (folder / "logs").glob("*/run.json")]
    return run


def records(folder, event=None):
    return read_records(only_run(folder) / "metrics.jsonl", event)


def sessions(folder):
    return json.loads((only_run(folder) / "run.json").read_text())["sessions"]


def ask(axolotl, step, action):
    """Return a callback that writes a request into the control file, and makes the run read it."""

    return odd_trainers.At(step, lambda _: control_requests.ask(axolotl.plugin.log, actions=[action]))


@pytest.fixture(scope="module")
def trained(axolotl, config, tmp_path_factory):
    """A whole training of an adapter: evaluated and saved in the middle and at the end."""
    folder = tmp_path_factory.mktemp("trained")
    tags = {"perf_tag": "tiny", "session_tag": "night"}
    cfg = axolotl.load(**config(folder, tags, save_steps=2, eval_steps=2, **WITH_LORA))
    trainer = axolotl.train(cfg)
    return SimpleNamespace(folder=folder, history=trainer.state.log_history, trainer=trainer)


def test_the_start_record_has_axolotls_configuration(trained):
    start = records(trained.folder, "start")[-1]

    assert start["config"]["lora_alpha"] == 8
    assert start["training_arguments"]["max_steps"] == 4
    assert start["lora_rank"] == 4
    assert (start["batch_size"], start["gradient_accumulation_steps"]) == (2, 2)
    assert start["model_trainable_params"] < start["model_total_params"]
    assert (start["perf_tag"], start["session_tag"]) == ("tiny", "night")
    assert start["run_name"] == "greyjacket"
    assert ("axolotl_version" in start) is IS_REAL


def test_what_comes_before_the_training_is_timed(trained):
    spans = {span["name"]: span for span in records(trained.folder, "span")}

    assert spans["dataloader_init"]["start"] < spans["model_init"]["start"] < spans["training_loop"]["start"]
    assert spans["adapter_load"]["parent_id"] == spans["model_init"]["id"]
    assert spans["adapter_load"]["attributes"] == {"adapter": "lora"}
    startup = sum(record.get("ledger/startup", 0.0) for record in records(trained.folder))
    timed = spans["dataloader_init"]["duration"] + spans["model_init"]["duration"]
    assert startup == pytest.approx(timed, rel=0.05, abs=0.05)


def test_checkpoints_and_axolotls_final_weights_are_recorded(trained):
    checkpoints = records(trained.folder, "checkpoint")
    out = trained.folder / "out"

    assert [entry["checkpoint_path"] for entry in checkpoints] == [
        str(out / "checkpoint-2"),
        str(out / "checkpoint-4"),
        str(out),
    ]
    assert [entry.get("is_final") for entry in checkpoints] == [None, None, True]
    assert checkpoints[-1]["bytes"] >= (out / "adapter_model.safetensors").stat().st_size


def test_weights_of_an_earlier_training_are_not_taken_for_the_new_ones(axolotl, config, tmp_path):
    cfg = axolotl.load(**config(tmp_path, max_steps=1))
    axolotl.train(cfg, through_command=False)
    for path in (tmp_path / "out").glob("*.safetensors"):
        os.utime(path, (1e9, 1e9))
    axolotl.plugin.post_train_unload(StandInConfig(output_dir=str(tmp_path / "out")))

    assert not [entry for entry in records(tmp_path, "checkpoint") if "is_final" in entry]
    assert sessions(tmp_path)[-1]["status"] == "finished"


def test_the_run_ends_as_finished_and_nothing_went_wrong_on_the_way(trained):
    (end,) = records(trained.folder, "end")

    assert (end["status"], end["telemetry_errors"]) == ("finished", 0)
    assert [session["status"] for session in sessions(trained.folder)] == ["finished"]
    assert not [span for span in records(trained.folder, "span") if "unfinished" in span or "error" in span]


def test_a_training_resumes_the_run_of_its_checkpoint(trained, axolotl, config, tmp_path):
    shutil.copytree(trained.folder, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "out/checkpoint-4")
    given = config(tmp_path, save_steps=2, eval_steps=2, **WITH_LORA)
    checkpoint = str(tmp_path / "out/checkpoint-2")
    axolotl.train(axolotl.load(**given, resume_from_checkpoint=checkpoint))

    assert [session["status"] for session in sessions(tmp_path)] == ["finished", "finished"]
    second = [record for record in records(tmp_path) if record["session"] == 2]
    start = [record for record in second if record["event"] == "start"][-1]
    assert start["resumed_from_step"] == 2
    assert [record["global_step"] for record in second if record["event"] == "step"] == [3, 4]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, False),
        ({"auto_resume_from_checkpoints": True}, True),
        ({"resume_from_checkpoint": "out/checkpoint-2"}, True),
        ({"resume_from_checkpoint": "elsewhere/checkpoint-2"}, False),
    ],
    ids=["new", "the newest", "one by name", "one from elsewhere"],
)
def test_the_run_of_a_checkpoint_is_found_where_axolotl_looks_for_it(
    trained, axolotl, tmp_path, monkeypatch, asked, expected
):
    shutil.copytree(trained.folder / "out", tmp_path / "out")
    (tmp_path / "out/checkpoint-of-mine").mkdir()
    monkeypatch.chdir(tmp_path)
    found = sys.modules[MODULE]._run_to_resume({"output_dir": "out", **asked})

    assert found == (
        json.loads((only_run(trained.folder) / "run.json").read_text())["run_id"] if expected else None
    )


def test_a_failure_is_recorded_and_raised_unchanged(axolotl, config, tmp_path):
    error = RuntimeError("the disk of the data is gone")

    def fail(_):
        raise error

    with pytest.raises(RuntimeError) as caught:
        axolotl.train(axolotl.load(**config(tmp_path)), [odd_trainers.At(2, fail)])

    assert caught.value is error
    assert sessions(tmp_path)[-1]["status"] == "failed"
    assert [entry["message"] for entry in records(tmp_path, "error")] == [f"RuntimeError: {error}"]
    assert axolotl.plugin.log is None


@pytest.mark.parametrize(
    ("way_out", "expected"),
    [(KeyboardInterrupt(), "stopped"), (SystemExit(0), "stopped"), (SystemExit(1), "failed")],
    ids=["Ctrl-C", "what Axolotl makes of it", "an exit"],
)
def test_an_interruption_is_no_failure(axolotl, config, tmp_path, way_out, expected):
    def leave(_):
        raise way_out

    with pytest.raises(type(way_out)):
        axolotl.train(axolotl.load(**config(tmp_path)), [odd_trainers.At(2, leave)])

    assert sessions(tmp_path)[-1]["status"] == expected


def test_a_training_without_the_command_is_a_run_too(axolotl, config, tmp_path):
    axolotl.train(axolotl.load(**config(tmp_path, max_steps=2)), through_command=False)
    axolotl.plugin.post_train_unload(StandInConfig(output_dir=str(tmp_path / "out")))

    assert [entry.get("is_final") for entry in records(tmp_path, "checkpoint")][-1] is True
    assert sessions(tmp_path)[-1]["status"] == "finished"


@pytest.mark.parametrize("block", [False, {"enabled": False}], ids=["false", "enabled: false"])
def test_switched_off_it_adds_nothing_and_writes_nothing(axolotl, config, tmp_path, block, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = axolotl.load(**{**config(tmp_path, max_steps=1), "telemetry": block})
    trainer = axolotl.train(cfg)

    assert trainer.state.global_step == 1
    assert not (tmp_path / "logs").exists()
    assert axolotl.plugin.add_callbacks_post_trainer(cfg, trainer) == []
    assert "train" not in vars(trainer)


def test_preparing_data_and_evaluating_make_no_run(axolotl, config, tmp_path):
    cfg = axolotl.load(**config(tmp_path))
    plugin = axolotl.plugin
    plugin.load_datasets(cfg, preprocess=True)
    plugin.pre_model_load(cfg)
    plugin.post_model_load(cfg, None)
    callbacks = plugin.add_callbacks_post_trainer(cfg, SimpleNamespace(train=None))

    assert len(callbacks) == 1
    assert plugin.log is None
    assert not (tmp_path / "logs").exists()


def break_everything(monkeypatch):
    def fail(*_, **__):
        raise ValueError("telemetry is broken")

    for name in ("log_step", "log_start", "log_eval", "log_checkpoint", "start_span", "span", "training"):
        monkeypatch.setattr(TelemetryLogger, name, property(fail) if name == "training" else fail)


def test_a_broken_logger_does_not_stop_the_training(axolotl, config, tmp_path, monkeypatch):
    cfg = axolotl.load(**config(tmp_path, save_steps=2, **WITH_LORA))
    break_everything(monkeypatch)
    trainer = axolotl.train(cfg)

    assert trainer.state.global_step == 4
    assert (tmp_path / "out/adapter_model.safetensors").exists()


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        (
            {"log_evry": 5},
            "telemetry.log_evry (with the value 5) is not an option; did you mean 'log_every'?",
        ),
        ({"log_every": 0}, "telemetry.log_every is 0; it must be a whole number from 1 to 1000000"),
        ({"run_name": 7}, "telemetry.run_name is 7; it must be a non-empty text"),
        ("yes", "telemetry is 'yes'; it must be true, false or a mapping of options"),
    ],
)
def test_a_wrong_block_is_refused_by_axolotls_own_check(axolotl, config, tmp_path, block, sentence):
    with pytest.raises(ValidationError) as caught:
        axolotl.load(**{**config(tmp_path), "telemetry": block})

    (problem,) = caught.value.errors()
    assert problem["loc"] == ("telemetry",)
    assert sentence in problem["msg"]


def test_the_yaml_of_the_document_trains(axolotl, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = yaml.safe_load(blocks(INTEGRATIONS / "axolotl.md", "yaml")[0].text)
    assert shown.pop("plugins") == [PLUGIN]
    axolotl.train(axolotl.load(**{**config(tmp_path, max_steps=1), **shown}))

    assert [entry["status"] for entry in records(tmp_path, "end")] == ["finished"]


@only_real
def test_the_fake_has_the_hooks_of_axolotl():
    from axolotl.integrations.base import BasePlugin

    for name, hook in inspect.getmembers(StandInPlugin, inspect.isfunction):
        theirs = getattr(BasePlugin, name)
        assert list(inspect.signature(hook).parameters) == list(inspect.signature(theirs).parameters), name
