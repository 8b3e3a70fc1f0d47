#!/usr/bin/env bash
# What goes wrong between ranks, and how every one of them must end: exit code, time, words, and nobody left behind.
# Usage: faults.sh <program> <mpirun> <folder for files> [scenarios, a file here]
set -uo pipefail
program=$1 mpirun=$2 work=$3
rm -rf "$work" && mkdir -p "$work" || exit 2
export ACCRUE_TEST_DUMP=$work
failures=0
fail() {
  echo "FAILED: $scenario: $1"
  sed 's/^/    | /' "$work/log"
  failures=$((failures + 1))
}

# judge <exit code> <expected, several by |> <seconds it took> <most> <words...>: the log must hold every one of the words.
judge() {
  local rc=$1 expected=$2 took=$3 most=$4 word
  shift 4
  [[ $rc =~ ^($expected)$ ]] || fail "exit code $rc, expected $expected"
  [ "$took" -le "$most" ] || fail "took $took s, at most $most s were allowed"
  for word in "$@"; do
    grep -qF -- "$word" "$work/log" || fail "the output lacks: $word"
  done
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    pgrep -f "^$program $scenario" >"$work/left" || break
    sleep 0.3
  done
  [ ! -s "$work/left" ] || fail "processes are left: $(tr '\n' ' ' <"$work/left")"
  echo "ok: $scenario ($took s, exit code $rc)"
}
# expect <ranks> <scenario> <deadline> <exit code> <seconds> <words...>
expect() {
  local ranks=$1 deadline=$3 expected=$4 most=$5
  scenario=$2
  shift 5
  local begin=$SECONDS
  timeout -k 5 60 "$mpirun" -n "$ranks" "$program" "$scenario" "$deadline" >"$work/log" 2>&1
  judge $? "$expected" $((SECONDS - begin)) "$most" "$@"
}
wait_for() {  # wait_for <words>: until the log has them
  for _ in $(seq 200); do
    grep -qF -- "$1" "$work/log" 2>/dev/null && return
    sleep 0.1
  done
  fail "never said: $1"
}

source "$(dirname "$0")/${4:-fault_cases.sh}"

[ "$failures" -eq 0 ] || { echo "$failures failures"; exit 1; }
