// KEDA's own client of external scalers, and its CRDs, apart so that KEDA is
// nobody's dependency.
module github.com/ushergo/usher/deploy/kubernetes/kedatest

go 1.26.0

require (
	github.com/kedacore/keda/v2 v2.21.0
	golang.org/x/net v0.58.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260904194346-d0f1323225a4 // indirect
	google.golang.org/grpc v1.84.0
	google.golang.org/protobuf v1.36.12 // indirect
)
