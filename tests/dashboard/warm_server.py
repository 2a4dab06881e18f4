"""What a dashboard process has imported and computed once its first page is shown, for processes that are forked."""

from __future__ import annotations

import importlib
import pkgutil

from dashboard import server  # noqa: F401  # imported for what it imports

# Not websockets: it reads an environment variable that the server sets when it is imported.
_FIRST_USED_WHEN_SERVING = (
    "dashboard.launcher",
    "h11",
    "starlette.applications",
    "starlette.middleware.errors",
    "starlette.middleware.exceptions",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.h11_impl",
)

for name in _FIRST_USED_WHEN_SERVING:
    importlib.import_module(name)
for package in ("toolkit.telemetry.runs", "dashboard.charts", "dashboard.components"):
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
