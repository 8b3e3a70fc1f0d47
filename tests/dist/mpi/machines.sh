#!/usr/bin/env bash
# Four machines on one: network namespaces with host names of their own, a bridge between them, and mpirun that reaches
# them by `ip netns exec` instead of ssh. Skipped (77) where the system does not allow that.
# Usage: machines.sh <accrue_test_ranks> <accrue_test_faults> <mpirun> <folder for files>
set -uo pipefail
ranks=$1 faults=$2 mpirun=$3 work=$4
rm -rf "$work" && mkdir -p "$work" || exit 2
name=acc$$
failures=0
skip() { echo "skipped: $1"; exit 77; }
fail() {
  echo "FAILED: $1"
  sed 's/^/    | /' "$work/log"
  failures=$((failures + 1))
}

command -v ip >/dev/null && command -v unshare >/dev/null || skip "ip (iproute2) or unshare is not installed"
ip netns add "$name-hub" 2>"$work/why" || skip "no network namespaces here: $(cat "$work/why")"
tidy() {
  local i pid
  for i in hub 0 1 2 3; do
    for pid in $(ip netns pids "$name-$i" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null; done
    ip netns del "$name-$i" 2>/dev/null
  done
}
trap tidy EXIT
hub() { ip -n "$name-hub" "$@"; }
hub link add bridge type bridge 2>"$work/why" && hub link set bridge up || skip "no bridge here: $(cat "$work/why")"
for i in 0 1 2 3; do
  ip netns add "$name-$i" &&
    hub link add "port$i" type veth peer name eth0 netns "$name-$i" 2>"$work/why" &&
    hub link set "port$i" master bridge up &&
    ip -n "$name-$i" addr add "10.231.77.$((i + 1))/24" dev eth0 &&
    ip -n "$name-$i" link set eth0 up && ip -n "$name-$i" link set lo up ||
    skip "no pair of network interfaces here: $(cat "$work/why")"
done

# What mpirun calls instead of ssh: <machine> <command...>
cat >"$work/agent" <<AGENT
#!/bin/sh
machine=\${1##*.}
shift
exec ip netns exec $name-\$((machine - 1)) unshare --uts sh -c "hostname machine\$machine; \$*"
AGENT
chmod +x "$work/agent"
# Noticed after 2 + 3 * 1 s when a machine is gone.
on_four() {
  ip netns exec "$name-0" unshare --uts sh -c 'hostname machine1; exec "$@"' sh \
    timeout -k 5 60 "$mpirun" --mca plm_rsh_agent "$work/agent" --mca oob_tcp_keepalive_time 2 \
    --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3 --mca btl_tcp_if_include 10.231.77.0/24 \
    --mca oob_tcp_if_include 10.231.77.0/24 -x ACCRUE_TEST_MACHINES -x ACCRUE_TEST_DUMP \
    -H 10.231.77.1:1,10.231.77.2:1,10.231.77.3:1,10.231.77.4:1 -n 4 "$@"
}
export ACCRUE_TEST_MACHINES=4 ACCRUE_TEST_DUMP=$work
# ends <scenario> <seconds it took> <most>: and no rank is left anywhere
ends() {
  [ "$2" -le "$3" ] || fail "$1: took $2 s, at most $3 s were allowed"
  local left
  for _ in $(seq 60); do
    left=$(pgrep -f "^$faults")
    [ -n "$left" ] || break
    sleep 0.2
  done
  [ -z "$left" ] || fail "$1: ranks are left: $left"
}

begin=$SECONDS
on_four "$ranks" >"$work/log" 2>&1 && grep -q "checks on rank 0 of 4" "$work/log" || fail "collectives over four machines"
echo "collectives over four machines: $((SECONDS - begin)) s"

# start: four ranks that never stop by themselves, with a deadline of 6 s
start() {
  : >"$work/log"  # what an earlier run said is not this one's
  on_four "$faults" forever 6 >"$work/log" 2>&1 &
  job=$!
  for _ in $(seq 150); do
    grep -q "ready: 4 ranks" "$work/log" && break
    sleep 0.1
  done
  grep -q "ready: 4 ranks" "$work/log" || fail "four ranks did not start"
  sleep 0.5
  begin=$SECONDS
}
# 10: a machine is gone: all its processes at once.
start
for pid in $(ip netns pids "$name-3"); do kill -KILL "$pid"; done
wait "$job"
rc=$?
[ "$rc" -ne 0 ] && [ "$rc" -ne 124 ] && [ "$rc" -ne 137 ] || fail "lost machine: exit code $rc"
ends "lost machine" $((SECONDS - begin)) 10
echo "lost machine: $((SECONDS - begin)) s, exit code $rc"

# 9: the link of a machine is cut. Both sides end: by mpirun's keepalive or by the ranks' deadline.
start
hub link set port2 down
wait "$job"
rc=$?
[ "$rc" -ne 0 ] && [ "$rc" -ne 124 ] && [ "$rc" -ne 137 ] || fail "cut link: exit code $rc"
ends "cut link" $((SECONDS - begin)) 16
echo "cut link: $((SECONDS - begin)) s, exit code $rc"

[ "$failures" -eq 0 ] || { echo "$failures failures"; exit 1; }
