// Keeper measures connections held by a fleet: beats a second in all, CPU, memory a connection, how long a stop and a
// take-over take; and what leases cost on DynamoDB, by counted requests, beside one heart-beat per connection.
//
//	cd bench && go run ./keeper                     # 2,000 connections, 3 workers, on Redis and SQLite (needs redis-server)
//	cd bench && go run ./keeper -cost -for 2m       # requests and cost (needs dynalite: tools/install)
package main
