// Package arrows holds the test that keeps the import arrows of ARCHITECTURE.md:
// engines point to features, never back; machines are pure; nothing but tests
// imports testing; no package has mutable state. It has no code of its own.
package arrows
