// Package caddy is the example of Caddy in front of a site, asking usher by forward_auth; see README.md. Its test
// runs the configuration in a real Caddy.
package caddy
