# DRA lab. `make` lists the targets; each of them is one command that can also be run by hand.

GO        ?= go
LAB       := bin/lab
NAME      ?= dra-lab
TEST_NAME ?= dra-lab-test

# The flags that cgo has anyway, and silence about go-nvml's bindings of functions that NVIDIA
# has deprecated.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

.DEFAULT_GOAL := help

##@ The lab

.PHONY: lab-up
lab-up: ## Set up this machine, the cluster and the driver, then run the training walk-through
	@scripts/build.sh lab-up
	$(LAB) up --name $(NAME) $(UP_FLAGS)
	$(LAB) run --name $(NAME) training

.PHONY: lab-down
lab-down: build ## Remove the cluster and what the lab made on this machine; caches stay
	$(LAB) down --name $(NAME)

##@ Development

.PHONY: build
build: ## Build the lab's programs into bin/
	@scripts/build.sh

.PHONY: test
test: build ## Unit tests with the race detector, then short scenarios and reproductions on real kind clusters
	scripts/test.sh $(TEST_NAME) short

.PHONY: test-all
test-all: build ## All unit tests, scenarios and reproductions (builds older kubelets)
	scripts/test.sh $(TEST_NAME) all

.PHONY: reproduce
reproduce: build ## All reproductions of upstream issues, and kubelets side by side (builds older kubelets)
	$(LAB) reproduce matrix
	$(LAB) reproduce kubelets
	$(LAB) reproduce packages --all

.PHONY: lint
lint: ## golangci-lint, at the version that scripts/tools/go.mod pins
	$(GO) tool -modfile=scripts/tools/go.mod golangci-lint run ./...

.PHONY: bench
bench: build ## Benchmarks
	scripts/bench.sh

.PHONY: clean
clean: ## Remove what build made in this folder
	rm -rf bin diagnostics

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
