#!/bin/sh
# Slurm's Prolog: starts the shipper of a job on this node. epilog.sh ends it.
#
#   slurm.conf: Prolog=/etc/telemetry/prolog.sh
#               Epilog=/etc/telemetry/epilog.sh
#               PrologFlags=Alloc        (so that it also runs on nodes that start no task of their own)
#
# Root starts it as the user telemetry, who alone can read what /etc/telemetry has: fleet.toml and the password that
# `telemetry ship --set-up --team` made. No user of a job sees the password; so the shipper, which is another user than
# the one who trains, cannot deliver requests, and reads the runs that its group may read:
#   useradd --system telemetry; chown -R telemetry: /etc/telemetry; and TELEMETRY_SHARE=group for each job
#
# Nodes that share a file system each start a shipper; one of them ships, and another takes over when it ends.
# A Prolog that fails drains its node: this one exits with 0 whatever happens, and no job waits for an engine.
# A shipper that ends with another code than 0 goes to the system's log at once, with its last line.
# Without an administrator, call both from the batch script, with TELEMETRY_ETC and TELEMETRY_RUN in your home.

# Slurm sets no search path.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

etc=${TELEMETRY_ETC:-/etc/telemetry}
run=${TELEMETRY_RUN:-/run/telemetry}
telemetry=${TELEMETRY_COMMAND:-/opt/telemetry/bin/telemetry}
user=${TELEMETRY_USER:-telemetry}
# Where the trainings of a user log to.
logs=${TELEMETRY_LOGS:-/scratch/$SLURM_JOB_USER/logs}

mkdir -p "$run"
rm -f "$run/$SLURM_JOB_ID.pid"
TELEMETRY_FLEET=$etc/fleet.toml
TELEMETRY_FLEET_FOLDERS=$logs
export TELEMETRY_FLEET TELEMETRY_FLEET_FOLDERS

# setpriv and not su: the process keeps its id, and a signal reaches the shipper itself.
set -- env
if [ "$(id -u)" = 0 ]; then
    set -- setpriv --reuid "$user" --regid "$(id -g "$user")" --init-groups --
    # Made by the user of the job, with the group of the shipper, which the run folders in it get, too.
    # shellcheck disable=SC2016 # expanded by the shell of that user
    [ -d "$logs" ] || setpriv --reuid "$SLURM_JOB_UID" --regid "$(id -g "$user")" --clear-groups -- \
        sh -c 'umask 027 && mkdir -p "$0" && chmod 2750 "$0"' "$logs"
else
    mkdir -p "$logs"
fi
# In a session of its own, and not before it has one: Slurm kills the process group of a Prolog that ends.
# shellcheck disable=SC2016 # expanded by the shell that waits for the shipper
setsid sh -c '"$@" & echo $! >"$0.new" && mv "$0.new" "$0"; wait $!; code=$?
    [ $code = 0 ] || "${TELEMETRY_LOGGER:-logger}" -p daemon.err -t "telemetry[$SLURM_JOB_ID]" \
        "the shipper ended with $code: $(tail -n 1 "${0%.pid}.log")"' \
    "$run/$SLURM_JOB_ID.pid" "$@" "$telemetry" ship </dev/null >"$run/$SLURM_JOB_ID.log" 2>&1 &
tenths=50
while [ ! -e "$run/$SLURM_JOB_ID.pid" ] && [ $((tenths -= 1)) -gt 0 ]; do
    sleep 0.1
done
exit 0
