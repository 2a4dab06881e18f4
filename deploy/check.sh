#!/bin/sh
# Tries a ClickHouse server with two teams and 20 runs, within five minutes, and prints a table to paste into an issue:
#   deploy/check.sh                                           a server in Docker, which is removed again
#   deploy/check.sh clickhouse://default@db.example:8443      yours, as a user who may make users
# That user's password is in TELEMETRY_CLICKHOUSE_PASSWORD, and the path of your CA in TELEMETRY_FLEET_CA.
# On your server it makes and drops two databases and six users, whose names begin with `check`, and nothing else.
# PYTHON names the Python that has telemetry with its extras fleet and dashboard (default: python3).
# Exit code: 0; 1 if a step failed; 2 if there is no server.

# shellcheck disable=SC2317 # the loop at the end calls each step by its name
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) || exit 2
address=$1
# Options that are set for other commands are not those of this one.
unset TELEMETRY_FLEET TELEMETRY_FLEET_ENGINE TELEMETRY_FLEET_PASSWORD_FILE TELEMETRY_MODE
a=check$$a b=check$$b
pid=

telemetry() { "$python" -m toolkit.telemetry.cli "$@"; }

docker_compose() {
    docker compose --project-name telemetry-check -f "$here/compose.yaml" -f "$work/ports.yaml" "$@"
}

end() {
    trap - EXIT INT TERM
    [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null
    [ ! -e "$work/ports.yaml" ] || docker_compose down --volumes >/dev/null 2>&1
    rm -rf "$work"
}
trap 'end' EXIT
trap 'end; exit 1' INT TERM

if [ -z "$address" ]; then
    TELEMETRY_CLICKHOUSE_PASSWORD=$("$python" -c 'import secrets; print(secrets.token_hex(24))')
    CLICKHOUSE_PASSWORD=$TELEMETRY_CLICKHOUSE_PASSWORD
    export TELEMETRY_CLICKHOUSE_PASSWORD CLICKHOUSE_PASSWORD
    echo 'services: {engine: {ports: ["127.0.0.1:18123:8123"]}}' >"$work/ports.yaml"
    docker_compose up --detach --wait engine >&2 || exit 2
    address=clickhouse://default@127.0.0.1:18123
fi
address=${address%/}
cd "$work" || exit 2

# Asks the engine: who, what.
sql() {
    "$python" -c '
import os, sys
from pathlib import Path
from toolkit.telemetry.fleet.address import address_of
from toolkit.telemetry.fleet.engine import Engine, EngineError
place, secret, statement = sys.argv[1:]
ca = os.environ.get("TELEMETRY_FLEET_CA")
address = address_of(place, password_file=Path(secret) if secret else None, ca=Path(ca) if ca else None)
try:
    sys.stdout.buffer.write(Engine(address).query(statement))
except EngineError as error:
    sys.exit(str(error))
' "$@"
}

# The address, with another user.
as_user() { echo "$address" | sed -E "s#//([^@]*@)?#//$1@#"; }

as_admin() { sql "$address/default" "" "$1"; }

# The command of a team, as its own user if it has one: which table of fleet.toml its options are from.
of_team() {
    team=$1
    shift
    if [ -e "$work/has-users" ]; then
        TELEMETRY_FLEET=$work/$team/fleet.toml telemetry "$@"
    else
        TELEMETRY_FLEET_ENGINE=$address/telemetry_$team telemetry "$@"
    fi
}

ask_the_version() { as_admin "SELECT version()"; }

set_up_two_teams() {
    for team in $a $b; do
        telemetry ship --set-up --team "$team" --secrets "$work/$team" --to "$address" >"$work/said" 2>&1
        case $? in
        0) touch "$work/has-users" ;;
        1) grep -o 'the users are not made: .*' "$work/said" | cut -c 1-120 && break ;;
        *) tail -n 1 "$work/said" && return 1 ;;
        esac
    done
    [ -e "$work/has-users" ] || telemetry ship --set-up --to "$address/telemetry_$b" >/dev/null
}

start_shipper() {
    if [ -e "$work/has-users" ]; then
        TELEMETRY_FLEET=$work/$a/fleet.toml
    else
        TELEMETRY_FLEET_ENGINE=$address/telemetry_$a
    fi
    export TELEMETRY_FLEET TELEMETRY_FLEET_ENGINE
    # Not through the function: a signal must reach the shipper itself.
    "$python" -m toolkit.telemetry.cli ship "$work/logs" >"$work/shipper" 2>&1 &
    pid=$!
    unset TELEMETRY_FLEET TELEMETRY_FLEET_ENGINE
}

