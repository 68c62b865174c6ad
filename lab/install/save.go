package install

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dra-lab/dra-lab/lab/install/internal/image"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// SaveImage writes the image of a program, driver or controller, for a repository,
// such as "registry.example/dra-lab/driver" (empty: that of the lab), to file,
// whole or not at all, and returns its reference. It is made of the program in
// artifacts, as in Options.
func SaveImage(file, name, repository, artifacts string) (ref string, err error) {
	standard := map[string]string{driverProgram: driverRepository, controllerProgram: controllerRepository}[name]
	if standard == "" {
		return "", ui.UsageError(fmt.Errorf("unknown program %q: want %s or %s", name, driverProgram, controllerProgram))
	}
	if artifacts == "" {
		if artifacts, err = FindArtifacts(); err != nil {
			return "", err
		}
	}
	program := filepath.Join(artifacts, name)
	if _, err := os.Stat(program); err != nil {
		return "", unbuilt(fmt.Errorf("find the program %s: %w", name, err))
	}
	var needs []string
	if name == driverProgram {
		needs = nvmlNeeds()
	}
	built, err := image.Build(cmp.Or(repository, standard), program, needs...)
	if err != nil {
		return "", ui.WithHint(err, "a repository has a registry, as in registry.example/dra-lab/driver")
	}
	out, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-")
	if err != nil {
		return "", fmt.Errorf("save image %s: %w", built.Ref(), err)
	}
	err = errors.Join(image.Write(out, built), out.Chmod(0o644), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), file)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("save image %s: %w", built.Ref(), err), os.Remove(out.Name()))
	}
	return built.Ref(), nil
}
