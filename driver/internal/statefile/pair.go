package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Promise is what holds when a write has returned without an error.
type Promise int

const (
	// Kept means that the new document survives the death of the process. If
	// the machine dies, the last durable one is found.
	Kept Promise = iota
	// Durable means that it survives the death of the machine too.
	Durable
)

// Sizes of a file. What a document may grow to without an extra wait is taken
// from the start; how much is compared to notice a change is enough for the
// checksum.
const (
	block     = 4 << 10
	firstSize = 64 << 10
	headSize  = 128
)

// Pair is a document in two files that are written in place by turns, so that
// one of them is always whole and durable: the last durable document is never
// overwritten. Both are padded with spaces, which is still JSON.
//
// In place, because the alternative is slow just when it matters: replacing a
// file changes the directory and allocates space, and the file system then
// writes out what everybody else has changed as well. While Pods start on the
// node that was seen to take 20 ms on average; overwriting takes well below 1.
//
// A Pair may be open several times, in several processes; callers have to
// exclude each other around every method.
type Pair struct {
	files [2]*os.File
	slots [2]slot
	sync  func(*os.File) error
}

// slot is what is known of one file.
type slot struct {
	head     []byte // how the content begins; no two contents begin alike
	length   int    // of the content, without the padding
	sequence uint64 // 0 if the content is not valid
	durable  bool
}

// OpenPair opens base-a.json and base-b.json, which it creates.
func OpenPair(base string) (*Pair, error) {
	p := &Pair{sync: func(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }}
	for i, suffix := range []string{"-a.json", "-b.json"} {
		f, err := openPadded(base + suffix)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open %q: %w", base+suffix, err), p.Close())
		}
		p.files[i] = f
	}
	if err := syncDir(filepath.Dir(base)); err != nil {
		return nil, errors.Join(fmt.Errorf("open %q: %w", base, err), p.Close())
	}
	return p, nil
}

// openPadded opens a file and takes its space on the disk: overwriting what has
// been written once allocates nothing.
func openPadded(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < firstSize {
		_, err = f.WriteAt(bytes.Repeat([]byte(" "), firstSize-int(info.Size())), info.Size())
		if err == nil {
			err = f.Sync()
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Close closes the files.
func (p *Pair) Close() error {
	var err error
	for _, f := range p.files {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// Changed says whether somebody has written since the last Load or Store of
// this Pair. Before the first it is true.
func (p *Pair) Changed() (bool, error) {
	for i, f := range p.files {
		head := make([]byte, headSize)
		if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
			return false, fmt.Errorf("read %q: %w", f.Name(), err)
		}
		if !bytes.Equal(head, p.slots[i].head) {
			return true, nil
		}
	}
	return false, nil
}

// Load decodes the newest document of the given version. found is false when
// nothing was ever written. A durable document is on the disk when Load returns,
// even if its writer died before. A file that is damaged is passed over if the other
// one is good, since a write that was cut off leaves exactly that; when neither
// is, that is ErrCorrupt.
func (p *Pair) Load(version string, into any) (found bool, err error) {
	var damage error
	var newest document
	var in *os.File // that has the newest
	for i, f := range p.files {
		content, err := io.ReadAll(io.NewSectionReader(f, 0, maxBytes+1))
		if err != nil {
			return false, fmt.Errorf("read %q: %w", f.Name(), err)
		}
		head := make([]byte, headSize)
		copy(head, content)
		content = bytes.TrimRight(content, " \n")
		p.slots[i] = slot{head: head, length: len(content)}
		if len(content) == 0 {
			continue
		}
		d, err := decode(content, version)
		if err == nil && d.Sequence == 0 {
			err = fmt.Errorf("%w: no sequence", ErrCorrupt)
		}
		if errors.Is(err, ErrVersion) {
			// It is whole, and may be the newest: the other one is no
			// substitute.
			return false, fmt.Errorf("read %q: %w", f.Name(), err)
		}
		if err != nil {
			damage = errors.Join(damage, fmt.Errorf("read %q: %w", f.Name(), err))
			continue
		}
		p.slots[i].sequence, p.slots[i].durable = d.Sequence, d.Durable
		if d.Sequence > newest.Sequence {
			newest, in = d, f
		}
	}
	if newest.Sequence == 0 {
		return false, damage
	}
	if newest.Durable {
		// It says so before it is: whoever wrote it may have died in between.
		if err := p.sync(in); err != nil {
			return false, fmt.Errorf("sync %q: %w", in.Name(), err)
		}
	}
	if err := json.Unmarshal(newest.Data, into); err != nil {
		return false, fmt.Errorf("read %q: %w: %w", in.Name(), ErrCorrupt, err)
	}
	return true, nil
}

// Store writes the next document. It must follow a Load, with no Store of
// anybody else in between. After an error, Load again: the document may or may
// not have been written.
func (p *Pair) Store(version string, doc any, promise Promise) error {
	// The newest one, unless it is durable: what a machine's death would lose
	// anyway may be overwritten, what it would not must stay until the next
	// one is durable.
	newest := 0
	if p.slots[1].sequence > p.slots[0].sequence {
		newest = 1
	}
	target := newest
	if p.slots[newest].durable {
		target = 1 - newest
	}
	f, sequence := p.files[target], p.slots[newest].sequence+1
	content, err := encode(version, doc, sequence, promise == Durable)
	if err != nil {
		return fmt.Errorf("write %q: %w", f.Name(), err)
	}
	length := len(content)
	padded := (max(length, p.slots[target].length) + block) / block * block
	content = append(content, bytes.Repeat([]byte(" "), padded-length)...)
	p.slots[target] = slot{}
	if _, err := f.WriteAt(content, 0); err != nil {
		return fmt.Errorf("write %q: %w", f.Name(), err)
	}
	if promise == Durable {
		if err := p.sync(f); err != nil {
			return fmt.Errorf("write %q: %w", f.Name(), err)
		}
	}
	p.slots[target] = slot{
		head: bytes.Clone(content[:headSize]), length: length,
		sequence: sequence, durable: promise == Durable,
	}
	return nil
}
