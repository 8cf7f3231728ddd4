package gateway

import "net/http"

// APIRoutes are the patterns that API serves.
func APIRoutes() map[string]http.HandlerFunc { return (&api{}).routes() }
