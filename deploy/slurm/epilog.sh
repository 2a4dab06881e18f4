#!/bin/sh
# Slurm's Epilog: has the shipper of the job send what is left, and waits for it. prolog.sh has started it.
# An Epilog that fails drains its node: this one exits with 0 whatever happens.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

run=${TELEMETRY_RUN:-/run/telemetry}
pid=$(cat "$run/$SLURM_JOB_ID.pid" 2>/dev/null) || exit 0

# Whether the process is still there, and not another one that was given its number.
is_there() {
    tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -qx "SLURM_JOB_ID=$SLURM_JOB_ID"
} 2>/dev/null

# The shipper of a job that failed at once may not have begun yet.
tenths=50
while is_there && [ $((tenths -= 1)) -gt 0 ] && ! grep -q 'shipping ' "$run/$SLURM_JOB_ID.log"; do
    sleep 0.1
done
is_there && kill -TERM "$pid"
# It needs at most its --drain-timeout, 20 s unless fleet.toml has another one; then what is left stays in the files.
tenths=300
while is_there && [ $((tenths -= 1)) -gt 0 ]; do
    sleep 0.1
done
is_there && kill -KILL "$pid" && echo "the shipper did not end, and was killed" >>"$run/$SLURM_JOB_ID.log"

# What it said goes to the system's log.
"${TELEMETRY_LOGGER:-logger}" -t "telemetry[$SLURM_JOB_ID]" -f "$run/$SLURM_JOB_ID.log" && rm -f "$run/$SLURM_JOB_ID.log"
rm -f "$run/$SLURM_JOB_ID.pid"
exit 0
