package nodeimage

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

const kubernetesModule = "k8s.io/kubernetes"

var (
	// ErrNoVersion is wrapped by errors about a version that nobody publishes.
	ErrNoVersion = errors.New("no such version")
	// ErrNoNetwork is wrapped by errors about sources that cannot be reached.
	ErrNoNetwork = errors.New("source not reachable")
)

// ParseVersion brings a Kubernetes version into the form v1.37.2; the leading
// v may be missing. It does not ask whether the version exists.
func ParseVersion(version string) (string, error) {
	v := version
	if !strings.HasPrefix(v, "v") {
		v = "v" + v
	}
	if !releaseVersion().MatchString(v) || !semver.IsValid(v) {
		err := fmt.Errorf("kubernetes version %q is not of the form v1.37.2", version)
		return "", ui.WithHint(ui.UsageError(err), "give all three numbers, as in v1.37.2")
	}
	return v, nil
}

func releaseVersion() *regexp.Regexp {
	return regexp.MustCompile(`^v1\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?$`)
}

// classifyModuleError turns what Go says about a module that it could not get
// into an error that says which of two things it was: the version does not
// exist, or nothing could be asked. Other errors (it does not compile) stay.
func classifyModuleError(module, version string, err error) error {
	text := err.Error() + "\n" + ui.Detail(err)
	switch {
	case containsAny(text,
		"module lookup disabled by GOPROXY=off", "dial tcp", "no such host", "connection refused",
		"i/o timeout", "network is unreachable", "no route to host", "TLS handshake timeout",
		"proxyconnect", "connection reset by peer", "server misbehaving"):
		return noNetwork(module, err)
	case !strings.Contains(text, module+"@"+version+": "):
		// About another module that this one requires, or not about modules at all.
		return fmt.Errorf("get or build %s %s: %w", module, version, err)
	case containsAny(text,
		"unknown revision", "no matching versions", "invalid version", "not available",
		"404 Not Found", "410 Gone", "403 Forbidden"):
		return fmt.Errorf("get %s %s: %w", module, version, ErrNoVersion)
	}
	return fmt.Errorf("get or build %s %s: %w", module, version, err)
}

func noNetwork(what string, cause error) error {
	err := ui.WithDetail(fmt.Errorf("get %s: %w: %s", what, ErrNoNetwork, lastLine(cause.Error())),
		"output", ui.Detail(cause))
	return ui.WithHint(err, "building a node image needs a Go module proxy (GOPROXY) and a Debian mirror; "+
		"set HTTPS_PROXY if there is a proxy, or load an image that another machine built (docker save, docker load)")
}

func containsAny(text string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
}

// checkKubernetes asks whether a version of Kubernetes can be had. The error
// about one that cannot names those that come nearest.
func (g goTools) checkKubernetes(ctx context.Context, version string) error {
	_, err := run(ctx, g.command(ctx, "", false, "list", "-m", kubernetesModule+"@"+version), nil)
	if err == nil {
		return nil
	}
	err = classifyModuleError(kubernetesModule, version, err)
	if !errors.Is(err, ErrNoVersion) {
		return err
	}
	err = fmt.Errorf("kubernetes %s: %w", version, ErrNoVersion)
	served, listErr := g.versions(ctx, kubernetesModule)
	if near := nearest(version, served, 4); listErr == nil && len(near) > 0 {
		return ui.WithHint(err, "versions that can be built: %s; all of them: go list -m -versions %s",
			strings.Join(near, ", "), kubernetesModule)
	}
	return ui.WithHint(err, "see the versions there are with: go list -m -versions %s", kubernetesModule)
}

// versions returns the versions of a module that the proxy lists, oldest first.
func (g goTools) versions(ctx context.Context, module string) ([]string, error) {
	out, err := run(ctx, g.command(ctx, "", false, "list", "-m", "-versions", module), nil)
	if err != nil {
		return nil, fmt.Errorf("list versions of %s: %w", module, err)
	}
	fields := strings.Fields(out)
	if len(fields) == 0 {
		return nil, nil
	}
	return fields[1:], nil // the first is the module itself
}

// nearest returns up to n of the served versions that somebody who asked for
// version may have meant: those of the same minor version first, then the
// newest ones of its neighbours. The result is sorted, newest first.
func nearest(version string, served []string, n int) []string {
	wanted := minorNumber(version)
	candidates := slices.Clone(served)
	slices.SortStableFunc(candidates, func(a, b string) int {
		if byMinor := abs(minorNumber(a)-wanted) - abs(minorNumber(b)-wanted); byMinor != 0 {
			return byMinor
		}
		return semver.Compare(b, a)
	})
	candidates = candidates[:min(n, len(candidates))]
	slices.SortFunc(candidates, func(a, b string) int { return semver.Compare(b, a) })
	return candidates
}

// minorNumber returns 37 for v1.37.2, and 0 for what it cannot read.
func minorNumber(version string) int {
	var minor int
	_, _ = fmt.Sscanf(version, "v1.%d", &minor)
	return minor
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}

// closest picks the version of a companion program to build where a release of
// Kubernetes asks for want: itself if it is served, else the lowest one above
// within the same minor version, else the highest below, else the lowest above
// at all. It returns "" if nothing is served.
func closest(want string, served []string) string {
	if slices.Contains(served, want) {
		return want
	}
	stable := slices.DeleteFunc(slices.Clone(served), func(v string) bool { return semver.Prerelease(v) != "" })
	semver.Sort(stable)
	var below, above string
	for _, v := range stable {
		if semver.Compare(v, want) < 0 {
			below = v
		} else if above == "" {
			above = v
		}
	}
	switch {
	case above != "" && semver.MajorMinor(above) == semver.MajorMinor(want), below == "":
		return above
	default:
		return below
	}
}
