"""Run every benchmark, then count how many of our targets held."""

from __future__ import annotations

from benchmarks import (
    batch_cost,
    cpu_per_record,
    dashboard,
    diagnose_cost,
    fleet,
    gpu_loop,
    import_cost,
    importers,
    kill_loss,
    large_values,
    load,
    log_cost,
    memory,
    paced,
    span_cost,
    sql_answer,
    top_cost,
    trainers,
    under_fault,
)
from benchmarks.command import Options, parse
from benchmarks.report import Claim

_BENCHMARKS = (
    log_cost,
    batch_cost,
    large_values,
    span_cost,
    paced,
    cpu_per_record,
    import_cost,
    memory,
    kill_loss,
    under_fault,
    diagnose_cost,
    trainers,
    dashboard,
    sql_answer,
    load,
    fleet,
    importers,
    top_cost,
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
