package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/ushergo/usher/internal/faultproxy"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/jetstream"
	relaykinesis "github.com/ushergo/usher/relay/kinesis"
	"github.com/ushergo/usher/relay/relaytest"
	"github.com/ushergo/usher/room"
)

// streamed is a world of one usher that publishes admissions to Kinesis and JetStream, and of their servers: all three are
// killed and started again.
type streamed struct {
	relayed
	kinesis *faultproxy.Proxy
	nats    *junction
	kills   map[string]func()
	killed  map[string]int
}

// junction is an address that stays the same while a server behind it comes back on another port.
type junction struct {
	l      net.Listener
	target atomic.Value
}

func newJunction(t *testing.T) *junction {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	j := &junction{l: l}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go j.join(in)
		}
	}()
	return j
}

func (j *junction) join(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", j.target.Load().(string))
	if err != nil {
		return
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	_, _ = io.Copy(in, out)
}

// serveNATS is a NATS server in a process of its own, with its streams in dir.
func serveNATS(dir string) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s.Start()
	if !s.ReadyForConnections(60 * time.Second) {
		os.Exit(1)
	}
	fmt.Println(s.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin) // until whoever started it has ended
}

func newStreamed(t *testing.T) *streamed {
	w := &streamed{relayed: relayed{t: t, dir: t.TempDir(), nodes: make([]*process, 1)}, killed: map[string]int{}}
	w.refuses = func(id string) bool { _, _, n, _ := relay.ParseRoomID(id); return n%97 == 0 }
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	w.nats = newJunction(t)
	stopNATS, stopKinesis := w.startNATS(), w.startKinesis()
	t.Cleanup(func() { stopNATS(); stopKinesis() })
	w.kills = map[string]func(){
		"nats":    func() { stopNATS(); stopNATS = w.startNATS() },
		"kinesis": func() { stopKinesis(); stopKinesis = w.startKinesis() },
		"usher": func() {
			w.p.signal(syscall.SIGKILL)
			w.p.exit()
			w.start(0)
		},
	}
	w.makeStreams()
	w.file = filepath.Join(w.dir, "usher.yaml")
	conf := fmt.Sprintf(`
public: {listen: 127.0.0.1:0}
admin: {listen: 127.0.0.1:0, token: %s}
engine: {dir: %s}
rooms:
  - id: premiere
    capacity: {active: 40}
    session: {claim: 0s}
relay:
  - {id: to-kinesis, from: {rooms: [premiere]}, events: [admitted], to: {kinesis: {stream: bookings, region: eu-west-1, endpoint: %q}}, timeout: 10s, retry: {max_pause: 1s}}
  - {id: to-jetstream, from: {rooms: [premiere]}, events: [admitted], to: {jetstream: {url: "nats://%s"}}, timeout: 10s, retry: {max_pause: 1s}}
`, relayToken, filepath.Join(w.dir, "data"), w.kinesis.URL, w.nats.l.Addr())
	if err := os.WriteFile(w.file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *streamed) startNATS() (kill func()) {
	t := w.t
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "USHER_TEST_NATS="+filepath.Join(w.dir, "nats"))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal("the NATS server did not start: ", err)
	}
	w.nats.target.Store(strings.TrimSpace(addr))
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func (w *streamed) startKinesis() (kill func()) {
	t := w.t
	emu, err := faultproxy.Start("kinesalite", "path="+filepath.Join(w.dir, "kinesis"))
	if errors.Is(err, faultproxy.ErrMissing) && os.Getenv("USHER_TEST_ALL") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if w.kinesis == nil {
		if w.kinesis, err = faultproxy.New(emu.URL); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.kinesis.Close() })
		w.kinesis.Add(faultproxy.Rule{Op: "PutRecords", Fault: faultproxy.Throttle, Prob: 0.03})
		w.kinesis.Add(faultproxy.Rule{Op: "PutRecords", Handle: w.refuse})
	}
	w.kinesis.Target(emu.URL)
	return func() { _ = emu.Close() }
}

