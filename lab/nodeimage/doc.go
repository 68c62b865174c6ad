// Package nodeimage provides the images that the lab's kind nodes run.
//
// Ensure takes what the engine already has, else pulls kind's own image, else
// builds one from source. A build needs no image registry: Kubernetes,
// containerd and their company come as Go modules, the user space as Debian
// packages. Everything is put together on the host; the engine only loads the
// finished image.
//
// A build is a list of steps (recipe.go reads from top to bottom). The output
// of a step lies in the cache under a name that hashes everything it was made
// from, and appears there whole or not at all. So a second build does nothing,
// and one that was interrupted goes on with the step it was in.
//
// The package never guesses what an image brings: Inspect looks inside.
//
// Images are built for the architecture and by the root user of the host they
// are built on; on anything but Linux as root Build refuses to start.
package nodeimage
