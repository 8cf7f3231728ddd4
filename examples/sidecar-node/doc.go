// Package sidecarnode shows a service in Node whose sessions live in its memory, with usher sidecar beside each instance.
// It has no Go code but its test.
package sidecarnode
