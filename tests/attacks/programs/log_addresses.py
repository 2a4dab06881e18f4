"""Logs the addresses that a run sends to wherever it can, and fails with them.

python log_addresses.py CONFIG ADDRESS...
"""

from __future__ import annotations

import json
import sys

from toolkit.telemetry import TelemetryLogger

config = json.loads(sys.argv[1])
log = TelemetryLogger.from_config(config)
log.log_start(config=config, note=sys.argv[2])
for address in sys.argv[2:]:
    log.log_step(1, train_loss=0.5, remark=f"posted to {address}")
    log.log_event("sent", to=address, **{address: 1})
    log.log_completion(1, prompt=address, completion=f"see {address}")
    with log.span("sending", where=address):
        pass
print("\n".join(sys.argv[2:]))
with log.capture_errors():
    raise ConnectionError("HTTPSConnectionPool: no answer from " + " or ".join(sys.argv[2:]))
