package plugin

import (
	"fmt"
	"strings"
)

// tail is a writer that keeps the end of what is written, for errors.
type tail struct {
	kept []byte
}

const maxTail = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if extra := len(t.kept) - maxTail; extra > 0 {
		t.kept = append(t.kept[:0], t.kept[extra:]...)
	}
	return len(p), nil
}

// explain adds the last line to err, if there is one.
func (t *tail) explain(err error) error {
	text := strings.TrimSpace(string(t.kept))
	if text == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, text[strings.LastIndexByte(text, '\n')+1:])
}
