"""Run every benchmark, then count how many of our targets held."""

from __future__ import annotations

from benchmarks import (
    cpu_per_record,
    dashboard,
    fleet,
    gpu_loop,
    import_cost,
    kill_loss,
    log_cost,
    memory,
    paced,
    span_cost,
    trainers,
    under_fault,
)
from benchmarks.command import Options, parse
from benchmarks.report import Claim

_BENCHMARKS = (
    log_cost,
    span_cost,
    paced,
    cpu_per_record,
    import_cost,
    memory,
    kill_loss,
    under_fault,
    trainers,
    dashboard,
    fleet,
    gpu_loop,
)


def main(options: Options) -> None:
    """Run all benchmarks; the documents quote the figures of a full run."""
    claims: list[Claim] = []
    for benchmark in _BENCHMARKS:
        report = benchmark.build(options)
        report.show()
        report.save(quotable=options.is_full)
        claims.extend(report.claims)

    held = [claim for claim in claims if claim.verdict == "held"]
    print(f"\n{len(held)} of {len(claims)} targets held")
    for claim in claims:
        print(f"  {claim}")
    if not options.is_full:
        print("A short run: use the figures of a full 'make bench' instead.")


if __name__ == "__main__":
    main(parse())
