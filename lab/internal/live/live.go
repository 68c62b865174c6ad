// Package live gives tests a running lab. Tests that need one do not run without
// it, and say so.
package live

import (
	"os"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/dra-lab/dra-lab/lab/cluster"
)

// Cluster opens the cluster that DRA_LAB_CLUSTER names, with an administrator's
// client, or skips the test.
func Cluster(t *testing.T) (*cluster.Cluster, *kubernetes.Clientset) {
	t.Helper()
	name := os.Getenv("DRA_LAB_CLUSTER")
	if name == "" {
		t.Skip("NOT RUN: needs a cluster of the lab; set DRA_LAB_CLUSTER to its name, after \"make build\" and \"lab up\"")
	}
	c, err := cluster.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c, client
}
