#!/usr/bin/env bash
# usage: scripts/test.sh CLUSTER short|all
# Unit tests with the race detector, then the scenarios on a kind cluster of their own, which
# is removed at the end. On a failure ./diagnostics has what `lab collect` found.
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=${1:?usage: scripts/test.sh CLUSTER short|all}
size=${2:?usage: scripts/test.sh CLUSTER short|all}

case $size in
  short) run=(--short) unit=(-short) ;;
  all) run=() unit=() ;;
  *) echo "usage: scripts/test.sh CLUSTER short|all" >&2; exit 2 ;;
esac

finish() {
  status=$?
  trap - EXIT
  echo "scripts/test.sh: status $status, removing cluster $cluster" >&2
  if [ "$status" -ne 0 ]; then
    bin/lab collect --name "$cluster" diagnostics || true
  fi
  bin/lab down --name "$cluster" --keep-engine || status=1
  tail -n 1 "$summary" # the count, as the last line
  rm -f "$summary"
  exit "$status"
}

summary=$(mktemp)

# The engine and the node image first: unit tests of the packages that work on them need both.
trap finish EXIT
bin/lab up --name "$cluster"
go test -race "${unit[@]}" ./...
# What measures time skips itself under the race detector.
go test -count=1 -run 'TestCallOverhead|TestFirstCallIsWarm' ./driver/draconn
if [ "$size" = all ]; then
  # Tests of packages that work on a running lab.
  (
    eval "$(bin/lab env --name "$cluster")"
    DRA_LAB_CLUSTER=$cluster go test -race ./lab/install/... ./lab/fault/...
  )
fi
mkdir -p diagnostics
bin/lab run --name "$cluster" --junit diagnostics/junit.xml "${run[@]}" | tee "$summary"
