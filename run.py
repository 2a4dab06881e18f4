"""Train from a YAML: `python run.py config/examples/train_lora_tiny_cpu_with_telemetry.yaml`."""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":
    # A shell starts a program with `&`, as `make run` does, so that it ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from toolkit.telemetry.trainer.command import main

    raise SystemExit(main(sys.argv[1:]))
