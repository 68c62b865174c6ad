package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	kind "sigs.k8s.io/kind/pkg/cluster"
)

// merged is what merging a cluster's access into the user's kubeconfig changed,
// so that it can be undone.
type merged struct {
	Path string `json:"path,omitempty"`
	// What was not there before.
	NewFile bool `json:"newFile,omitempty"`
	NewDir  bool `json:"newDir,omitempty"`
	// Previous is the context that was the current one.
	Previous string `json:"previous,omitempty"`
}

// ContextName returns the kubeconfig context of a cluster.
func ContextName(cluster string) string { return "kind-" + cluster }

// userKubeconfig returns the file that kubectl would change: the first existing
// one that $KUBECONFIG lists, else the last it lists, else ~/.kube/config. Files
// of clusters, which "lab env" exports, do not count: they have what they need.
func userKubeconfig() (string, error) {
	clusters, err := clustersDir()
	if err != nil {
		return "", err
	}
	var listed []string
	for _, path := range filepath.SplitList(os.Getenv("KUBECONFIG")) {
		if path != "" && !strings.HasPrefix(filepath.Clean(path), clusters+string(filepath.Separator)) {
			listed = append(listed, path)
		}
	}
	for _, path := range listed {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return filepath.Abs(path)
		}
	}
	if len(listed) > 0 {
		return filepath.Abs(listed[len(listed)-1])
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find kubeconfig (or set KUBECONFIG): %w", err)
	}
	return filepath.Join(home, ".kube", "config"), nil
}

// planMerge finds out what a merge will change, without doing it. Before is what
// an earlier merge recorded.
func planMerge(name string, before merged) (merged, error) {
	path, err := userKubeconfig()
	if err != nil {
		return before, err
	}
	m := merged{Path: path}
	if before.Path == path {
		m = before
	} else {
		_, err := os.Stat(path)
		m.NewFile = errors.Is(err, fs.ErrNotExist)
		_, err = os.Stat(filepath.Dir(path))
		m.NewDir = errors.Is(err, fs.ErrNotExist)
	}
	if config, err := clientcmd.LoadFromFile(path); err == nil && config.CurrentContext != ContextName(name) {
		m.Previous = config.CurrentContext
	}
	return m, nil
}

// merge makes the cluster's context the current one of the user's kubeconfig, as
// kind does.
func (m merged) merge(provider *kind.Provider, name string) error {
	if err := provider.ExportKubeConfig(name, m.Path, false); err != nil {
		return fmt.Errorf("merge context %s into %s: %w", ContextName(name), m.Path, err)
	}
	return nil
}

// unmerge undoes merge, done or not: the context goes, the one before becomes
// current again if it is still there, and a file or directory that was made for it goes with it.
func (m merged) unmerge(name string) error {
	if m.Path == "" {
		return nil
	}
	config, err := clientcmd.LoadFromFile(m.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove context %s from %s: %w", ContextName(name), m.Path, err)
	}
	if !dropContext(config, ContextName(name), m.Previous) {
		return nil
	}
	if m.NewFile && isEmptyConfig(config) {
		if err := os.Remove(m.Path); err != nil {
			return err
		}
		if m.NewDir {
			_ = os.Remove(filepath.Dir(m.Path)) // fails if kubectl has put its cache there
		}
		return nil
	}
	options := &clientcmd.PathOptions{
		LoadingRules: &clientcmd.ClientConfigLoadingRules{ExplicitPath: m.Path}, GlobalFile: m.Path,
	}
	if err := clientcmd.ModifyConfig(options, *config, true); err != nil {
		return fmt.Errorf("remove context %s from %s: %w", ContextName(name), m.Path, err)
	}
	return nil
}

// dropContext removes a context with the cluster and user of the same name, and
// reports whether there was anything to remove.
func dropContext(config *clientcmdapi.Config, context, previous string) bool {
	before := len(config.Contexts) + len(config.Clusters) + len(config.AuthInfos)
	delete(config.Contexts, context)
	delete(config.Clusters, context)
	delete(config.AuthInfos, context)
	changed := before != len(config.Contexts)+len(config.Clusters)+len(config.AuthInfos)
	if config.CurrentContext == context {
		changed = true
		config.CurrentContext = ""
		if _, ok := config.Contexts[previous]; ok {
			config.CurrentContext = previous
		}
	}
	return changed
}

func isEmptyConfig(config *clientcmdapi.Config) bool {
	return len(config.Contexts)+len(config.Clusters)+len(config.AuthInfos) == 0
}
