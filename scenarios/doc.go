// Package scenarios has what the lab shows and proves on a real cluster, one
// file per scenario, each an e2e-framework feature. The first comment of each
// file says what it proves.
//
// The package compiles into one test binary (go test -c), which "lab run"
// executes, so that a machine without Go can run it:
//
//	scenarios.test [-lab.list] [-lab.output=text|json] [-lab.junit=FILE] [-test.short] [SCENARIO...]
//
// The environment names the cluster: DRA_LAB_CLUSTER a lab on this machine, or
// KUBECONFIG any cluster that has the lab's driver. Without either, all
// scenarios are skipped.
package scenarios
