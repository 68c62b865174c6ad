#!/usr/bin/env bash
# usage: scripts/test.sh CLUSTER short|all
# Unit tests with the race detector, then the scenarios on a kind cluster of their own, then
# reproductions of upstream issues on another one, whose kubelets differ. Both are removed at
# the end. On a failure ./diagnostics has what `lab collect` found. JUnit reports are there in
# any case.
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=${1:?usage: scripts/test.sh CLUSTER short|all}
size=${2:?usage: scripts/test.sh CLUSTER short|all}
kubelets=$cluster-kubelets

case $size in
  short) run=(--short) unit=(-short) fuzz=10s limits=report ;;
  # In full a package makes and removes many clusters, one after another.
  all) run=() unit=(-timeout 40m) fuzz=5m limits= ;;
  *) echo "usage: scripts/test.sh CLUSTER short|all" >&2; exit 2 ;;
esac

finish() {
  status=$?
  trap - EXIT
  echo "scripts/test.sh: status $status, removing clusters" >&2
  if [ "$status" -ne 0 ]; then
    bin/lab collect --name "$cluster" diagnostics || true
    bin/lab collect --name "$kubelets" diagnostics/kubelets || true
  fi
  bin/lab down --name "$kubelets" --keep-engine || status=1
  bin/lab down --name "$cluster" --keep-engine || status=1
  paste -sd ';' "$summary" | sed 's/;/; /g' # the counts, as the last line
  rm -f "$summary"
  [ -z "$instances" ] || sysctl -q -w fs.inotify.max_user_instances="$instances" || status=1
  exit "$status"
}

summary=$(mktemp)

# counted NAME COMMAND... runs a command whose last line is a count, for the summary.
counted() {
  local output=diagnostics/$1.txt status=0
  shift
  mkdir -p diagnostics
  "$@" | tee "$output" || status=$?
  tail -n 1 "$output" >>"$summary"
  return "$status"
}

# Tests of several packages have clusters at the same time, for which the usual
# limit of inotify instances is too low. What it was comes back at the end.
instances=
trap finish EXIT
if [ "$size" = all ] && [ "$(id -u)" = 0 ] && [ "$(cat /proc/sys/fs/inotify/max_user_instances)" -lt 512 ]; then
  instances=$(cat /proc/sys/fs/inotify/max_user_instances)
  echo "scripts/test.sh: raising fs.inotify.max_user_instances from $instances to 512 until the end" >&2
  sysctl -q -w fs.inotify.max_user_instances=512
fi

# The engine and the node image first: unit tests of the packages that work on them need both.
bin/lab up --name "$cluster" --gpus simulated=h100:12,h100:1:mig,t4:1:shared
go test -race "${unit[@]}" ./...
# What comes from outside the driver, all fuzzers side by side.
fuzzers=()
for fuzzer in driver/api/v1alpha1:FuzzParse driver/internal/cdi:FuzzNames driver/internal/checkpoint:FuzzCheckpoint; do
  go test -run '^$' -fuzz "^${fuzzer#*:}\$" -fuzztime "$fuzz" -parallel 1 "./${fuzzer%:*}" &
  fuzzers+=($!)
done
found=0
for fuzzer in "${fuzzers[@]}"; do wait "$fuzzer" || found=1; done # none outlives another's failure
[ "$found" = 0 ]
# What Helm makes of the chart: a module of its own, that nothing else depends on Helm.
CGO_ENABLED=0 go test -C scripts/chart ./...
# What measures time skips itself under the race detector. In short runs a time over its
# limit is told as MISSED.
DRA_LAB_LIMITS=$limits go test -count=1 -p 1 -v "${unit[@]}" -run 'TestCallOverhead|TestFirstCallIsWarm|TestScale|TestMemoryOfFewDevices|TestSoak|TestEventReachesItsWatcherInTime' \
  ./driver ./driver/draconn ./driver/internal/plugin
if [ "$size" = all ]; then
  scripts/arm64.sh
  # In full only without the race detector, with which a driver starts slowly.
  go test -count=1 -timeout 20m -run TestRandomKills ./driver/internal/plugin
  # Tests of packages that work on a running lab, one after another.
  (
    eval "$(bin/lab env --name "$cluster")"
    DRA_LAB_CLUSTER=$cluster go test -race -p 1 ./lab/install/... ./lab/fault/...
  )
fi
sync # what was built may still be on its way to the disk
counted scenarios bin/lab run --name "$cluster" --junit diagnostics/junit.xml "${run[@]}"
# Limits are for a machine with nothing else to do. One that is missed is measured once more,
# and then it has to hold.
if grep -q MISSED diagnostics/scenarios.txt; then
  again=(basic training)
  if grep -q "MISSED.* times the idle plugin's" diagnostics/scenarios.txt; then again+=(speed); fi
  bin/lab run --name "$cluster" --strict "${again[@]}"
fi

# One cluster at a time: two cores are enough for either.
bin/lab down --name "$cluster" --keep-engine
if [ "$size" = all ]; then
  # One table that is not as it should be is no reason not to see the others.
  failed=0
  counted reproductions bin/lab reproduce matrix --name "$kubelets" --junit diagnostics/junit-reproductions.xml || failed=1
  bin/lab reproduce kubelets --name "$kubelets" || failed=1
  bin/lab reproduce packages --all || failed=1
  exit "$failed"
else
  # The quickest and most certain, on the two kubelets that one extra build brings.
  counted reproductions bin/lab reproduce run --name "$kubelets" --junit diagnostics/junit-reproductions.xml \
    140353 140274 140527 140212 129402
fi
