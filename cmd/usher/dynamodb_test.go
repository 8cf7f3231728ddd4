package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/kinesis"

	"github.com/ushergo/usher/cmd/usher/internal/relays"
	"github.com/ushergo/usher/internal/faultproxy"
)

func TestDynamoDBCreate(t *testing.T) {
	if testing.Short() {
		t.Skip("starts dynalite")
	}
	emu, err := faultproxy.Start("dynalite")
	if errors.Is(err, faultproxy.ErrMissing) && os.Getenv("USHER_TEST_ALL") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = emu.Close() })
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	create := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := newRootCmd()
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"dynamodb", "create", "--endpoint", emu.URL, "--region", "eu-west-1"}, args...))
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	for i, want := range []string{"made mine\nmade mine-workers\n", "mine and mine-workers are there already\n"} {
		if out, err := create("--table", "mine"); err != nil || out != want {
			t.Errorf("call %d: %q %v", i, out, err)
		}
	}
	if _, err := create("--table", "mine-workers"); err == nil || !strings.Contains(err.Error(), "choose another name") {
		t.Errorf("a table of another make: %v", err)
	}
}

// Two processes share a relay by leases and cursors in DynamoDB: one leaves, and the other goes on where it stood.
func TestRelayStateInDynamoDB(t *testing.T) {
	quiet(t)
	if testing.Short() {
		t.Skip("starts emulators")
	}
	urls := map[string]string{}
	for _, what := range []string{"dynalite", "kinesalite"} {
		emu, err := faultproxy.Start(what)
		if errors.Is(err, faultproxy.ErrMissing) && os.Getenv("USHER_TEST_ALL") == "" {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = emu.Close() })
		urls[what] = emu.URL
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	t.Setenv("AWS_REGION", "eu-west-1")
	conf, err := awsconfig.LoadDefaultConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client := kinesis.NewFromConfig(conf, func(o *kinesis.Options) { o.BaseEndpoint = aws.String(urls["kinesalite"]) })
	if _, err := client.CreateStream(t.Context(), &kinesis.CreateStreamInput{StreamName: aws.String("bookings"), ShardCount: aws.Int32(2)}); err != nil {
		t.Fatal(err)
	}
	cmd := newRootCmd()
	cmd.SetOut(io.Discard)
	cmd.SetArgs([]string{"dynamodb", "create", "--endpoint", urls["dynalite"], "--table", "relay-leases"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := &relayed{t: t, dir: t.TempDir()}
	begin := func(name string) *process {
		p := startCommand(t, "relay", nil, "--from", "kinesis://bookings?endpoint="+url.QueryEscape(urls["kinesalite"]), "--to", filepath.Join(w.dir, name),
			"--state", "dynamodb://relay-leases?dlq=http://127.0.0.1:1/1/dead&endpoint="+url.QueryEscape(urls["dynalite"]))
		p.wait("relay is up")
		return p
	}
	put := func(from, n int) {
		t.Helper()
		for i := range n {
			if _, err := client.PutRecord(t.Context(), &kinesis.PutRecordInput{StreamName: aws.String("bookings"), PartitionKey: aws.String(fmt.Sprint(from + i)), Data: []byte(`{}`)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	wait := func(p *process, name string, n int) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			_, err := os.Stat(filepath.Join(w.dir, name))
			if err == nil && len(w.lines(name)) >= n {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s has not %d events:\n%s", name, n, p.log())
			}
		}
	}
	put(0, 50)
	a := begin("a.jsonl")
	wait(a, "a.jsonl", 50)
	b := begin("b.jsonl")
	a.signal(syscall.SIGTERM)
	if code := a.exit(); code != 0 {
		t.Errorf("exit %d:\n%s", code, a.log())
	}
	put(50, 50)
	wait(b, "b.jsonl", 50)
	seen := map[string]bool{}
	for _, name := range []string{"a.jsonl", "b.jsonl"} {
		for _, e := range w.lines(name) {
			if seen[e.Key] {
				t.Errorf("%s was carried twice, though nobody was killed", e.Key)
			}
			seen[e.Key] = true
		}
	}
	if len(seen) != 100 {
		t.Errorf("%d of 100 events", len(seen))
	}
	for _, state := range []string{"dynamodb://t", "dynamodb:t?dlq=x", "dynamodb://t?dlq=x&tabel=y"} {
		if err := dynamoState(state, &relays.Options{}); err == nil {
			t.Errorf("%s is taken", state)
		}
	}
}
