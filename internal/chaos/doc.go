// Package chaos runs several real usher processes on one Redis behind a load balancer, under the crowd of usher bench,
// and takes parts of it away: it kills and stops processes, cuts networks, restarts and replaces Redis, drains and adds
// nodes. What its tests promise are counts that must be 0.
package chaos
