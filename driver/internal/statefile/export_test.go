package statefile

import "os"

// OnSync has f called in place of fdatasync(2), by which tests see what the
// disk has.
func (p *Pair) OnSync(f func(*os.File) error) { p.sync = f }
