// Package config reads usher's configuration file into typed values, and says
// what is wrong with it.
//
// What it promises:
//
//   - One struct field is one key. The field's comment is the key's
//     documentation, its tags give default, range and choices; the JSON Schema
//     (schema.json) and the reference table in docs/configuration.md are
//     generated from them, so the three cannot drift apart.
//   - All errors are reported at once, each with file, line, column, the path
//     of the field (rooms[0].session.idle), what is wrong, and the mend. An
//     unknown key is an error. A key that is documented but that this build
//     does not serve yet is an error too: nothing is silently ignored.
//   - Secrets are of type [Secret], which prints as [redacted] however it is
//     formatted.
//
// The package opens no socket and reads nothing but the files it is told of
// (and whether the folders they name exist). Values are plain data: safe to
// copy and to read from many goroutines as long as nobody writes.
package config

//go:generate go run ./internal/genschema
