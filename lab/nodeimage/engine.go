package nodeimage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// An Engine runs the command line of a container engine: docker, podman or
// nerdctl. *host.Engine is one.
type Engine interface {
	Command(ctx context.Context, args ...string) *exec.Cmd
}

// temporary marks containers that nobody misses if they are left behind:
// stopping the private engine removes them.
const temporary = "--label=dra-lab.temporary=nodeimage"

// engineImage is what the engine says about an image.
type engineImage struct {
	ID     string
	Config struct{ Labels map[string]string }
}

// lookUp asks the engine for an image. The second result says whether it has
// it; an engine that does not answer is an error.
func lookUp(ctx context.Context, eng Engine, ref string) (engineImage, bool, error) {
	out, err := run(ctx, eng.Command(ctx, "image", "inspect", ref), nil)
	if err != nil {
		var failure *commandError
		if errors.As(err, &failure) && containsAny(strings.ToLower(failure.Output),
			"no such image", "image not known", "no such object", "failed to find image") {
			return engineImage{}, false, nil
		}
		return engineImage{}, false, fmt.Errorf("look up image %q: %w", ref, err)
	}
	var images []engineImage
	if err := json.Unmarshal([]byte(out), &images); err != nil {
		return engineImage{}, false, fmt.Errorf("look up image %q: read the engine's answer: %w", ref, err)
	}
	if len(images) != 1 {
		return engineImage{}, false, fmt.Errorf("look up image %q: the engine knows %d", ref, len(images))
	}
	return images[0], true, nil
}

// load gives the engine an image archive.
func load(ctx context.Context, eng Engine, archive io.Reader) error {
	cmd := eng.Command(ctx, "load")
	cmd.Stdin = archive
	_, err := run(ctx, cmd, nil)
	return err
}

// dataRoot returns the directory in which the engine keeps its images, or ""
// if it does not say.
func dataRoot(ctx context.Context, eng Engine) string {
	for _, format := range []string{"{{.DockerRootDir}}", "{{.Store.GraphRoot}}"} {
		out, err := run(ctx, eng.Command(ctx, "info", "--format", format), nil)
		if dir := strings.TrimSpace(out); err == nil && strings.HasPrefix(dir, "/") {
			return dir
		}
	}
	return ""
}
