// Package ui writes every byte that the user of the lab sees.
//
// The rules: stdout has results, stderr has progress and problems. Every line
// on stderr starts with "lab:". Messages start in lower case and have no full
// stop. A terminal gets one live status line; everything else gets plain lines
// that read well in a log. A step that takes longer than two seconds says how
// long it has taken, so that nobody has to guess whether it still lives.
//
// The package decides nothing: it neither exits nor retries, and it knows no
// other package of the lab.
package ui
