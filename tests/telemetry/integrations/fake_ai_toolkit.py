"""A fake of ai-toolkit's trainers: their hooks in their order, around a model of two numbers.

It is not ai-toolkit. It has the names, the order of the calls and the traps that the attached hooks rely on, so that
they can be tried where ai-toolkit is not installed. test_ai_toolkit_checkout.py tries them on the real one.
This file is also copied into a fake checkout, so it imports nothing of this project.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import OrderedDict, deque
from contextlib import contextmanager
from types import SimpleNamespace


class Timer:
    def __init__(self):
        self.timers = {}
        self.active = {}
        self.current = None

    def start(self, name):
        self.timers.setdefault(name, deque(maxlen=10))
        self.active[name] = time.time()

    def stop(self, name):
        self.timers[name].append(time.time() - self.active.pop(name))

    def cancel(self, name):
        self.active.pop(name, None)

    def __call__(self, name):
        self.current = name
        self.start(name)
        return self

    def __enter__(self):
        return None

    def __exit__(self, kind, error, trace):
        (self.stop if kind is None else self.cancel)(self.current)


class Accelerator:
    def __init__(self):
        self.is_main_process = os.environ.get("RANK", "0") == "0"
        self.num_processes = 1
        self.ended = 0

    @contextmanager
    def accumulate(self, modules):
        yield

    def clip_grad_norm_(self, gradients, longest):
        norm = math.sqrt(sum(gradient * gradient for gradient in gradients))
        if norm > longest:
            gradients[:] = [gradient * longest / norm for gradient in gradients]
        return norm

    def wait_for_everyone(self):
        pass

    def end_training(self):
        self.ended += 1


class Log:
    """Like ai-toolkit's own log: what a test compares with."""

    def __init__(self):
        self.pending, self.committed, self.finished = {}, {}, 0

    def start(self):
        pass

    def log(self, values):
        self.pending.update(values)

    def commit(self, step):
        self.committed.setdefault(step, {}).update(self.pending)
        self.pending = {}

    def finish(self):
        self.finished += 1


class Bar:
    def __init__(self):
        self.closed = 0

    def pause(self):
        pass

    unpause = pause

    def close(self):
        self.closed += 1


class Parameter(float):
    def numel(self):
        return 1


class Job:
    def __init__(self, config):
        self.raw_config = config
        self.config = config["config"]
        self.name = self.config["name"]
        self.meta = {}


