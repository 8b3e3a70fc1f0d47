# The scenarios; sourced by faults.sh, whose numbers are those of the list in docs/distributed.md.

# 1: a rank is killed in the middle of collectives. mpirun names it, and ends the others.
expect 4 kill 30 137 15 "rank 1" "signal 9"
# 2: a rank stands still. The others' deadline ends everything; what they waited for is named.
expect 3 freeze 2 75 15 "bucket 1 of step 5" "exit code 75" "the deadline for #17 all_reduce sum float32 n=1048576"
grep -qF "bucket 1 of step 5" "$work"/rank-*.txt || fail "no file with the flight recorder"
# 3: a rank does something else for too long. It says itself what it did last.
expect 2 stuck 2 75 15 "the deadline for #10" "bucket 0 of step 3" "rank 1 was told to stop" \
  "has asked for nothing since #9 all_reduce sum float32 n=1048576 'bucket 2 of step 2' ended"
# 4: a rank leaves one out; also the last one.
expect 3 skip 20 76 10 "ranks called different collectives" "rank 0: #10 all_reduce sum float32 n=1048576 'bucket 0 of step 3'" \
  "rank 1: #10 all_reduce sum float32 n=1048576 'bucket 1 of step 3'" "rank 2: #10"
expect 2 "skip the last" 20 76 10 "rank 0: #10 all_reduce" "rank 1: #10 finish"
# 5: another size, dtype, op.
expect 2 "other size" 20 76 10 "rank 0: #10 all_reduce sum float32 n=1048576" "rank 1: #10 all_reduce sum float32 n=1000"
expect 2 "other dtype" 20 76 10 "rank 0: #10 all_reduce sum float32 n=1000" "rank 1: #10 all_reduce sum float64 n=1000"
expect 2 "other op" 20 76 10 "all_reduce sum float32" "all_reduce max float32"
# 6: two in another order.
expect 2 swapped 20 76 10 "rank 0: #10 all_reduce sum float32 n=1048576 'bucket 0 of step 3'" \
  "rank 1: #10 all_reduce sum float32 n=1048576 'bucket 1 of step 3'"
# 7: a rank is gone before MPI starts.
expect 2 "exit before init" 3 75 15 "the deadline for the start of all ranks"
# 23: another configuration.
expect 3 "other configuration" 20 82 10 "ranks differ" "configuration: rank 1 has"
# A rank that fails by itself ends with its own code, and the others with it.
expect 2 "out of memory" 20 77 10 "no more memory"
# A program may decide what a failure does: here it becomes an exception.
expect 2 "own handler" 20 76 10 "handler: code 76" "accrue_test_faults: accrue: rank"

# 8: the launcher of another MPI, variables of torchrun, contradictions: refused before anything starts.
scenario="wrong launcher"
alone() {  # alone <words> <variables...>
  local begin=$SECONDS words=$1
  shift
  env -u OMPI_COMM_WORLD_RANK "$@" timeout -k 5 60 "$program" finish >"$work/log" 2>&1
  judge $? 82 $((SECONDS - begin)) 3 "bad launch" "$words"
}
alone "each would be alone" PMI_RANK=1 PMI_SIZE=4
alone "mpirun -n N" RANK=1 WORLD_SIZE=4
alone "contradict each other" OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 RANK=0 WORLD_SIZE=4
alone "srun --mpi=pmix" SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2

# 11: the launcher is killed.
scenario=forever
: >"$work/log"
"$mpirun" -n 3 "$program" forever 20 >"$work/log" 2>&1 &
launcher=$!
wait_for "ready: 3 ranks"
begin=$SECONDS
kill -KILL "$launcher"
wait "$launcher" 2>/dev/null
for _ in $(seq 100); do
  pgrep -f "^$program forever" >/dev/null || break
  sleep 0.1
done
judge 0 0 $((SECONDS - begin)) 10

# 12: one rank is told to stop. All stop after the same step.
for signal in USR1 TERM; do
  scenario=stop
  : >"$work/log"  # what an earlier run said is not this one's
  timeout -k 5 60 "$mpirun" -n 2 "$program" stop 20 >"$work/log" 2>&1 &
  job=$!
  wait_for "ready: 2 ranks"
  begin=$SECONDS
  kill "-$signal" "$(sed -n 's/.*process \([0-9]*\)$/\1/p' "$work/log")"
  wait "$job"
  judge $? 81 $((SECONDS - begin)) 10
done

# A program that starts itself again under mpirun.
scenario=finish
begin=$SECONDS
env -u OMPI_MCA_mca_base_param_files -u OMPI_ALLOW_RUN_AS_ROOT timeout -k 5 60 "$program" relaunch >"$work/log" 2>&1
judge $? 0 $((SECONDS - begin)) 10 "ready: 2 ranks"
