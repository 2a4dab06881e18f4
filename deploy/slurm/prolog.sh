#!/bin/sh
# Slurm's Prolog: starts the shipper of a job on this node, as the user of the job. epilog.sh ends it.
#
#   slurm.conf: Prolog=/etc/telemetry/prolog.sh
#               Epilog=/etc/telemetry/epilog.sh
#               PrologFlags=Alloc        (so that it also runs on nodes that start no task of their own)
#
#   /etc/telemetry/fleet.toml   names the engine; every user can read it. It names no password-file, and a key only
#                               if each user has a copy of it
#   /etc/telemetry/ship.pw      the password of telemetry_ship, readable by root alone
#
# Nodes that share a file system each start a shipper; one of them ships, and another takes over when it ends.
# A Prolog that fails drains its node: this one exits with 0 whatever happens, and no job waits for an engine.
# Without an administrator, call both from the batch script, with TELEMETRY_ETC and TELEMETRY_RUN in your home.

# Slurm sets no search path.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

etc=${TELEMETRY_ETC:-/etc/telemetry}
run=${TELEMETRY_RUN:-/run/telemetry}
telemetry=${TELEMETRY_COMMAND:-/opt/telemetry/bin/telemetry}
# Where the trainings of a user log to.
logs=${TELEMETRY_LOGS:-/scratch/$SLURM_JOB_USER/logs}

mkdir -p "$run"
rm -f "$run/$SLURM_JOB_ID.pid"
# The user of the job cannot read the file, and the shipper has to know it.
TELEMETRY_CLICKHOUSE_PASSWORD=$(cat "$etc/ship.pw")
TELEMETRY_FLEET=$etc/fleet.toml
TELEMETRY_FLEET_FOLDERS=$logs
export TELEMETRY_CLICKHOUSE_PASSWORD TELEMETRY_FLEET TELEMETRY_FLEET_FOLDERS

# setpriv and not su: the process keeps its id, and a signal reaches the shipper itself.
set -- env
if [ "$(id -u)" = 0 ]; then
    set -- setpriv --reuid "$SLURM_JOB_UID" --regid "$(id -g "$SLURM_JOB_USER")" --init-groups --
fi
"$@" mkdir -p "$logs"
# In a session of its own, and not before it has one: Slurm kills the process group of a Prolog that ends.
# shellcheck disable=SC2016 # expanded by the shell that becomes the shipper
setsid sh -c 'echo $$ >"$0.new" && mv "$0.new" "$0" && exec "$@"' "$run/$SLURM_JOB_ID.pid" "$@" "$telemetry" ship \
    </dev/null >"$run/$SLURM_JOB_ID.log" 2>&1 &
tenths=50
while [ ! -e "$run/$SLURM_JOB_ID.pid" ] && [ $((tenths -= 1)) -gt 0 ]; do
    sleep 0.1
done
exit 0
