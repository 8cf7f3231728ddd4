// Package nginx is the example of nginx in front of a site, asking usher by auth_request; see README.md. Its test
// runs the configuration in a real nginx.
package nginx
