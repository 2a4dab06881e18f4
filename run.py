"""Train from a YAML: `python run.py config/examples/train_lora_tiny_cpu_with_telemetry.yaml`."""

from __future__ import annotations

import sys

from toolkit.telemetry.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main(["train", *sys.argv[1:]]))
