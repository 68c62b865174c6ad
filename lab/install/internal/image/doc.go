// Package image makes a container image out of one program, without a
// registry, an engine or root: the program, and for one that is not static the
// loader and the shared libraries that it asks for, found on this machine by
// reading the ELF headers. The same files give the same image, bit for bit, and
// the image is named by its content.
//
// It does not follow what a program loads by name while it runs (dlopen): a
// GPU's own libraries come from the node, not from here.
package image
