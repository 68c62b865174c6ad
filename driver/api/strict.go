package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
)

// name matches what may name a fault or a device: it becomes part of file
// names, so it has no slash and does not begin with a dot.
var name = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// decodeStrict reads exactly one JSON value without unknown fields.
func decodeStrict(data []byte, limit int, into any) error {
	if len(data) > limit {
		return fmt.Errorf("%d bytes, at most %d allowed", len(data), limit)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("empty")
		}
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}
