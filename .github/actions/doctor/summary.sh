#!/usr/bin/env bash
# Appends what is wrong with RUN, and its report, to the job summary. Fails if nothing could be read, or if FAIL is true
# and the run is not healthy.
set -uo pipefail
said=$(telemetry doctor --no-color --min-severity "${MIN_SEVERITY:-info}" -- "$RUN" 2>&1)
code=$?
echo "$said"
{
  echo "## telemetry doctor"
  echo
  # Indented, text from a run cannot leave its block.
  printf '%s\n' "$said" | tr '\r' ' ' | sed 's/^/    /'
  echo
  [ "$code" -lt 2 ] && telemetry report --markdown - -- "$RUN"
} >> "$GITHUB_STEP_SUMMARY"
[ "$code" -eq 1 ] && [ "${FAIL:-true}" != true ] && exit 0
exit "$code"
