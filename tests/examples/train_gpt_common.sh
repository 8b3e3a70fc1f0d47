# shellcheck shell=bash
# What scripts that use train_gpt from the outside begin with. They source it with their own arguments:
# <train_gpt> <text file> <temporary folder>.
set -uo pipefail
program=$(realpath "$1")
text=$2
work=$(realpath -m "$3")
rm -rf "$work"
mkdir -p "$work"
export OMP_WAIT_POLICY=passive
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
# run <command...>: sets rc, out (stdout), err (stderr)
run() {
  "$@" > "$work/stdout" 2> "$work/stderr"
  rc=$?
  out=$(cat "$work/stdout")
  err=$(cat "$work/stderr")
}
hash_of() { grep -E '^weights [0-9a-f]{16}$' <<< "$out"; }
expect_rc() { [ "$rc" = "$1" ] || fail "$2: exit code $rc, expected $1: $err"; }
expect_text() { grep -qF -- "$1" <<< "$err$out" || fail "$2: expected '$1' in: $err$out"; }
end() {
  if [ "$failures" -gt 0 ]; then
    echo "$failures failures"
    exit 1
  fi
  echo "all passed"
}
