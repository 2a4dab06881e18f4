"""A script that has planted values everywhere a training can have them; a test runs it as a process of its own.

Arguments: where to log, then the planted values and, behind `--harmless`, the others.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.labels import Labels, write_labels

PATIENCE_S = 60.0
"""For all that has to be written at the end, on a slow machine."""
ERRORS_A_RUN = 80
"""A run keeps the message of so many different errors, and counts the others."""


def train(log, planted, harmless):
    for name, values in (("planted", planted), ("harmless", harmless)):
        numbered = {f"setting_{number}": value for number, value in enumerate(values)}
        log.log_event(f"{name}_config", config=[numbered])
        log.log_event(f"{name}_keys", given=[{value: number for number, value in enumerate(values)}])
        log.log_start(config={"list": values}, note=f"see {name}")
        log.log_table(name, [{"number": 1, "remark": value, "more": [value]} for value in values])
        log.summary[name] = values[:100]
        for step, value in enumerate(values):
            log.log_step(step, train_loss=0.5, remark=value)
            log.log_eval(step, {"remark": value})
            log.log_sample(step, f"samples/step_{step}.png", prompt=f"a photo of {value} in the rain")
            log.log_completion(step, prompt=f"say {value}", completion=value, reward=0.5)
            with log.span("work", remark=value):
                pass


def fail(log, functions):
    for function in functions:
        try:
            with log.capture_errors():
                function()
        except ValueError as error:
            # The next error record repeats the last lines of output.
            print(f"at {error} now")


def functions_that_fail(folder, values):
    """Return a function for each value that raises with it, and has it in a line of its source."""
    messages = [f"could not use {value}: stopped" for value in values]
    lines = [f"def fail_{n}():\n    raise ValueError({message!r})\n" for n, message in enumerate(messages)]
    path = folder / "steps_that_fail.py"
    path.write_text("\n".join(lines), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("steps_that_fail", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [getattr(module, f"fail_{n}") for n in range(len(values))]


def write_notes(folder, planted, harmless):
    notes = "\n".join(["Seen:", *planted, *harmless])
    write_labels(folder, Labels(display_name=planted[0], tags=(planted[0], "plain"), notes=notes))


def main(arguments):
    log_dir, *values = arguments
    middle = values.index("--harmless")
    planted, harmless = values[:middle], values[middle + 1 :]
    failing = functions_that_fail(Path(log_dir).parent, [*planted, *harmless])
    for first in range(0, len(failing), ERRORS_A_RUN):
        with TelemetryLogger(
            f"failures from {first}",
            log_dir=log_dir,
            system=False,
            close_timeout=PATIENCE_S,
        ) as log:
            fail(log, failing[first : first + ERRORS_A_RUN])
    with TelemetryLogger(
        f"run of {planted[0]}",
        log_dir=log_dir,
        log_every=1,
        tags=tuple(text[:60] for text in planted[:40]),
        project=planted[1],
        spans="all",
        one_logger_file=True,
        tensorboard=True,
        completions={"buffer": 1_000},
        close_timeout=PATIENCE_S,
    ) as log:
        train(log, planted, harmless)
        # A line of the program itself, which the stack of the error repeats.
        raise RuntimeError(
            "password = 'planted-In-A-Line-4711'"
        )  # https://bob:planted-In-A-Line-4711@example.com


if __name__ == "__main__":
    main(sys.argv[1:])
