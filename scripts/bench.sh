#!/usr/bin/env bash
# Benchmarks. First those that need no cluster, then the driver against a plugin that does
# nothing on one cluster, and ten minutes of Pods that come and go (SOAK=1m for less), then,
# in one run, `lab up` against kind alone with the same node image and config. Machines are
# noisy: compare the figures of one run.
set -euo pipefail
cd "$(dirname "$0")/.."
name=dra-lab-bench
rounds=${ROUNDS:-3}

echo "## calls through the eager connection and the bare stub; prepare, unprepare; checkpoint"
go test -run '^$' -bench . -benchmem ./driver/... | grep -E '^(Benchmark|pkg:)'

# What has a limit: every "measured" line of tests and scenarios, in one table at the end.
# A limit that is missed is a figure here, not an error: what fails otherwise is.
figures=$(mktemp)
trap 'rm -f "$figures"; bin/lab down --name "$name" --keep-engine' EXIT
keep() { tee /dev/stderr | sed -n 's/.*measured: //p' >>"$figures"; }

echo
echo "## one node with many devices; a soak of the socket; an event's way to its watcher"
go test -count=1 -v -run 'TestScale|TestMemoryOfFewDevices|TestSoak|TestEventReachesItsWatcherInTime' \
  ./driver ./driver/internal/plugin | keep || echo "bench: a limit was missed, or a test failed: see above" >&2

bin/lab up --name "$name" --gpus simulated=h100:12 # brings engine and image
echo
echo "## the driver against a plugin that does nothing; a soak of Pods"
DRA_LAB_SOAK=${SOAK:-10m} bin/lab run --name "$name" basic speed soak | keep
image=$(bin/lab node-image list -o json | sed -n 's/.*"ref": "\(.*\)".*/\1/p' | grep -v kubelet | head -n 1)
bin/lab down --name "$name" --keep-engine
alone=$(mktemp) && up=$(mktemp)
trap 'rm -f "$figures" "$alone" "$up"; bin/lab down --name "$name" --keep-engine' EXIT
go test -c -o bin/cluster.test ./lab/cluster
TIMEFORMAT=%R
for _ in $(seq "$rounds"); do
  (cd lab/cluster && DRA_LAB_BENCH_IMAGE=$image ../../bin/cluster.test -test.run '^$' -test.bench KindAlone -test.benchtime 1x) |
    awk '/^BenchmarkKindAlone/ {print $3 / 1e9}' >>"$alone"
  { time bin/lab up --name "$name" >/dev/null 2>&1; } 2>>"$up"
  bin/lab down --name "$name" --keep-engine 2>/dev/null
done

echo
echo "## lab up (cluster, driver, ready) against kind alone, warm, $rounds rounds in turn"
paste "$alone" "$up" | awk '
  BEGIN { printf "%-8s %12s %10s %6s\n", "round", "kind alone", "lab up", "ratio" }
  { printf "%-8d %10.1f s %8.1f s %6.2f\n", NR, $1, $2, $2 / $1 }'

echo
echo "## figures with a limit"
awk -F ': ' '
  BEGIN { printf "%-66s %-28s %s\n", "what", "measured", "limit" }
  {
    value = $NF; what = substr($0, 1, length($0) - length(value) - 2)
    open = index(value, " (")
    printf "%-66s %-28s %s\n", what, substr(value, 1, open - 1), substr(value, open + 2, length(value) - open - 2)
  }' "$figures"
