// Package healthstream has the mend of a leak in kubelets up to v1.37.2: a health
// stream that nobody ends when its plugin deregisters right after it registered.
// issue.md is the report of it.
package healthstream

import _ "embed"

// Mend is the mend, as a patch of v1.37.2 without context lines.
//
//go:embed mend.patch
var Mend []byte
