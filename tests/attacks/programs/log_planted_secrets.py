"""Logs secrets wherever a training has them, beside a harmless marker.

python log_planted_secrets.py LOG_DIR files|wandb SECRET...
"""

from __future__ import annotations

import gc
import os
import sys
import weakref

from toolkit.telemetry import TelemetryLogger

TOKEN = os.environ["GIT_TOKEN"]


class Tensor:
    """Holds the memory of a GPU."""


def train(log, seen):
    password = os.environ["MY_SERVICE_PASSWORD"]
    tensor = Tensor()
    seen.append(weakref.ref(tensor))
    raise ValueError(
        f"harmless-marker-5150: cannot reach https://user:{password}@host.example/ with {TOKEN} by {password}"
    )


log = TelemetryLogger(
    "r",
    log_dir=sys.argv[1],
    system=False,
    log_every=1,
    tensorboard=True,
    one_logger_file=True,
    **({"wandb": True} if sys.argv[2] == "wandb" else {}),
)
log.log_start(
    config={
        "name": "harmless-marker-5150",
        "hf_token": os.environ["HF_TOKEN"],
        "api": {"key": "k-4f6Jq0ZpX2vT9bLr"},
        "url": f"https://me:{os.environ['MY_SERVICE_PASSWORD']}@db.example/x",
        "args": [TOKEN],
        TOKEN: 1,
        "note": f"bearer {os.environ['HF_TOKEN']}",
    }
)
for step in range(3):
    log.log_step(step, train_loss=1.0, note=f"harmless-marker-5150 {TOKEN}")
with log.span("harmless-marker-5150", attributes={"header": f"Authorization: Bearer {TOKEN}"}):
    pass
log.log_completion(1, prompt=f"harmless-marker-5150 {TOKEN}", completion=os.environ["MY_SERVICE_PASSWORD"])
log.log_event("custom", text=f"harmless-marker-5150 {os.environ['WANDB_API_KEY']}", argv=sys.argv)
seen = []
try:
    with log.capture_errors():
        train(log, seen)
except ValueError:
    pass
gc.collect()
print("ALIVE", seen[0]() is not None)
log.close()
