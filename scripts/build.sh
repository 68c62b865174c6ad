#!/usr/bin/env bash
# usage: scripts/build.sh [lab-up]
# Builds the lab's programs into bin/; with lab-up, only those that `make lab-up` runs: the
# others take minutes, too, while Go's build cache is empty. The driver needs cgo (go-nvml loads the NVIDIA
# library at run time); the others are static. Its symbols are bound lazily: a library older
# than go-nvml's headers lacks some, and binding at start would end the process.
# grpcnotrace leaves out gRPC's debug pages: with them the linker must keep every exported
# method, and the driver needs 11 MB more memory.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1-} in
  '' | lab-up) ;;
  *) echo "usage: scripts/build.sh [lab-up]" >&2; exit 2 ;;
esac

for tool in go gcc; do
  command -v "$tool" >/dev/null || {
    echo "lab: error: build the lab: $tool not found" >&2
    echo "lab: hint: on Debian or Ubuntu: apt-get install golang gcc libc6-dev (Go 1.26 or newer: https://go.dev/dl)" >&2
    exit 1
  }
done

mkdir -p bin
flags=(-trimpath -buildvcs=false -tags=grpcnotrace -ldflags=-s\ -w)
building() { echo "lab: building ${*/#/bin/} (minutes when Go's build cache is empty)" >&2; }

building lab controller trainer
CGO_ENABLED=0 go build "${flags[@]}" -o bin/ ./lab ./driver/controller ./scenarios/trainer
building driver
CGO_ENABLED=1 CGO_LDFLAGS_ALLOW='-Wl,-z,lazy' CGO_LDFLAGS='-Wl,-z,lazy' \
  go build "${flags[@]}" -o bin/driver ./driver
building scenarios.test
CGO_ENABLED=0 go test -c "${flags[@]}" -o bin/scenarios.test ./scenarios
if [ "${1-}" = lab-up ]; then exit; fi
building reproduce exercise idle
CGO_ENABLED=0 go build "${flags[@]}" -o bin/ ./scenarios/upstream/reproduce ./scenarios/exercises/exercise ./driver/idle
# The race detector's part of `lab run connections` runs in a process of its own.
building connections-race
CGO_ENABLED=1 go build -race -trimpath -buildvcs=false -o bin/connections-race ./scenarios/connections/racecheck
