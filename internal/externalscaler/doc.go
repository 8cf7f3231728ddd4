// Package externalscaler is KEDA's protocol, generated with protoc 3.21,
// protoc-gen-go 1.36 and protoc-gen-go-grpc 1.6 by, in this folder,
//
//	protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative externalscaler.proto
//
// by hand, so that nobody needs protoc: the protocol changes once in years.
package externalscaler