// refuse puts the records of a request but for those that are refused, which come late or never; and loses a
// reply now and then.
func (w *streamed) refuse(_ string, body []byte, forward func([]byte) (int, []byte)) (int, []byte) {
	var in map[string]any
	if err := json.Unmarshal(body, &in); err != nil {
		return 400, nil
	}
	records := in["Records"].([]any)
	answers := make([]any, len(records))
	var pass []any
	for i, r := range records {
		var typed struct{ Data []byte }
		b, _ := json.Marshal(r)
		_ = json.Unmarshal(b, &typed)
		e, err := relay.ReadEnvelope(typed.Data)
		if err != nil {
			w.t.Errorf("%v: %s", err, typed.Data)
		}
		if w.refuses(e.ID) && !e.Late {
			answers[i] = map[string]string{"ErrorCode": "InvalidArgumentException", "ErrorMessage": "not that one"}
		} else {
			pass = append(pass, r)
		}
	}
	out := map[string]any{"Records": []any{}}
	if len(pass) > 0 {
		in["Records"] = pass
		b, _ := json.Marshal(in)
		status, answer := forward(b)
		if status != 200 || json.Unmarshal(answer, &out) != nil {
			return status, answer
		}
	}
	stored := out["Records"].([]any)
	for i := range answers {
		if answers[i] == nil {
			answers[i], stored = stored[0], stored[1:]
		}
	}
	if mrand.IntN(30) == 0 {
		panic(http.ErrAbortHandler) // the reply is lost
	}
	out["Records"], out["FailedRecordCount"] = answers, len(records)-len(pass)
	b, _ := json.Marshal(out)
	return 200, b
}

func (w *streamed) makeStreams() {
	t := w.t
	conf, err := awsconfig.LoadDefaultConfig(t.Context(), awsconfig.WithRegion("eu-west-1"))
	if err != nil {
		t.Fatal(err)
	}
	client := kinesis.NewFromConfig(conf, func(o *kinesis.Options) { o.BaseEndpoint = aws.String(w.kinesis.URL) })
	if _, err := client.CreateStream(t.Context(), &kinesis.CreateStreamInput{StreamName: aws.String("bookings"), ShardCount: aws.Int32(2)}); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("nats://" + w.nats.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), natsjs.StreamConfig{Name: "bookings", Subjects: []string{"usher.>"}}); err != nil {
		t.Fatal(err)
	}
}

// run lets visitors pass while one process after the other is killed, and audits both streams.
func (w *streamed) run(visitors, kills int) {
	t := w.t
	w.start(0)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 200}}
	defer client.CloseIdleConnections()
	var passed, next atomic.Int64
	var wg sync.WaitGroup
	for range min(visitors, 100) {
		wg.Go(func() {
			for next.Add(1) <= int64(visitors) {
				if !w.visit(ctx, client) {
					return
				}
				passed.Add(1)
			}
		})
	}
	victims := []string{"usher", "kinesis", "nats"}
	for k := range kills {
		for goal := int64(visitors * (k + 1) / (kills + 2)); passed.Load() < goal && ctx.Err() == nil; {
			time.Sleep(5 * time.Millisecond)
		}
		victim := victims[k%3]
		if k >= 3 {
			victim = victims[mrand.IntN(3)]
		}
		w.kills[victim]()
		w.killed[victim]++
	}
	wg.Wait()
	if n := passed.Load(); n != int64(visitors) {
		t.Fatalf("%d of %d visitors passed\n%s", n, visitors, w.p.log())
	}
	w.audit(visitors)
}

