// Package kubernetes counts the ready pods of a label selector, as a source of
// [instances].
//
// Pods are listed once and then watched, so that a count costs nothing and
// follows the cluster at once. A watch that hears nothing proves nothing, so it
// is asked for again each 10 s: a lost API server, a dead connection or a
// revoked right is an error within 15 s, and the last count holds from there on.
//
// A pod counts when it is ready, runs and is not being deleted: one that is on
// its way out still serves who is inside, and is no room for more.
//
// What usher may do is one rule: list and watch pods in the namespace counted.
// An API server that refuses is answered with that rule in the error.
package kubernetes
