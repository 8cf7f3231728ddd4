package jetstream_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/jetstream"
	"github.com/ushergo/usher/relay/relaytest"
)

// TestMain is the server, too, for the test that kills it.
func TestMain(m *testing.M) {
	if dir := os.Getenv("USHER_TEST_NATS"); dir != "" {
		port := server.RANDOM_PORT
		if p := os.Getenv("USHER_TEST_NATS_PORT"); p != "" {
			_, _ = fmt.Sscan(p, &port)
		}
		s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		s.Start()
		if !s.ReadyForConnections(60 * time.Second) {
			os.Exit(1)
		}
		fmt.Println(s.ClientURL())
		s.WaitForShutdown()
		return
	}
	os.Exit(m.Run())
}

// start runs a server in this process.
func start(t *testing.T, change func(*server.Options)) (url string) {
	t.Helper()
	o := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true}
	if change != nil {
		change(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(60 * time.Second) {
		t.Fatal("the server is not ready")
	}
	return s.ClientURL()
}

func client(t *testing.T, url string) natsjs.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func stream(t *testing.T, js natsjs.JetStream, cfg natsjs.StreamConfig) natsjs.Stream {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name, cfg.Subjects = "bookings", []string{"usher.>"}
	}
	s, err := js.CreateStream(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sink(t *testing.T, o jetstream.SinkOptions) *jetstream.Sink {
	t.Helper()
	s, err := jetstream.OpenSink(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func source(t *testing.T, url, filter string) *jetstream.Source {
	t.Helper()
	s, err := jetstream.OpenSource(jetstream.SourceOptions{Connection: jetstream.Connection{URL: url}, Stream: "bookings", Filter: filter})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// carry runs a relay until the test ends.
func carry(t *testing.T, from relay.Source, to relay.Sink, gap relay.GapPolicy) *relay.Relay {
	t.Helper()
	leases, err := memory.OpenLeases("", "relay.j", memory.LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dead, err := memory.OpenDeadLetters("", memory.DeadLetterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(relay.Options{
		ID: "j", Source: from, Sink: to, Leases: leases, Dead: dead, OnGap: gap, Lease: lease.Options{Flush: 20 * time.Millisecond},
		Tuning: relay.Tuning{Batch: 50, MaxBackoff: 200 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-done
		_, _ = leases.Close(), dead.Close()
	})
	return r
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 90 s", what)
		}
	}
}

func distinct(events []relay.Event) int {
	seen := map[string]bool{}
	for _, e := range events {
		seen[e.ID] = true
	}
	return len(seen)
}

// Into a stream and out of it again, while the server is killed four times: each event, in order of its key, with its
// own ID, type and time; and stored once, as the stream knows the ID.
func TestKilledServer(t *testing.T) {
	dir, port := t.TempDir(), ""
	serve := func() (url string, kill func()) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "USHER_TEST_NATS="+dir, "USHER_TEST_NATS_PORT="+port)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		url, err = bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal("the server did not start: ", err)
		}
		return strings.TrimSpace(url), func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	url, kill := serve()
	t.Cleanup(func() { kill() })
	port = url[strings.LastIndexByte(url, ':')+1:]
	js := client(t, url)
	s := stream(t, js, natsjs.StreamConfig{})

	begin := relaytest.NewSource("premiere")
	var end relaytest.Sink
	carry(t, begin, sink(t, jetstream.SinkOptions{Connection: jetstream.Connection{URL: url}}), relay.GapStop)
	carry(t, source(t, url, ""), &end, relay.GapStop)
	const rounds, each = 5, 400
	var want []relay.Event
	for round := range rounds {
		for n := range each {
			key := fmt.Sprint("ticket", n%37)
			want = append(want, relay.Event{ID: begin.Put("premiere", key), Key: key})
			if n == each/2 && round > 0 {
				kill()
				_, kill = serve()
			}
		}
		until(t, fmt.Sprint("events of round ", round), func() bool { return distinct(end.Taken()) == len(want) })
	}
	got := end.Taken()
	if err := relaytest.Audit(want, got); err != nil {
		t.Fatal(err)
	}
	if got[0].Type != "admitted" || got[0].At.IsZero() || !strings.Contains(string(got[0].Payload), `"n"`) {
		t.Errorf("%+v", got[0])
	}
	if wrong := end.Wrong(); len(wrong) > 0 {
		t.Error(wrong)
	}
	info, err := s.Info(t.Context())
	if err != nil || info.State.Msgs != rounds*each {
		t.Errorf("%d messages are stored, %v; want %d", info.State.Msgs, err, rounds*each)
	}
}

func TestGaps(t *testing.T) {
	url := start(t, nil)
	js := client(t, url)
	s := stream(t, js, natsjs.StreamConfig{})
	put := func(n int, subject string) {
		t.Helper()
		for range n {
			if _, err := js.Publish(t.Context(), subject, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	read := func(r relay.Reader, want int) (events []relay.Event) {
		t.Helper()
		until(t, fmt.Sprint(want, " messages"), func() bool {
			got, err := r.Read(t.Context(), 100)
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, got...)
			return len(events) >= want
		})
		if len(events) != want {
			t.Fatalf("%d messages, want %d", len(events), want)
		}
		return events
	}
	gap := func(r relay.Reader) *relay.GapError {
		t.Helper()
		var gap *relay.GapError
		until(t, "a gap", func() bool {
			got, err := r.Read(t.Context(), 100)
			if len(got) > 0 || err != nil && !errors.As(err, &gap) {
				t.Fatalf("%d messages, %v", len(got), err)
			}
			return gap != nil
		})
		return gap
	}
	open := func(src *jetstream.Source, from relay.Start) relay.Reader {
		t.Helper()
		r, err := src.Open(t.Context(), "bookings", from)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	src := source(t, url, "")
	put(10, "usher.a")
	all := read(open(src, relay.Start{}), 10)
	if all[3].Key != "usher.a" || all[3].ID == all[4].ID {
		t.Errorf("a foreign message: %+v", all[3])
	}
	read(open(src, relay.Start{After: all[3].Position}), 6)
	read(open(src, relay.Start{At: all[7].At}), 3)
	if n, err := src.Behind(t.Context(), "bookings", all[3].Position); n != 6 || err != nil {
		t.Errorf("behind %d, %v", n, err)
	}
	// Purged before it was read: told, and then what is left.
	if err := s.Purge(t.Context(), natsjs.WithPurgeSequence(7)); err != nil {
		t.Fatal(err)
	}
	r := open(src, relay.Start{After: all[3].Position})
	if g := gap(r); g.Lost != 2 || g.From != all[3].Position || g.To != all[5].Position {
		t.Errorf("%+v", g)
	}
	read(r, 4)
	// Removed from the middle, while it was being read.
	live := open(src, relay.Start{After: all[9].Position})
	if got, err := live.Read(t.Context(), 10); len(got) > 0 || err != nil {
		t.Fatal(got, err)
	}
	later := open(src, relay.Start{After: all[8].Position})
	put(3, "usher.b")
	if err := s.DeleteMsg(t.Context(), 12); err != nil {
		t.Fatal(err)
	}
	first := read(later, 2)
	if g := gap(later); g.Lost != 1 || g.From != first[1].Position {
		t.Errorf("%+v", g)
	}
	read(later, 1)
	// With a filter, what was left out is not lost.
	put(2, "usher.c")
	b := open(source(t, url, "usher.c"), relay.Start{After: all[9].Position})
	read(b, 2)
	// Deleted and made anew: the numbers begin again, and that is told.
	if err := js.DeleteStream(t.Context(), "bookings"); err != nil {
		t.Fatal(err)
	}
	if _, err := src.Open(t.Context(), "bookings", relay.Start{}); relay.ClassOf(err) != relay.Denied {
		t.Errorf("no stream: %v", err)
	}
	stream(t, js, natsjs.StreamConfig{})
	put(20, "usher.d")
	anew := open(src, relay.Start{After: all[9].Position})
	if g := gap(anew); g.Lost != 0 || !strings.Contains(g.Cause, "made anew") {
		t.Errorf("%+v", g)
	}
	read(anew, 20)
	if _, err := src.Open(t.Context(), "bookings", relay.Start{After: "5"}); relay.ClassOf(err) != relay.Denied {
		t.Errorf("a foreign position: %v", err)
	}
}

func TestWhoseFaultItIs(t *testing.T) {
	url := start(t, nil)
	js := client(t, url)
	stream(t, js, natsjs.StreamConfig{Name: "bookings", Subjects: []string{"usher.premiere.>"}, MaxMsgSize: 1000})
	event := func(n int) relay.Event {
		return relay.Event{ID: fmt.Sprint("premiere/1.", n), Key: "k", Type: "admitted", At: time.Now(), Payload: make([]byte, n)}
	}
	send := func(s *jetstream.Sink, partition string, e relay.Event) error {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		return s.Send(ctx, relay.Batch{Partition: partition, Events: []relay.Event{e}})[0]
	}
	s := sink(t, jetstream.SinkOptions{Connection: jetstream.Connection{URL: url}})
	if err := send(s, "premiere", event(10)); err != nil {
		t.Error(err)
	}
	if err := send(s, "premiere", event(5000)); relay.ClassOf(err) != relay.Rejected {
		t.Errorf("too large for the stream: %v", err)
	}
	if err := send(s, "elsewhere", event(10)); relay.ClassOf(err) != relay.Denied || !strings.Contains(err.Error(), "make one") {
		t.Errorf("no stream takes it: %v", err)
	}
	for _, o := range []jetstream.SinkOptions{
		{}, {Connection: jetstream.Connection{URL: "://"}}, {Connection: jetstream.Connection{URL: url}, Subject: "a.*"},
		{Connection: jetstream.Connection{URL: url}, Subject: "a..b"}, {Connection: jetstream.Connection{URL: url}, Subject: "{room}"},
	} {
		if _, err := jetstream.OpenSink(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0") // nobody speaks NATS there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	away := sink(t, jetstream.SinkOptions{Connection: jetstream.Connection{URL: "nats://" + ln.Addr().String()}})
	if err := send(away, "premiere", event(10)); err == nil || relay.ClassOf(err) != relay.Transient || !strings.Contains(err.Error(), "no connection") {
		t.Errorf("nobody there: %v", err)
	}
	full := start(t, nil)
	stream(t, client(t, full), natsjs.StreamConfig{Name: "bookings", Subjects: []string{"usher.>"}, MaxMsgs: 1, Discard: natsjs.DiscardNew})
	s = sink(t, jetstream.SinkOptions{Connection: jetstream.Connection{URL: full}})
	if err := send(s, "premiere", event(1)); err != nil {
		t.Error(err)
	}
	if err := send(s, "premiere", event(2)); relay.ClassOf(err) != relay.Throttled {
		t.Errorf("a full stream: %v", err)
	}
}

func TestPasswords(t *testing.T) {
	url := start(t, func(o *server.Options) { o.Username, o.Password = "usher", "right" })
	js := client(t, strings.Replace(url, "://", "://usher:right@", 1))
	stream(t, js, natsjs.StreamConfig{})
	event := relay.Event{ID: "premiere/1.1", Key: "k", Type: "admitted", At: time.Now(), Payload: []byte("{}")}
	var last atomic.Value
	send := func(password string) error {
		s := sink(t, jetstream.SinkOptions{Connection: jetstream.Connection{URL: strings.Replace(url, "://", "://usher:"+password+"@", 1)}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := s.Send(ctx, relay.Batch{Partition: "premiere", Events: []relay.Event{event}})[0]
		if err != nil {
			last.Store(err.Error())
		}
		return err
	}
	until(t, "the right password", func() bool { return send("right") == nil })
	until(t, "a wrong one is denied", func() bool { return relay.ClassOf(send("wrong")) == relay.Denied })
	if strings.Contains(last.Load().(string), "wrong@") {
		t.Errorf("the password is in %q", last.Load())
	}
}
