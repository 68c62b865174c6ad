package image

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxLibraries bounds how many shared objects one program may pull in.
const maxLibraries = 256

// Closure lists the files that program needs in order to start: its loader and
// all shared libraries, directly or through each other, in alphabetical order.
// It is empty for a static program. Each path is where the loader itself would
// look, so a container that has the files at the same paths needs no cache and
// no configuration. A library that is not there is an error that names it and
// who asks for it. Libraries that it may need are those that it opens while it
// runs; those of them that this machine does not have are left out.
func Closure(program string, may ...string) ([]string, error) {
	main, err := inspect(program)
	if err != nil {
		return nil, err
	}
	if main.interpreter == "" {
		if len(main.needed) > 0 {
			return nil, fmt.Errorf("read %q: needs %s but names no loader", program, strings.Join(main.needed, ", "))
		}
		return nil, nil
	}
	if _, err := os.Stat(main.interpreter); err != nil {
		return nil, fmt.Errorf("find the loader of %q: %w", program, err)
	}
	found := map[string]bool{main.interpreter: true}
	// The loader is known to itself under its file name: libraries ask for it
	// like for any other.
	byName := map[string]bool{filepath.Base(main.interpreter): true}
	queue := []object{main}
	for _, name := range may {
		library, err := locate(name, main, main)
		if errors.Is(err, fs.ErrNotExist) || byName[name] {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find %q for %q: %w", name, program, err)
		}
		byName[name] = true
		found[library.path] = true
		queue = append(queue, library)
	}
	for len(queue) > 0 {
		current := queue[0]
		queue = queue[1:]
		for _, name := range current.needed {
			if byName[name] {
				continue
			}
			byName[name] = true
			library, err := locate(name, current, main)
			if err != nil {
				return nil, fmt.Errorf("find %q for %q: %w", name, current.path, err)
			}
			if len(byName) > maxLibraries {
				return nil, fmt.Errorf("collect the libraries of %q: more than %d", program, maxLibraries)
			}
			found[library.path] = true
			queue = append(queue, library)
		}
	}
	paths := make([]string, 0, len(found))
	for path := range found {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths, nil
}

// object is what the headers of an ELF file say about what it needs.
type object struct {
	path        string
	interpreter string // empty: static, or a library
	needed      []string
	runpath     []string
	class       elf.Class
	machine     elf.Machine
}

func inspect(path string) (object, error) {
	file, err := elf.Open(path)
	if err != nil {
		return object{}, fmt.Errorf("read %q as an ELF file: %w", path, err)
	}
	defer file.Close() //nolint:errcheck // only read
	o := object{path: path, class: file.Class, machine: file.Machine}
	for _, p := range file.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
		if err != nil {
			return object{}, fmt.Errorf("read the loader's name in %q: %w", path, err)
		}
		o.interpreter = strings.TrimRight(string(text), "\x00")
	}
	if o.needed, err = dynStrings(file, elf.DT_NEEDED); err != nil {
		return object{}, fmt.Errorf("read the libraries that %q needs: %w", path, err)
	}
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		lists, err := dynStrings(file, tag)
		if err != nil {
			return object{}, fmt.Errorf("read the library path of %q: %w", path, err)
		}
		for _, list := range lists {
			o.runpath = append(o.runpath, filepath.SplitList(list)...)
		}
	}
	return o, nil
}

// dynStrings is empty for a file without a dynamic section.
func dynStrings(file *elf.File, tag elf.DynTag) ([]string, error) {
	values, err := file.DynString(tag)
	if errors.Is(err, elf.ErrNoSymbols) {
		return nil, nil
	}
	return values, err
}

// locate finds a library where the loader would: in the path that the asking
// file brings, else in the loader's built-in directories. A file for another
// machine is passed over, as the loader does.
func locate(name string, asking, main object) (object, error) {
	if strings.Contains(name, "/") {
		return inspect(name)
	}
	directories := make([]string, 0, len(asking.runpath)+8)
	for _, directory := range asking.runpath {
		origin := filepath.Dir(asking.path)
		directory = strings.ReplaceAll(directory, "${ORIGIN}", origin)
		directories = append(directories, strings.ReplaceAll(directory, "$ORIGIN", origin))
	}
	directories = append(directories, systemDirectories(main)...)
	for _, directory := range directories {
		path := filepath.Join(directory, name)
		library, err := inspect(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return object{}, err
		case library.class != main.class || library.machine != main.machine:
			continue
		}
		return library, nil
	}
	return object{}, fmt.Errorf("not in %s: %w", strings.Join(directories, ", "), fs.ErrNotExist)
}

// systemDirectories are those that loaders have built in: Debian's by
// architecture, the others' by word size.
func systemDirectories(main object) []string {
	var directories []string
	switch main.machine {
	case elf.EM_X86_64:
		directories = append(directories, "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu")
	case elf.EM_AARCH64:
		directories = append(directories, "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
	}
	if main.class == elf.ELFCLASS64 {
		directories = append(directories, "/lib64", "/usr/lib64")
	}
	return append(directories, "/lib", "/usr/lib", filepath.Dir(main.interpreter))
}
