// Package page makes the waiting page: the one HTML page that a visitor looks at while a room keeps her
// waiting, and the pages for what else can happen to her (too early, closed, full, ended, a dead origin).
//
// What it promises:
//
//   - One response is the whole page. Style, script, texts and logo are inside it, so that waiting costs one
//     request and never queues a request of its own. Nothing is fetched from a third party.
//   - Everything that comes from outside (room, message, next, texts) is escaped by html/template, and a strict
//     Content-Security-Policy with a fresh nonce stands behind that.
//   - It works without scripts, by a plain refresh that is present only while scripts are off.
//   - A place that was shown never rises; a ticket that was issued anew is explained instead.
//
// A [Pages] holds the templates and texts of one room, ours or with an operator's folder laid over them (see
// docs/page.md). It is made once, never changes, and may be used by any number of goroutines.
//
// The script is usher.js (web/static: how news arrives) and four small files that are joined when a Pages is made:
// words.js (pure wording, twin of words.go), call.js (what the page asks for once), view.js (what is on the screen) and
// main.js (which decides).
package page
