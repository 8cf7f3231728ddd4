// Package kedatest asks a running usher with the client that KEDA itself uses.
package kedatest
