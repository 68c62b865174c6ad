// Package picture draws timelines: a sequence diagram with a lane for each
// component, an arrow for each event, and beside it when it came, how long after
// its cause, and what was waited for. One run, or two beside each other with
// their differences marked.
//
// The result is one HTML file with nothing outside of it: no network, no
// program to install. It is a table, so that it can be read aloud and printed;
// the drawing is one cell of each row. Light or dark follows the reader's
// system. A few lines of script filter the rows; without script all are shown.
//
// What a row says is decided by pure functions: [timeline.Event.Lane] where an
// arrow goes, cause what came before it, waited why nothing happened, align
// which events of two runs are the same.
package picture
