"""Run every benchmark, then count how many of our targets held."""

from __future__ import annotations

import time
from dataclasses import replace

from benchmarks import dashboard, gpu_loop, log_cost, lost_records, paced, process_cost, trainers
from benchmarks.command import Options, parse
from benchmarks.report import Claim

_BENCHMARKS = (log_cost, paced, process_cost, lost_records, trainers, dashboard, gpu_loop)
"""Not the fleet, which needs engines that few machines have: `python -m benchmarks.fleet`."""
_LONG = (trainers, dashboard)
"""Short here, so that all takes a quarter of an hour: `python -m benchmarks.dashboard` measures one in full."""


def main(options: Options) -> None:
    """Run all benchmarks; the documents quote the figures of a full run."""
    claims: list[Claim] = []
    took = []
    for benchmark in _BENCHMARKS:
        began = time.monotonic()
        is_short = options.quick or benchmark in _LONG
        report = benchmark.build(replace(options, quick=is_short))
        report.show()
        report.save(quotable=options.is_full and not is_short)
        claims.extend(report.claims)
        took.append(f"{report.name} {time.monotonic() - began:.0f} s")

    held = [claim for claim in claims if claim.verdict == "held"]
    print(f"\n{len(held)} of {len(claims)} targets held")
    for claim in claims:
        print(f"  {claim}")
    print(f"It took: {', '.join(took)}.")
    if not options.is_full:
        print("A short run: use the figures of a full 'make bench' instead.")


if __name__ == "__main__":
    main(parse())
