package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dra-lab/dra-lab/lab/install/internal/image"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// Programs that the images are made of, by their names in a directory of
// artifacts.
const (
	driverProgram     = "driver"
	controllerProgram = "controller"
	trainerProgram    = "trainer"
)

// Repositories of the lab's images. They are in no registry.
const (
	driverRepository     = "docker.io/dra-lab/driver"
	controllerRepository = "docker.io/dra-lab/controller"
	trainerRepository    = "docker.io/dra-lab/trainer"
)

// FindArtifacts returns the directory of the running program if driver,
// controller and trainer are in it, else an error with the cure.
func FindArtifacts() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the lab's own program: %w", err)
	}
	directory := filepath.Dir(self)
	for _, program := range []string{driverProgram, controllerProgram, trainerProgram} {
		if _, err := os.Stat(filepath.Join(directory, program)); err != nil {
			return "", unbuilt(fmt.Errorf("find the program %s: %w", program, err))
		}
	}
	return directory, nil
}

// unbuilt adds the cure to an error about a program that is not there.
func unbuilt(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return ui.WithHint(err, "make build")
	}
	return err
}

// images are those that the lab needs.
type images struct {
	driver, controller, trainer *image.Image
}

func (i images) list() []*image.Image { return []*image.Image{i.driver, i.controller, i.trainer} }

// nvmlNeeds is what NVIDIA's library needs of a C library besides what the driver
// itself does, which opens it at run time. Newer C libraries have these names
// for older programs only, and some systems do not install them.
func nvmlNeeds() []string {
	return []string{"libpthread.so.0", "libm.so.6", "libdl.so.2", "librt.so.1"}
}

// build makes the images of the programs in directory.
func build(directory string) (images, error) {
	var built images
	for _, i := range []struct {
		image               **image.Image
		repository, program string
		needs               []string
	}{
		{&built.driver, driverRepository, driverProgram, nvmlNeeds()},
		{&built.controller, controllerRepository, controllerProgram, nil},
		{&built.trainer, trainerRepository, trainerProgram, nil},
	} {
		var err error
		if *i.image, err = image.Build(i.repository, filepath.Join(directory, i.program), i.needs...); err != nil {
			return images{}, unbuilt(err)
		}
	}
	return built, nil
}
