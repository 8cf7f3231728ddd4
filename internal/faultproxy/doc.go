// Package faultproxy stands between an AWS client and an emulator of DynamoDB (dynalite) or Kinesis (kinesalite), and does
// what the service does and they do not: throttles with the service's own error, answers late, loses the answer to a write
// that was done, refuses connections, and serves an index that lags behind its table.
//
//	emu, err := faultproxy.Start("dynalite")     // ErrMissing: not installed
//	p, err := faultproxy.New(emu.URL)
//	p.Add(faultproxy.Rule{Op: "UpdateItem", Fault: faultproxy.LoseReply, Prob: 0.1})
//	client := dynamodb.New(… BaseEndpoint: p.URL …)
//	p.Requests()["UpdateItem"]
//
// For tests.
package faultproxy
