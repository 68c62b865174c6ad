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

// SaveDriverImage writes the driver's image for a repository, such as
// "registry.example/dra-lab/driver" (empty: that of the lab), to file, whole or
// not at all, and returns its reference. It is made of the program in artifacts,
// as in Options.
func SaveDriverImage(file, repository, artifacts string) (ref string, err error) {
	if artifacts == "" {
		if artifacts, err = FindArtifacts(); err != nil {
			return "", err
		}
	}
	program := filepath.Join(artifacts, driverProgram)
	if _, err := os.Stat(program); err != nil {
		return "", unbuilt(fmt.Errorf("find the program %s: %w", driverProgram, err))
	}
	driver, err := image.Build(cmp.Or(repository, driverRepository), program)
	if err != nil {
		return "", ui.WithHint(err, "a repository has a registry, as in registry.example/dra-lab/driver")
	}
	out, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-")
	if err != nil {
		return "", fmt.Errorf("save image %s: %w", driver.Ref(), err)
	}
	err = errors.Join(image.Write(out, driver), out.Chmod(0o644), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), file)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("save image %s: %w", driver.Ref(), err), os.Remove(out.Name()))
	}
	return driver.Ref(), nil
}
