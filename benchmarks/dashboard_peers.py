"""The pages of TensorBoard and Trackio with the same small run, until their first curve."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.browser import fresh_page, seconds_until
from benchmarks.child import measure_in_child
from benchmarks.contenders import ALL, TENSORBOARD, TRACKIO, VALUES, Contender
from benchmarks.large_run import steps
from benchmarks.served import Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@dataclass(frozen=True, slots=True)
class Peer:
    """Another tool's page."""

    contender: Contender
    command: Callable[[Path], Sequence[str]]
    says: str
    """The line with its address."""
    is_drawn: str
    """JavaScript that says whether a curve is drawn."""

    def write(self, folder: Path, records: int) -> None:
        """Log the run as the tool does."""
        measure_in_child(write_run, self.contender.name, str(folder), records)

    def open(self, browser: Browser, folder: Path, home: Path) -> float:
        """Return the seconds until the first curve in a fresh server."""
        environ = {"TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "False"}
        command = [sys.executable, *self.command(folder)]
        with Served(command, home, says=self.says, environ=environ) as server, fresh_page(browser) as page:
            return seconds_until(page, server.url, self.is_drawn)


PEERS = (
    Peer(
        TENSORBOARD,
        lambda folder: f"-m tensorboard.main --port 0 --host localhost --logdir {folder}".split(),
        r"TensorBoard \S+ at (http://\S+)",
        # The axis has the steps of the run once its values have come.
        "() => [...document.querySelectorAll('line-chart-axis text')]"
        ".some((text) => /^[1-9]\\d\\d$/.test(text.textContent.trim()))",
    ),
    Peer(
        TRACKIO,
        lambda _: ["-c", "import trackio; trackio.show(project='bench', open_browser=False)"],
        r"(http://[\w.:]+/\?project=bench)",
        "() => [...document.querySelectorAll('canvas')].some((canvas) => canvas.width > 200 && "
        "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value))",
    ),
)


def write_run(_: Path, name: str, folder: str, records: int) -> bool:
    """Log `records` steps with one of the contenders."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    logger = ALL[name].open(Path(folder))
    for step, values in steps(0, records):
        VALUES.update(values)
        logger.log(step)
    logger.close()
    return True
