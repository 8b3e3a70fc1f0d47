#!/usr/bin/env bash
# How much of the ranks' exchange a training step hides: two ranks in two network namespaces, with a link of limited
# rate between them. Three ways take turns: the exchange alone (one all-reduce of the gradients' size), the computing
# alone (two runs at the same time that know nothing of each other), and both (two ranks that share the batch).
#   hidden = 1 - (both - computing) / exchange
# Needs root, ip and tc (iproute2). Usage: benchmarks/dist/overlap.sh <train_gpt> <mpi_bench> [Mbit/s] [rounds]
set -euo pipefail
program=$(realpath "$1") bench=$(realpath "$2") rate=${3:-400} rounds=${4:-5}
root=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
name=ovl$$
steps=6
tidy() {
  ip netns del "$name-1" 2>/dev/null || true
  ip netns del "$name-2" 2>/dev/null || true
  rm -rf "$work"
}
trap tidy EXIT
ip netns add "$name-1"
ip netns add "$name-2"
ip -n "$name-1" link add eth0 type veth peer name eth0 netns "$name-2"
for i in 1 2; do
  ip -n "$name-$i" addr add "10.231.78.$i/24" dev eth0
  ip -n "$name-$i" link set eth0 up
  ip -n "$name-$i" link set lo up
  ip netns exec "$name-$i" tc qdisc add dev eth0 root tbf rate "${rate}mbit" burst 256kb latency 100ms
done
printf '#!/bin/sh\nmachine=${1##*.}\nshift\nexec ip netns exec %s-$machine unshare --uts sh -c "hostname machine$machine; $*"\n' \
  "$name" > "$work/agent"
chmod +x "$work/agent"
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_mca_base_param_files=${OMPI_MCA_mca_base_param_files:-$root/dist/openmpi-mca.conf}
on_two() {
  ip netns exec "$name-1" unshare --uts sh -c 'hostname machine1; exec "$@"' sh mpirun --mca plm_rsh_agent "$work/agent" \
    --mca btl self,tcp --mca btl_tcp_if_include 10.231.78.0/24 --mca oob_tcp_if_include 10.231.78.0/24 -x OMP_WAIT_POLICY \
    -H 10.231.78.1:1,10.231.78.2:1 -n 2 "$@"
}
train=(--device cpu --data "$root/examples/data/king_james.txt" --layers 6 --channels 384 --heads 6 --context 256
  --steps $steps --warmup 1 --eval-every 0 --save-every 0 --sample 0 --threads 1 --no-pictures --quiet --shard none)
# Seconds of a step: the median, without the first. The log has the rate since the beginning.
seconds() {
  grep -oE '"tokens_per_second":[0-9.e+]+' "$1/log.jsonl" | cut -d: -f2 |
    awk -v t="$2" '{at = t * NR / $1} NR > 1 {print at - before} {before = at}' | median
}
median() { sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

bytes=$((10844160 * 4))  # of the model's gradients
for micro in 1 4; do
  for _ in $(seq "$rounds"); do
    "$program" "${train[@]}" --batch $micro --micro $micro --out "$work/a" > /dev/null 2>&1 &
    "$program" "${train[@]}" --batch $micro --micro $micro --out "$work/b" > /dev/null 2>&1
    wait
    seconds "$work/a" $((micro * 256)) >> "$work/computing"
    on_two "$program" "${train[@]}" --batch $((2 * micro)) --micro $micro --out "$work/both" > "$work/log" 2>&1 ||
      { cat "$work/log" >&2; exit 1; }
    seconds "$work/both" $((2 * micro * 256)) >> "$work/both.s"
    on_two "$bench" accrue $bytes 3 >> "$work/exchange"
    rm -rf "$work/a" "$work/b" "$work/both"
  done
  c=$(median < "$work/computing") b=$(median < "$work/both.s") e=$(median < "$work/exchange")
  awk -v m=$micro -v r="$rate" -v n=$bytes -v c="$c" -v b="$b" -v e="$e" 'BEGIN {
    printf "%d samples per rank, %d bytes, %d Mbit/s: exchange %.2f s, computing %.2f s, both %.2f s, hidden %.0f %%\n",
      m, n, r, e, c, b, 100 * (1 - (b - c) / e)}'
  rm -f "$work/computing" "$work/both.s" "$work/exchange"
done
