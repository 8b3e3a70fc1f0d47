# What goes wrong with the numbers of training ranks; sourced by faults.sh. The numbers are those of docs/distributed.md.

# 25: no finite gradient on one rank: all skip, the rank and the bucket are named. Too often in a row: all end.
expect 3 "nan once" 20 0 15 "warning: rank 1 had gradients that were not finite: "
expect 3 "nan for good" 20 79 15 "3 steps in a row were skipped, 3 in all, rank 1 in " "rank 1 had gradients"
# 26: a bit of one rank's weights: found by the next comparison, the majority names the rank.
expect 3 "bit flip" 20 80 15 "the weights of the ranks differ after step 15: not those of the majority has rank 1"
# 27: nothing to learn on one rank, then on none.
expect 2 masked 20 0 15
# 32: a rank that takes ten times as long.
expect 2 slow 20 0 15
# 33: nothing grows.
expect 2 "many steps" 20 0 20 "rank 0: " "rank 1: "
