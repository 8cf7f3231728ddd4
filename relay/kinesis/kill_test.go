package kinesis_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/dynamodb"
	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/internal/faultproxy"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/kinesis"
	"github.com/ushergo/usher/relay/relaytest"
)

// dynalite is one for all tests.
var dynalite = sync.OnceValues(func() (*faultproxy.Emulator, error) { return faultproxy.Start("dynalite") })

// TestMain is a consumer, too, for the tests that kill some.
func TestMain(m *testing.M) {
	if conf := os.Getenv("USHER_TEST_CONSUMER"); conf != "" {
		if err := consume(conf); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// consumer is what a consumer process is told.
type consumer struct {
	Stream  kinesis.Options
	Leases  string // DynamoDB's address
	Table   string
	Receive string // where events are POSTed
}

// consume is such a process: a relay from the stream to the receiver, until SIGTERM.
func consume(text string) error {
	var c consumer
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(2) // whoever started it has ended
	}()
	client, err := dynamodb.Client(ctx, dynamodb.Settings{Region: "eu-west-1", Endpoint: c.Leases})
	if err != nil {
		return err
	}
	src, err := kinesis.OpenSource(ctx, c.Stream)
	if err != nil {
		return err
	}
	src.Hurry(20*time.Millisecond, 10*time.Minute)
	dead, err := memory.OpenDeadLetters("", memory.DeadLetterOptions{})
	if err != nil {
		return err
	}
	r, err := relay.New(relay.Options{
		ID: "k", Source: src, Sink: remote(c.Receive), Leases: dynamodb.NewLeases(client, c.Table), Dead: dead, Lease: quick,
		Discover: 200 * time.Millisecond, SendTimeout: 5 * time.Second, Tuning: relay.Tuning{Batch: 50, MaxBackoff: 300 * time.Millisecond},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	if err := r.Run(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// remote is a sink in another process.
type remote string

type sending struct {
	Fence     uint64
	Partition string
	Events    []relay.Envelope
}

type answer struct {
	Class relay.Class
	Text  string // empty: taken
}

func (r remote) Send(ctx context.Context, b relay.Batch) []error {
	s := sending{Fence: b.Fence, Partition: b.Partition}
	for i := range b.Events {
		s.Events = append(s.Events, b.Events[i].Envelope())
	}
	body, err := json.Marshal(s)
	if err != nil {
		return relay.All(len(b.Events), err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, string(r), bytes.NewReader(body))
	if err != nil {
		return relay.All(len(b.Events), err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return relay.All(len(b.Events), err)
	}
	defer resp.Body.Close()
	var answers []answer
	if err := json.NewDecoder(resp.Body).Decode(&answers); err != nil {
		return relay.All(len(b.Events), err)
	}
	errs := make([]error, len(answers))
	for i, a := range answers {
		if a.Text != "" {
			errs[i] = relay.Errorf(a.Class, "%s", a.Text)
		}
	}
	return errs
}

func (remote) Limits() relay.Limits { return relay.Limits{} }
func (remote) Close() error         { return nil }

// receiver takes what consumers send.
func receiver(t *testing.T, sink *relaytest.Sink) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // its sender was killed
		}
		var in sending
		if err := json.Unmarshal(body, &in); err != nil {
			t.Error(err)
			return
		}
		b := relay.Batch{Relay: "k", Partition: in.Partition, Fence: in.Fence}
		for _, env := range in.Events {
			b.Events = append(b.Events, env.Event())
		}
		answers := make([]answer, len(b.Events))
		for i, err := range sink.Send(context.WithoutCancel(r.Context()), b) {
			if err != nil {
				answers[i] = answer{relay.ClassOf(err), err.Error()}
			}
		}
		_ = json.NewEncoder(w).Encode(answers)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// child is a consumer process.
type child struct {
	cmd *exec.Cmd
	log *bytes.Buffer
}

func begin(t *testing.T, c consumer) *child {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	ch := &child{cmd: exec.Command(os.Args[0]), log: new(bytes.Buffer)}
	ch.cmd.Env = append(os.Environ(), "USHER_TEST_CONSUMER="+string(text))
	ch.cmd.Stderr = ch.log
	if _, err := ch.cmd.StdinPipe(); err != nil { // which ends with this process
		t.Fatal(err)
	}
	if err := ch.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if ch.cmd.ProcessState == nil {
			ch.kill()
		}
		if t.Failed() {
			for line := range strings.Lines(ch.log.String()) {
				if !strings.Contains(line, "are listed") && !strings.Contains(line, "partitions cannot") {
					t.Log(line)
				}
			}
		}
	})
	return ch
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// Consumers are killed, and leave, and shards are split and merged, while events come: those who are left take over, by
// leases and cursors in DynamoDB; and nothing is skipped.
func TestKilledConsumers(t *testing.T) {
	w := newWorld(t, 2)
	emu := started(t, dynalite)
	tables, err := faultproxy.New(emu.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tables.Close() })
	client, err := dynamodb.Client(t.Context(), dynamodb.Settings{Region: "eu-west-1", Endpoint: tables.URL}) // which has to know of the table
	if err != nil {
		t.Fatal(err)
	}
	table := w.stream + "-leases"
	if _, err := dynamodb.Create(t.Context(), client, table, dynamodb.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		rows, _, err := dynamodb.NewLeases(client, table).List(context.Background(), "", lease.MaxList)
		t.Logf("%d rows, %v", len(rows), err)
		for _, row := range rows {
			t.Logf("%+v", row)
		}
	})
	var end relaytest.Sink
	conf := consumer{Stream: w.options(), Leases: tables.URL, Table: table, Receive: receiver(t, &end)}
	heal := w.hurt()
	for _, r := range []faultproxy.Rule{{Fault: faultproxy.Throttle, Prob: 0.03}, {Fault: faultproxy.LoseReply, Prob: 0.03}, {Delay: 30 * time.Millisecond, Prob: 0.3}} {
		tables.Add(r)
	}
	l := w.load(53)
	children := []*child{begin(t, conf), begin(t, conf), begin(t, conf)}
	kills := 4
	if os.Getenv("USHER_SOAK") == "1" {
		kills = 60
	}
	for k := range kills {
		l.put(100)
		until(t, "some have come", func() bool { return distinct(end.Taken()) >= len(l.want)-80 })
		l.put(60)
		victim := rand.IntN(len(children))
		if k%4 == 3 {
			if err := children[victim].cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := children[victim].cmd.Wait(); err != nil {
				t.Errorf("it does not leave in order: %v", err)
			}
		} else {
			children[victim].kill()
		}
		switch k % 4 {
		case 0:
			w.split(0)
		case 1:
			w.split(len(w.shards()) - 1)
		case 2:
			w.merge(1, 2)
		case 3:
			if len(w.shards()) > 2 {
				w.merge(0, 1)
			}
		}
		children[victim] = begin(t, conf)
	}
	l.put(100)
	l.audit(t, &end)
	heal()
	w.shared(dynamodb.NewLeases(client, table), len(children))
	for _, c := range children {
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		_ = c.cmd.Wait()
	}
}

// shared waits until every open shard has an owner, and nobody more than a fair share.
func (w *world) shared(leases lease.Store, workers int) {
	w.t.Helper()
	open := w.shards()
	fair := (len(open) + workers - 1) / workers
	var owners map[string]int
	until(w.t, "shards are shared out", func() bool {
		owners = map[string]int{}
		rows, _, err := leases.List(w.t.Context(), "", lease.MaxList)
		if err != nil {
			return false
		}
		owned, most := 0, 0
		for _, row := range rows {
			for _, s := range open {
				if strings.HasPrefix(row.ID, *s.ShardId+".") && row.Owner.Worker != "" {
					owned++
					owners[row.Owner.Worker]++
					most = max(most, owners[row.Owner.Worker])
				}
			}
		}
		return owned == len(open) && most <= fair
	})
	w.t.Log("shards by owner: ", owners)
}
