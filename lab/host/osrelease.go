package host

import (
	"os"
	"slices"
	"strings"
)

// OSRelease is what a system says about itself.
type OSRelease struct {
	ID     string   `json:"id"`               // such as "debian"
	IDLike []string `json:"idLike,omitempty"` // what it descends from
	Name   string   `json:"name"`             // for people
}

func readOSRelease(path string) OSRelease {
	text, err := os.ReadFile(path)
	if err != nil {
		return OSRelease{Name: "an unknown system"}
	}
	return parseOSRelease(string(text))
}

func parseOSRelease(text string) OSRelease {
	r := OSRelease{Name: "an unknown system"}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch {
		case !ok:
		case key == "ID":
			r.ID = value
		case key == "ID_LIKE":
			r.IDLike = strings.Fields(value)
		case key == "PRETTY_NAME":
			r.Name = value
		}
	}
	return r
}

// debianLike reports whether the system takes Debian's packages.
func (r OSRelease) debianLike() bool {
	return r.ID == "debian" || r.ID == "ubuntu" || slices.Contains(r.IDLike, "debian") || slices.Contains(r.IDLike, "ubuntu")
}
