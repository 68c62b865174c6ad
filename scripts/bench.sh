#!/usr/bin/env bash
# Benchmarks. First those that need no cluster, then, in one run, `lab up` against kind alone
# with the same node image and config. Machines are noisy: compare the figures of one run.
set -euo pipefail
cd "$(dirname "$0")/.."
name=dra-lab-bench
rounds=${ROUNDS:-3}

echo "## calls through the eager connection and the bare stub; prepare, unprepare; checkpoint"
go test -run '^$' -bench . -benchmem ./driver/... | grep -E '^(Benchmark|pkg:)'

bin/lab up --name "$name" # brings engine and image
image=$(bin/lab node-image list -o json | sed -n 's/.*"ref": "\(.*\)".*/\1/p' | grep -v kubelet | head -n 1)
bin/lab down --name "$name" --keep-engine
alone=$(mktemp) && up=$(mktemp)
trap 'rm -f "$alone" "$up"; bin/lab down --name "$name" --keep-engine' EXIT
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
