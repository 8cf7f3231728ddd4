package faultproxy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/internal/faultproxy"
)

func start(t *testing.T, what string) *faultproxy.Proxy {
	t.Helper()
	if testing.Short() {
		t.Skip("starts " + what)
	}
	emu, err := faultproxy.Start(what)
	if errors.Is(err, faultproxy.ErrMissing) && os.Getenv("USHER_TEST_ALL") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = emu.Close() })
	p, err := faultproxy.New(emu.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// ask sends one request as an AWS client does.
func ask(ctx context.Context, p *faultproxy.Proxy, target, body string) (int, map[string]any, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("X-Amz-Target", target)
	req.Header.Set("X-Amz-Date", "20260101T000000Z")
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=a/20260101/eu-west-1/dynamodb/aws4_request, SignedHeaders=host, Signature=b")
	req.Header.Set("Content-Type", "application/x-amz-json-1.0")
	if strings.HasPrefix(target, "Kinesis") {
		req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err
	}
	var out map[string]any
	return resp.StatusCode, out, json.Unmarshal(answer, &out)
}

func must(t *testing.T, p *faultproxy.Proxy, target, body string) map[string]any {
	t.Helper()
	status, out, err := ask(t.Context(), p, target, body)
	if err != nil || status != http.StatusOK {
		t.Fatalf("%s: %d %v %v", target, status, out, err)
	}
	return out
}

const dynamo = "DynamoDB_20120810."

func TestFaults(t *testing.T) {
	p := start(t, "dynalite")
	must(t, p, dynamo+"CreateTable", `{"TableName":"tab","BillingMode":"PAY_PER_REQUEST","AttributeDefinitions":[{"AttributeName":"Pk","AttributeType":"S"}],"KeySchema":[{"AttributeName":"Pk","KeyType":"HASH"}]}`)
	put, get := `{"TableName":"tab","Item":{"Pk":{"S":"k"}}}`, `{"TableName":"tab","ConsistentRead":true,"Key":{"Pk":{"S":"k"}}}`
	there := func() bool {
		t.Helper()
		_, ok := must(t, p, dynamo+"GetItem", get)["Item"]
		return ok
	}
	for deadline := time.Now().Add(30 * time.Second); ; { // until the table is active
		if status, _, err := ask(t.Context(), p, dynamo+"GetItem", get); err == nil && status == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the table is never active")
		}
	}

	remove := p.Add(faultproxy.Rule{Op: "PutItem", Fault: faultproxy.Throttle})
	status, out, err := ask(t.Context(), p, dynamo+"PutItem", put)
	if err != nil || status != 400 || !strings.HasSuffix(out["__type"].(string), "#ProvisionedThroughputExceededException") || there() {
		t.Errorf("throttled: %d %v %v", status, out, err)
	}
	remove()
	remove = p.Add(faultproxy.Rule{Op: "PutItem", Fault: faultproxy.Drop, Times: 1})
	if _, _, err = ask(t.Context(), p, dynamo+"PutItem", put); err == nil || there() {
		t.Errorf("dropped: %v", err)
	}
	remove()
	remove = p.Add(faultproxy.Rule{Match: `"Item"`, Fault: faultproxy.LoseReply})
	if _, _, err = ask(t.Context(), p, dynamo+"PutItem", put); err == nil || !there() {
		t.Errorf("the reply was to be lost, and the item there: %v", err)
	}
	remove()
	remove = p.Add(faultproxy.Rule{Op: "GetItem", Fault: faultproxy.Hang})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { _, _, err := ask(ctx, p, dynamo+"GetItem", get); done <- err }()
	for p.Hurt()[faultproxy.Hang] == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	remove()
	if n := p.Done()["PutItem"]; n != 1 {
		t.Errorf("%d puts reached the emulator, want 1", n)
	}
	if n := p.Requests()["PutItem"]; n < 3 {
		t.Errorf("%d puts were asked for, want 3", n)
	}
}

func TestKinesalite(t *testing.T) {
	p := start(t, "kinesalite")
	must(t, p, "Kinesis_20131202.ListStreams", `{}`)
	remove := p.Add(faultproxy.Rule{Op: "PutRecords", Fault: faultproxy.Throttle})
	status, out, err := ask(t.Context(), p, "Kinesis_20131202.PutRecords", `{}`)
	if err != nil || status != 400 || out["__type"] != "ProvisionedThroughputExceededException" {
		t.Errorf("throttled: %d %v %v", status, out, err)
	}
	remove()
	p.Add(faultproxy.Rule{Op: "ListStreams", Handle: func(_ string, body []byte, forward func([]byte) (int, []byte)) (int, []byte) {
		status, answer := forward(body)
		return status, bytes.Replace(answer, []byte("StreamNames"), []byte("Streams"), 1)
	}})
	if _, ok := must(t, p, "Kinesis_20131202.ListStreams", `{}`)["Streams"]; !ok {
		t.Error("a rule's own handler was not asked")
	}
}