func (w *streamed) audit(visitors int) {
	t := w.t
	all := w.logged()
	_, epoch, n, _ := relay.ParseRoomID(all[len(all)-1].ID)
	last := fmt.Sprintf("%d.%d", epoch, n)
	end := time.Now().Add(90 * time.Second)
	for _, id := range []string{"to-kinesis", "to-jetstream"} {
		for s := w.status(id); len(s.Partitions) != 1 || s.Partitions[0].Cursor != last; s = w.status(id) {
			if time.Now().After(end) {
				b, _ := json.MarshalIndent(s, "", "  ")
				t.Fatalf("%s has not come to %s:\n%s\n%s", id, last, b, w.p.log())
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	var admitted, refused []relay.Event
	for _, e := range all {
		if e.Type == "admitted" {
			admitted = append(admitted, e)
			if w.refuses(e.ID) {
				refused = append(refused, e)
			}
		}
	}
	if len(admitted) != visitors {
		t.Errorf("%d admissions of %d visitors", len(admitted), visitors)
	}
	if letters := w.letters("to-jetstream"); len(letters) != 0 {
		t.Errorf("%d dead letters of JetStream's, the first: %+v", len(letters), letters[0])
	}
	letters := w.letters("to-kinesis")
	for _, l := range letters {
		if l.Class != "rejected" || !w.refuses(l.Event.ID) {
			t.Errorf("%s is dead though it was not refused: %s", l.Event.ID, l.Reason)
		}
	}
	if len(letters) != len(refused) {
		t.Errorf("%d dead letters, %d were refused", len(letters), len(refused))
	}
	for tries := 0; len(w.letters("to-kinesis")) > 0; tries++ { // a redrive tries but once, and the service throttles
		if out, err := w.cli("dlq", "redrive", "to-kinesis", "--rate", "1000"); err != nil && tries > 20 {
			t.Fatalf("redrive: %v\n%s", err, out)
		}
	}
	stored := map[string][]relay.Event{"Kinesis": w.fromKinesis(), "JetStream": w.fromJetStream(len(admitted))}
	for name, got := range stored {
		if err := relaytest.Audit(admitted, got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		ids := map[string]bool{}
		for _, e := range got {
			ids[e.ID] = true
			var p room.PublicEvent
			if err := json.Unmarshal(e.Payload, &p); err != nil || relay.RoomID(p.Room, p.Epoch, p.N) != e.ID || p.TicketID != e.Key || p.Type != "admitted" || e.Type != "admitted" {
				t.Errorf("%s: %v: %+v", name, err, e)
			}
			if e.Late != (name == "Kinesis" && w.refuses(e.ID)) {
				t.Errorf("%s: %s: late %v", name, e.ID, e.Late)
			}
		}
		if len(ids) != len(admitted) {
			t.Errorf("%s has %d distinct events, %d were admitted", name, len(ids), len(admitted))
		}
	}
	t.Logf("%d admissions, kills %v; Kinesis has %d records (%d came from the dead letters), JetStream %d messages", len(admitted), w.killed,
		len(stored["Kinesis"]), len(refused), len(stored["JetStream"]))
}

// fromKinesis reads every shard to its tip.
func (w *streamed) fromKinesis() (events []relay.Event) {
	t := w.t
	src, err := relaykinesis.OpenSource(t.Context(), relaykinesis.Options{Stream: "bookings", Region: "eu-west-1", Endpoint: w.kinesis.URL})
	if err != nil {
		t.Fatal(err)
	}
	list, err := src.Partitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		events = slices.Concat(events, drain(t, src, p.Name, func([]relay.Event) bool { return false }))
	}
	return events
}

func (w *streamed) fromJetStream(atLeast int) []relay.Event {
	t := w.t
	src, err := jetstream.OpenSource(jetstream.SourceOptions{Connection: jetstream.Connection{URL: "nats://" + w.nats.l.Addr().String()}, Stream: "bookings"})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	return drain(t, src, "bookings", func(got []relay.Event) bool { return len(got) < atLeast })
}

// drain reads until there is nothing new and nothing is missing.
func drain(t *testing.T, src relay.Source, partition string, missing func([]relay.Event) bool) (events []relay.Event) {
	t.Helper()
	r, err := src.Open(t.Context(), partition, relay.Start{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for end := time.Now().Add(time.Minute); ; {
		got, err := r.Read(t.Context(), 10_000)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 && (!missing(events) || time.Now().After(end)) {
			return events
		}
		events = append(events, got...)
	}
}

// Every admission is in both streams, whichever process is killed meanwhile.
func TestRelaysToStreams(t *testing.T) {
	quiet(t)
	if testing.Short() {
		t.Skip("starts servers; -short")
	}
	newStreamed(t).run(400, 4)
}

func TestSoakRelaysToStreams(t *testing.T) {
	if os.Getenv("USHER_SOAK") != "1" {
		t.Skip("20 runs of 5,000 visitors; USHER_SOAK=1")
	}
	for run := range 20 {
		t.Run(fmt.Sprint(run), func(t *testing.T) { newStreamed(t).run(5000, 9) })
	}
}
