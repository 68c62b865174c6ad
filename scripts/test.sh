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
  if [ "$status" -ne 0 ]; then
    bin/lab collect --name "$cluster" diagnostics || true
  fi
  bin/lab down --name "$cluster" --keep-engine || status=1
  exit "$status"
}

# The engine and the node image first: unit tests of the packages that work on them need both.
trap finish EXIT
bin/lab up --name "$cluster"
DRA_LAB_TEST_CLUSTER=$cluster go test -race "${unit[@]}" ./...
bin/lab run --name "$cluster" --junit diagnostics/junit.xml "${run[@]}"
