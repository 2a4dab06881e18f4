"""Time and machine page: is the hardware busy, which rank is slow, and how long each part of a step takes."""

from __future__ import annotations

from .. import session
from ..components.frame import RunPage, curves_from, live, open_run
from ..components.machine.figures import draw_figures, draw_gpus
from ..components.machine.ranks import being_read, draw_ranks
from ..components.machine.timeline import draw_timeline
from ..components.page_states import guarded


def main() -> None:
    """Draw the page."""
    page = open_run(drawn_from=curves_from)
    if page is None:
        return
    live(
        page,
        "The machine",
        lambda: _machine(page),
        # A finished run needs a timer only while the records of its ranks are being read.
        idle_s=1.0 if session.is_partly("read", being_read(page)) else None,
    )
    # The browser asks for new values itself.
    guarded("The figures", lambda: draw_figures(page))
    draw_timeline(page)


def _machine(page: RunPage) -> None:
    guarded("The GPUs", lambda: draw_gpus(page))
    guarded("The ranks", lambda: draw_ranks(page))
