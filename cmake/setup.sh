#!/usr/bin/env bash
# Installs what a build of accrue needs on Debian 12 and its relatives, and only what is missing: when
# nothing is, it neither asks for root nor touches the network. Run it, or source it for its functions.
#   cmake/setup.sh [more packages]
# ACCRUE_SETUP=skip leaves the system alone (for machines where the tools come from elsewhere).

accrue_packages=(g++ cmake ninja-build ccache libdnnl-dev catch2 nlohmann-json3-dev libcli11-dev
  libopenmpi-dev openmpi-bin)

# Prints a command, then runs it.
run() {
  printf '+'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}

# Names those of the given packages that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

# Installs the missing ones of the given packages.
install_packages() {
  [ "${ACCRUE_SETUP:-}" != skip ] || return 0
  if ! command -v dpkg-query >/dev/null; then
    echo "setup: this is not Debian; wanted here: $*" >&2
    echo "setup: install their like, then set ACCRUE_SETUP=skip" >&2
    return 1
  fi
  local missing=() as_root=()
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: not root and no sudo; have somebody run: apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  as_root+=(env DEBIAN_FRONTEND=noninteractive)
  # Another apt (unattended upgrades) may hold the lock for a while; a mirror may hiccup.
  local options=(-q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3)
  run "${as_root[@]}" apt-get "${options[@]}" update ||
    echo "setup: the package lists could not be refreshed; trying with those that are here" >&2
  run "${as_root[@]}" apt-get "${options[@]}" install -y --no-install-recommends "${missing[@]}"
}

# How many compilers may run at once: one per processor, but no more than memory bears (a heavy file of
# this tree takes up to 1.5 GiB).
build_jobs() {
  local cpus kib limit jobs
  cpus=$(nproc 2>/dev/null || echo 1)
  kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo 2>/dev/null)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [ "$limit" != max ] && [ $((limit / 1024)) -lt "${kib:-$((limit / 1024 + 1))}" ]; then
    kib=$((limit / 1024))
  fi
  jobs=$((${kib:-1572864} / 1572864))
  [ "$jobs" -ge 1 ] || jobs=1
  [ "$jobs" -le "$cpus" ] || jobs=$cpus
  echo "$jobs"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  install_packages "${accrue_packages[@]}" "$@"
fi