class BaseSDTrainProcess:
    def __init__(self, process_id, job, config):
        self.process_id, self.job, self.config, self.name = process_id, job, config, job.name
        self.timer = Timer()
        self.accelerator = Accelerator()
        self.save_root = os.path.join(config["training_folder"], self.name)
        os.makedirs(self.save_root, exist_ok=True)
        self.training_seed = config.get("training_seed")
        self.train_config = SimpleNamespace(
            **{
                "batch_size": 2,
                "gradient_accumulation": 1,
                "optimizer": "adamw",
                "lr": 0.1,
                "lr_scheduler": "constant",
                "dtype": "float32",
                "max_grad_norm": 1.0,
                "validate_every": 0,
                "free_u": False,
                "unload_text_encoder": False,
                "disable_sampling": False,
                "skip_first_sample": False,
                **config["train"],
            }
        )
        self.save_config = SimpleNamespace(save_every=config.get("save", {}).get("save_every", 0))
        self.sample_config = SimpleNamespace(**{"sample_every": 0, "prompts": [], **config.get("sample", {})})
        self.first_sample_config = self.sample_config
        self.model_config = SimpleNamespace(arch="stand_in")
        self.logging_every = config.get("logging", {}).get("log_every", 1)
        self.logger = Log()
        self.progress_bar = None
        self.embed_config = None
        self.ema = None
        self.step_num = self.start_step = self.epoch_num = self.last_save_step = 0
        self.num_consecutive_oom = 0
        self.additional_logs = {}
        self.errors, self.calls = [], []

    # The hooks that subclasses override.

    def hook_before_model_load(self):
        self.calls.append("hook_before_model_load")

    def hook_after_model_load(self):
        self.calls.append("hook_after_model_load")

    def hook_add_extra_train_params(self, params):
        return params

    def before_dataset_load(self):
        self.calls.append("before_dataset_load")

    def hook_before_train_loop(self):
        self.logger.start()

    def hook_train_loop(self, batches):
        return 0.0

    def sample_step_hook(self, number, total):
        pass

    def post_save_hook(self, path):
        self.calls.append(f"post_save_hook {os.path.basename(path)}")

    def end_step_hook(self):
        pass

    def done_hook(self):
        self.calls.append("done_hook")

    def on_error(self, error):
        self.errors.append(error)

    def ensure_params_requires_grad(self, force=False):
        pass

    # What is done.

    def get_latest_save_path(self):
        found = [name for name in os.listdir(self.save_root) if name.startswith(self.name)]
        paths = [os.path.join(self.save_root, name) for name in found]
        return max(paths, key=lambda path: os.stat(path).st_mtime_ns) if paths else None

    def load_weights(self, path):
        with open(path) as file:
            saved = json.load(file)
        self.network.weights[:] = saved["weights"]
        self.step_num = self.start_step = saved["step"]
        self.epoch_num = saved["epoch"]

    def validate(self):
        if not self.accelerator.is_main_process:
            return
        self.additional_logs["val/loss"] = self.network.loss([0.5])

    def save(self, step=None):
        if not self.accelerator.is_main_process:
            return
        number = "" if step is None else f"_{str(step).zfill(9)}"
        path = os.path.join(self.save_root, f"{self.job.name}{number}.safetensors")
        earlier = self.get_latest_save_path()
        at = os.stat(earlier).st_mtime_ns if earlier is not None else 0
        with open(path, "w") as file:
            saved = {"step": self.step_num, "epoch": self.epoch_num, "weights": self.network.weights}
            json.dump(saved, file)
        # File times are milliseconds apart at best, and a resumed job takes the newest.
        while os.stat(path).st_mtime_ns <= at:
            os.utime(path)
        path = os.path.join(self.save_root, "optimizer.pt")
        with open(path, "w") as file:
            file.write("state")
        self.post_save_hook(path)

    def sample(self, step=None, is_first=False):
        if not self.accelerator.is_main_process:
            return
        folder = os.path.join(self.save_root, "samples")
        os.makedirs(folder, exist_ok=True)
        for index, prompt in enumerate(self.sample_config.prompts):
            name = f"{time.time_ns() // 1000}__{str(step).zfill(9)}_{index}.jpg"
            with open(os.path.join(folder, name), "w") as file:
                file.write(prompt)
            self.sample_step_hook(index, len(self.sample_config.prompts))

    def run(self):
        train = self.train_config
        self.hook_before_model_load()
        self.network = Network()
        self.sd = SimpleNamespace(unet=self.network)
        self.hook_after_model_load()
        latest = self.get_latest_save_path()
        if latest is not None:
            self.load_weights(latest)
        self.params = self.hook_add_extra_train_params([{"params": [Parameter(1.0), Parameter(2.0)]}])
        self.optimizer = SimpleNamespace(param_groups=[{"lr": train.lr}])
        self.before_dataset_load()
        data = [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]
        self.hook_before_train_loop()
        if self.step_num <= 1 and not train.skip_first_sample:
            self.sample(self.step_num)
        self.progress_bar = Bar()
        batches = iter(data)
        for step in range(self.step_num, train.steps):
            self.timer.start("train_loop")
            self.step_num = step
            batch_list = []
            for _ in range(train.gradient_accumulation):
                try:
                    with self.timer("get_batch"):
                        batch = next(batches)
                except StopIteration:
                    with self.timer("reset_batch"):
                        batches = iter(data)
                        self.epoch_num += 1
                    with self.timer("get_batch"):
                        batch = next(batches)
                batch_list.append(batch)
            losses, ran_out = None, False
            try:
                with self.accelerator.accumulate([]):
                    losses = self.hook_train_loop(batch_list)
            except RuntimeError as error:
                if "CUDA out of memory" not in str(error):
                    raise
                ran_out = True
            self.num_consecutive_oom = self.num_consecutive_oom + 1 if ran_out else 0
            self.timer.stop("train_loop")
            if train.validate_every and step % train.validate_every == 0:
                with self.timer("validate"):
                    self.validate()
            if step != self.start_step:
                if self.save_config.save_every and step % self.save_config.save_every == 0:
                    self.save(step)
                if self.sample_config.sample_every and step % self.sample_config.sample_every == 0:
                    self.sample(step)
                    # ai-toolkit collects garbage and empties the GPU's cache here.
                    time.sleep(0.05)
            if step % self.logging_every == 0:
                self.logger.log({"learning_rate": train.lr})
                self.logger.log({f"loss/{name}": value for name, value in (losses or {}).items()})
                self.logger.log(self.additional_logs)
                self.additional_logs = {}
            self.logger.commit(step)
            self.step_num = step + 1
            self.end_step_hook()
        self.progress_bar.close()
        self.save()
        if not train.disable_sampling:
            self.sample(self.step_num)
        self.logger.finish()
        self.accelerator.end_training()
        self.trained = self.network.weights
        del self.sd, self.network
        self.done_hook()


class Network:
    def __init__(self):
        self.weights = [1.0, 2.0]

    def parameters(self):
        return [Parameter(weight) for weight in self.weights]

    def loss(self, batch):
        return sum((self.weights[0] + self.weights[1] * x) ** 2 for x in batch) / len(batch)

    def gradients(self, batch):
        errors = [self.weights[0] + self.weights[1] * x for x in batch]
        return [
            2 * sum(errors) / len(batch),
            2 * sum(error * x for error, x in zip(errors, batch, strict=True)) / len(batch),
        ]


class SDTrainer(BaseSDTrainProcess):
    """`train.trouble` maps a step to what goes wrong there: oom, fail, or the number that its loss is."""

    def hook_train_loop(self, batches):
        trouble = self.config["train"].get("trouble", {}).get(str(self.step_num))
        if trouble == "oom":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if trouble == "fail":
            raise ValueError("the picture is broken")
        batch = [x for part in batches for x in part]
        with self.timer("predict_unet"):
            loss = self.network.loss(batch)
        with self.timer("backward"):
            gradients = self.network.gradients(batch)
        groups = [gradients[:1], gradients[1:]]
        for group in groups:
            self.accelerator.clip_grad_norm_(group, self.train_config.max_grad_norm)
        with self.timer("optimizer_step"):
            for index, (gradient,) in enumerate(groups):
                self.network.weights[index] -= self.train_config.lr * gradient
        on_step = self.config.get("on_step")
        if on_step is not None:
            on_step(self)
        return OrderedDict({"loss": loss if trouble is None else float(trouble), "extra": 2 * loss})
