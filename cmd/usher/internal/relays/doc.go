// Package relays opens the relays of a configuration file, or of a command line, and runs them: their sources and sinks,
// leases and dead letters, metrics.
//
// A new source or sink needs a section in config/relay.go and a case in open.go; for the command line, one in address.go.
package relays
