// Package instances counts the living instances of what a room protects: its
// limit is min(capacity.active, per_instance × that count).
//
// A [Source] knows the count or says why it does not: usher's own nodes, the
// ready pods of a Kubernetes selector (instances/kubernetes), a number from the
// file ([Static]). A source may fail; a [Counter] in front of it never does. It
// holds the last count for [Hold], and after that gives the room's fallback.
package instances
