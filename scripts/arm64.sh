#!/usr/bin/env bash
# usage: scripts/arm64.sh
# Compiles the lab's programs for 64-bit ARM. The driver needs cgo, so a C compiler for that
# machine: without one it is left out, and this says so.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOOS=linux GOARCH=arm64
CGO_ENABLED=0 go build -o /dev/null ./lab ./scenarios/trainer ./scenarios/upstream/reproduce
CGO_ENABLED=0 go test -c -o /dev/null ./scenarios
if command -v aarch64-linux-gnu-gcc >/dev/null; then
  CC=aarch64-linux-gnu-gcc CGO_ENABLED=1 CGO_LDFLAGS_ALLOW='-Wl,-z,lazy' CGO_LDFLAGS='-Wl,-z,lazy' \
    go build -tags=grpcnotrace -o /dev/null ./driver
else
  echo "arm64: the driver was left out, aarch64-linux-gnu-gcc not found (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross)" >&2
fi
