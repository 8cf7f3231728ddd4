// Package svc is the HTTP API for services that are not written in Go: /svc/v1/gates/… and /svc/v1/connections/…, with
// Authorization: Bearer and a service token. Its description is at /svc/v1/openapi.json. It is mounted on the admin
// listener, for service tokens are not for the public network.
//
// Every change can be repeated with the same permit id: an answer that was lost is settled by asking again. Errors are
// application/problem+json with a stable code.
package svc
