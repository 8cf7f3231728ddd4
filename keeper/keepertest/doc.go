// Package keepertest has what tests of keepers and their sinks need: an upstream that sends numbered messages, a sink in
// memory, and the suite that holds every sink to what keeper.Sink says.
package keepertest