ship_and_kill() {
    mkdir -p "$work/logs"
    "$python" -c '
import sys, time
from toolkit.telemetry import TelemetryLogger
for number in range(20):
    with TelemetryLogger(f"run-{number}", log_dir=sys.argv[1], log_every=1) as log:
        log.log_start()
        for step in range(200):
            log.log_step(step, train_loss=1.0 / (step + 1), lr=1e-4)
    time.sleep(0.3)
' "$work/logs" >/dev/null 2>"$work/training" &
    training=$!
    for pause in 6 5; do
        start_shipper
        sleep "$pause"
        kill -KILL "$pid"
        wait "$pid" 2>/dev/null
    done
    start_shipper
    wait "$training" || { tail -n 1 "$work/training" && return 1; }
    echo "killed twice"
}

drain() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        grep -q 'shipping ' "$work/shipper" && break
        sleep 1
    done
    kill -TERM "$pid"
    wait "$pid" || { tail -n 1 "$work/shipper" && return 1; }
    pid=
    of_team "$a" ship "$work/logs" --status 2>&1 | grep 'behind in' | tee "$work/status"
    grep -q '^20 record files, 0 bytes behind' "$work/status"
}

copy_back() {
    for number in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do
        names="$names run-$number"
    done
    # shellcheck disable=SC2086 # a word for each run
    of_team "$a" copy $names --to "$work/back" >"$work/said" 2>&1 || { tail -n 1 "$work/said" && return 1; }
    for number in 0 7 19; do
        cmp "$work/logs/run-$number/metrics.jsonl" "$work/back/run-$number/metrics.jsonl" || return 1
    done
}

list() {
    place=$address secret=
    if [ -e "$work/has-users" ]; then
        place=$(as_user "${a}_page") secret=$work/$a/${a}_page.password
    fi
    "$python" -c '
import os, sys, time
from pathlib import Path
from toolkit.telemetry.fleet.address import address_of
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore
place, secret = sys.argv[1:]
ca = os.environ.get("TELEMETRY_FLEET_CA")
store = ClickHouseStore(address_of(place, password_file=Path(secret) if secret else None, ca=Path(ca) if ca else None))
began, found = time.monotonic(), store.list_runs()
print(f"{len(found.cards)} runs, {dict(found.statuses)} in {(time.monotonic() - began) * 1000:.0f} ms")
sys.exit(0 if len(found.cards) == 20 and dict(found.statuses) == {"finished": 20} else str(found.problems))
' "$place/telemetry_$a" "$secret"
}

# Whether a user of a team is refused a statement: team, user, statement.
is_refused() {
    [ -e "$work/has-users" ] || return 3
    said=$(sql "$(as_user "$1_$2")/telemetry_$1" "$work/$1/$1_$2.password" "$3" 2>&1) && return 1
    echo "$said" | grep -q 'may not do this'
}

refuse_the_other_team() { is_refused "$b" reader "SELECT * FROM telemetry_$a.runs"; }
refuse_a_request_of_a_node() { is_refused "$a" ship "INSERT INTO requests (run_id, id) VALUES ('x', 'y')"; }
refuse_to_change_what_is_there() { is_refused "$a" page "ALTER TABLE records DELETE WHERE 1"; }

tear_down() {
    for team in $a $b; do
        as_admin "DROP DATABASE IF EXISTS telemetry_$team" || return 1
        for user in ship page reader; do
            [ ! -e "$work/has-users" ] || as_admin "DROP USER IF EXISTS ${team}_$user" || return 1
        done
    done
}

failed=0
printf '\n| step | result | s |\n| --- | --- | --: |\n'
for step in ask_the_version set_up_two_teams ship_and_kill drain copy_back list refuse_the_other_team \
    refuse_a_request_of_a_node refuse_to_change_what_is_there tear_down; do
    began=$(date +%s)
    "$step" >"$work/result" 2>&1
    case $? in
    0) result=ok ;;
    3) result="not checked: this server made no users" ;;
    *) result=FAILED failed=1 ;;
    esac
    printf '| %s | %s %s | %s |\n' "$(echo "$step" | tr _ ' ')" "$result" \
        "$(tr '\n|' '  ' <"$work/result" | cut -c 1-200)" $(($(date +%s) - began))
done
exit $failed
