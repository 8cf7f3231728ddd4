package config

import (
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Relay carries every event of a source to a sink.
type Relay struct {
	// Name of the relay. Its cursors, leases and dead letters belong to it: another name begins anew.
	ID string `yaml:"id" required:"true" pattern:"[a-z0-9-]{1,40}" patternhelp:"1 to 40 of a-z 0-9 -" example:"bookings"`
	// Where events come from. One of its keys.
	From RelayFrom `yaml:"from"`
	// Where they go. One of its keys.
	To RelayTo `yaml:"to"`
	// Types of events that are carried: entered, admitted, claimed, left, expired, abandoned, limit, state. Empty: all. Gaps are carried in any case.
	Events []string `yaml:"events" enum:"entered,admitted,claimed,left,expired,abandoned,limit,state" example:"admitted"`
	// Where a relay begins that has never run: oldest, newest, or a time, RFC 3339. After that its cursor counts; usher relays seek moves it.
	Start string `yaml:"start" default:"oldest" example:"newest"`
	// When a source no longer has what was not read. stop: a gap event, an alarm, and nothing more until somebody says resume. continue: the same, and on.
	OnGap string `yaml:"on_gap" default:"stop" enum:"stop,continue"`
	// Most events in one call to the sink.
	Batch int `yaml:"batch" default:"500" min:"1" max:"10000"`
	// Most calls to the sink at once, for each partition of the source.
	InFlight int `yaml:"in_flight" default:"4" min:"1" max:"64"`
	// How long one call to the sink may take.
	Timeout time.Duration `yaml:"timeout" default:"30s" min:"100ms" max:"10m"`
	// When an event that fails goes to the dead letters.
	Retry RelayRetry `yaml:"retry"`
	// What the sink did not take.
	DeadLetters RelayDead `yaml:"dead_letters"`
}

// RelayRetry says when an event is given up.
type RelayRetry struct {
	// How often an event may fail while the sink takes others. One that the sink refuses for good is not tried again.
	Attempts int `yaml:"attempts" default:"8" min:"1" max:"1000"`
	// How long it is tried in any case.
	For time.Duration `yaml:"for" default:"1m" min:"0s" max:"24h"`
	// Longest pause between two attempts.
	MaxPause time.Duration `yaml:"max_pause" default:"30s" min:"10ms" max:"1h"`
}

// RelayDead says what is kept of what the sink did not take.
type RelayDead struct {
	// Most letters. Beyond it the relay stops.
	Max int `yaml:"max" default:"100000" min:"1" max:"10000000"`
	// Most bytes of letters. Beyond it the relay stops.
	MaxBytes Size `yaml:"max_bytes" default:"256MiB" min:"1MiB" max:"1TiB"`
	// How long they are kept.
	Retain time.Duration `yaml:"retain" default:"336h" min:"1h" max:"8760h"`
	// Keep them in an SQS queue instead of the engine; its own retention counts, and list and show look at what the queue shows.
	SQS RelaySQS `yaml:"sqs"`
}

// RelayFrom is a source.
type RelayFrom struct {
	// The logs of rooms, by id; "*" is all of them.
	Rooms []string `yaml:"rooms" example:"premiere"`
	// A Redis stream.
	Redis RelayRedis `yaml:"redis"`
	// A stream of NATS JetStream.
	JetStream RelayFromJetStream `yaml:"jetstream"`
	// A stream of Kinesis.
	Kinesis RelayKinesis `yaml:"kinesis"`
}

// RelayTo is a sink.
type RelayTo struct {
	// POSTs each event.
	Webhook RelayWebhook `yaml:"webhook"`
	// Writes each event into a table once.
	SQL RelaySQL `yaml:"sql"`
	// Appends JSON lines to a file.
	File RelayFile `yaml:"file"`
	// Writes JSON lines to standard output.
	Stdout bool `yaml:"stdout"`
	// Sends each event to a queue.
	SQS RelaySQS `yaml:"sqs"`
	// Produces each event to a topic.
	Kafka RelayKafka `yaml:"kafka"`
	// Publishes each event to a stream of NATS JetStream.
	JetStream RelayToJetStream `yaml:"jetstream"`
	// Puts each event into a stream of Kinesis.
	Kinesis RelayKinesis `yaml:"kinesis"`
}

// RelayKinesis is a stream of Kinesis. Credentials are found by the AWS SDK's default chain.
type RelayKinesis struct {
	// The stream's name. It must exist.
	Stream string `yaml:"stream" example:"bookings"`
	// Region. Empty: by the SDK's rules.
	Region string `yaml:"region" example:"eu-central-1"`
	// Another address of the service, for emulators and private endpoints.
	Endpoint string `yaml:"endpoint"`
}

// RelayWebhook is an HTTP receiver.
type RelayWebhook struct {
	// Where events are POSTed, one in a request. Private addresses need egress.allow.
	URL string `yaml:"url" example:"https://tickets.example.com/usher-events"`
	// Signs every request: Usher-Signature is an HMAC-SHA256 over time and body. Empty: unsigned.
	Secret Secret `yaml:"secret" min:"16"`
	// Most requests at once.
	Concurrency int `yaml:"concurrency" default:"16" min:"1" max:"1024"`
}

// RelaySQL is a table.
type RelaySQL struct {
	// The database's kind.
	Driver string `yaml:"driver" default:"postgres" enum:"postgres,mysql,sqlite"`
	// Its address: postgres://user:password@host/database; user:password@tcp(host:3306)/database for mysql and MariaDB; the path of a file for sqlite.
	DSN Secret `yaml:"dsn"`
	// The table. It is made if there is none, and so is one of fences beside it, named with _fence after it.
	Table string `yaml:"table" default:"usher_events" pattern:"[A-Za-z_][A-Za-z0-9_]{0,50}" patternhelp:"letters, digits and _"`
}

// RelayFile is a file of JSON lines.
type RelayFile struct {
	// The file. It is made if there is none; one that was moved away is made anew.
	Path string `yaml:"path" example:"/var/log/usher/events.jsonl"`
	// Have every batch on the disk before it counts as delivered.
	Sync bool `yaml:"sync" default:"true"`
}

// RelaySQS is a queue. Credentials are found by the AWS SDK's default chain.
type RelaySQS struct {
	// The queue's URL. A FIFO queue (.fifo) gets the ticket's id as group and the event's id for de-duplication.
	Queue string `yaml:"queue" example:"https://sqs.eu-central-1.amazonaws.com/123456789012/bookings"`
	// Region. Empty: by the SDK's rules.
	Region string `yaml:"region" example:"eu-central-1"`
	// Another address of the service, for emulators and private endpoints.
	Endpoint string `yaml:"endpoint"`
}

// RelayKafka is a topic.
type RelayKafka struct {
	// Brokers to begin with, host:port.
	Brokers []string `yaml:"brokers" example:"kafka-1.internal:9092"`
	// The topic. It must exist.
	Topic string `yaml:"topic" example:"bookings"`
	// Speak TLS.
	TLS bool `yaml:"tls"`
	// SASL user.
	Username string `yaml:"username"`
	// SASL password.
	Password Secret `yaml:"password"`
	// SASL mechanism.
	Mechanism string `yaml:"mechanism" default:"scram-sha-512" enum:"plain,scram-sha-256,scram-sha-512"`
}

// RelayRedis is a Redis stream.
type RelayRedis struct {
	// The server: redis://user:password@host:6379/0, or rediss:// for TLS.
	URL Secret `yaml:"url"`
	// The stream's key.
	Stream string `yaml:"stream" example:"bookings"`
	// The field of an entry that is its key, by which order is kept. Empty: the whole stream keeps its order.
	Key string `yaml:"key"`
}

// DefaultRelay is a relay of which the file says nothing yet.
func DefaultRelay() (r Relay) {
	setDefaults(reflect.ValueOf(&r).Elem())
	return r
}

// RelayFromJetStream is a stream that is read.
type RelayFromJetStream struct {
	// The servers, with commas between; they may hold a user and a password, or a token.
	URL Secret `yaml:"url" example:"nats://127.0.0.1:4222"`
	// Path of a credentials file.
	Creds string `yaml:"creds"`
	// The stream. It must exist.
	Stream string `yaml:"stream" example:"bookings"`
	// Subjects to read, with NATS's wildcards. Empty: all.
	Filter string `yaml:"filter" example:"usher.premiere.>"`
}

// RelayToJetStream is a subject that a stream takes.
type RelayToJetStream struct {
	// The servers, with commas between; they may hold a user and a password, or a token.
	URL Secret `yaml:"url" example:"nats://127.0.0.1:4222"`
	// Path of a credentials file.
	Creds string `yaml:"creds"`
	// Where events are published; a stream must take it. {partition} (the room), {type} and {key} (the ticket's id) stand for the event's.
	Subject string `yaml:"subject" default:"usher.{partition}.{type}"`
}

// Kinds names what is configured.
func (f RelayFrom) Kinds() (kinds []string) {
	return set(map[string]bool{
		"rooms": len(f.Rooms) > 0, "redis": !f.Redis.URL.Empty() || f.Redis.Stream != "",
		"jetstream": !f.JetStream.URL.Empty() || f.JetStream.Stream != "", "kinesis": f.Kinesis != RelayKinesis{},
	}, "rooms", "redis", "jetstream", "kinesis")
}

// Kinds names what is configured.
func (t RelayTo) Kinds() (kinds []string) {
	return set(map[string]bool{
		"webhook": t.Webhook.URL != "", "sql": !t.SQL.DSN.Empty(), "file": t.File.Path != "", "stdout": t.Stdout, "sqs": t.SQS.Queue != "",
		"kafka": t.Kafka.Topic != "" || len(t.Kafka.Brokers) > 0, "jetstream": !t.JetStream.URL.Empty(), "kinesis": t.Kinesis != RelayKinesis{},
	}, "webhook", "sql", "file", "stdout", "sqs", "kafka", "jetstream", "kinesis")
}

func set(given map[string]bool, order ...string) (kinds []string) {
	for _, kind := range order {
		if given[kind] {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// relays checks what tags cannot say.
func (k *checker) relays() {
	seen := map[string]int{}
	for i := range k.c.Relay {
		r, at := &k.c.Relay[i], fmt.Sprintf("relay[%d]", i)
		if first, dup := seen[r.ID]; dup && r.ID != "" {
			k.add(at+".id", fmt.Sprintf("%q is also the id of relay[%d]", r.ID, first), "give each relay its own")
		}
		seen[r.ID] = i
		k.one(at+".from", r.From.Kinds(), "say where events come from: from: {rooms: [premiere]}", "write another relay for each of the others")
		k.one(at+".to", k.sinks(at+".to", r.To), "say where events go: to: {webhook: {url: https://…}}", "write another relay for each of the others")
		if u := r.To.Webhook.URL; u != "" {
			k.webhook(at+".to.webhook.url", u)
		}
		if u := r.From.Redis.URL.Reveal(); u != "" && !strings.HasPrefix(u, "redis://") && !strings.HasPrefix(u, "rediss://") && !strings.HasPrefix(u, "unix://") {
			k.add(at+".from.redis.url", "is not the address of a Redis", "write redis://127.0.0.1:6379, or rediss:// for TLS") // it may hold a password
		}
		if f := r.From.Redis; !f.URL.Empty() && f.Stream == "" {
			k.add(at+".from.redis.stream", "is missing", "name the stream's key")
		} else if f.URL.Empty() && f.Stream != "" {
			k.add(at+".from.redis.url", "is missing", "write url: redis://127.0.0.1:6379")
		}
		if f := r.From.JetStream; !f.URL.Empty() && f.Stream == "" {
			k.add(at+".from.jetstream.stream", "is missing", "name the stream")
		} else if f.URL.Empty() && f.Stream != "" {
			k.add(at+".from.jetstream.url", "is missing", "write url: nats://127.0.0.1:4222")
		}
		if t := r.To.Kafka; t.Topic != "" && len(t.Brokers) == 0 {
			k.add(at+".to.kafka.brokers", "is missing", "write brokers: [host:9092]")
		} else if t.Topic == "" && len(t.Brokers) > 0 {
			k.add(at+".to.kafka.topic", "is missing", "name the topic")
		}
		for path, queue := range map[string]string{at + ".to.sqs.queue": r.To.SQS.Queue, at + ".dead_letters.sqs.queue": r.DeadLetters.SQS.Queue} {
			if queue != "" && !strings.HasPrefix(queue, "https://") && !strings.HasPrefix(queue, "http://") {
				k.add(path, fmt.Sprintf("%q is not the URL of a queue", queue), "write https://sqs.REGION.amazonaws.com/ACCOUNT/NAME")
			}
		}
		for path, stream := range map[string]RelayKinesis{at + ".from.kinesis": r.From.Kinesis, at + ".to.kinesis": r.To.Kinesis} {
			k.kinesis(path, stream)
		}
		if _, _, err := r.Begin(); err != nil {
			k.add(at+".start", err.Error(), "write oldest, newest, or a time as 2030-06-01T10:00:00Z")
		}
	}
}

var kinesisName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

func (k *checker) kinesis(path string, s RelayKinesis) {
	switch {
	case s == RelayKinesis{}:
	case s.Stream == "":
		k.add(path+".stream", "is missing", "name the stream")
	case !kinesisName.MatchString(s.Stream):
		k.add(path+".stream", fmt.Sprintf("%q is not the name of a stream", s.Stream), "use 1 to 128 of A-Z a-z 0-9 _ . -; no ARN")
	}
	if s.Endpoint != "" && !strings.HasPrefix(s.Endpoint, "https://") && !strings.HasPrefix(s.Endpoint, "http://") {
		k.add(path+".endpoint", fmt.Sprintf("%q is not an address", s.Endpoint), "write https://host, or leave it out")
	}
}

// sinks names the sinks of which the file says something, and adds what those lack that cannot be without.
func (k *checker) sinks(path string, t RelayTo) []string {
	kinds := t.Kinds()
	for _, need := range []struct{ kind, key, mend string }{
		{"webhook", "url", "write url: https://host/path"},
		{"sql", "dsn", "write the database's address, as postgres://user:password@host/database"},
		{"file", "path", "write path: events.jsonl"},
		{"sqs", "queue", "write queue: https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"},
		{"jetstream", "url", "write url: nats://127.0.0.1:4222"},
	} {
		if at := path + "." + need.kind; !slices.Contains(kinds, need.kind) && k.src.set(at) {
			k.add(at+"."+need.key, "is missing", need.mend)
			kinds = append(kinds, need.kind)
		}
	}
	return kinds
}

func (k *checker) one(path string, kinds []string, missing, several string) {
	switch {
	case len(kinds) == 0:
		k.add(path, "is missing", missing)
	case len(kinds) > 1:
		k.add(path, "names several: "+strings.Join(kinds, ", "), "keep one, and "+several)
	}
}

func (k *checker) webhook(path, s string) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		k.add(path, "is not a URL", "write https://host/path") // err may quote a password
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		k.add(path, "is not an address to POST to", "write https://host/path")
	case u.User != nil:
		k.add(path, "holds a user name or password", "leave it out, and give a secret: requests are signed by it")
	}
}

// Begin is where the relay begins that has never run: at a time, or with what happens from now on.
func (r *Relay) Begin() (at time.Time, newest bool, err error) {
	switch r.Start {
	case "", "oldest":
		return time.Time{}, false, nil
	case "newest":
		return time.Time{}, true, nil
	}
	at, err = time.Parse(time.RFC3339, r.Start)
	if err != nil {
		return at, false, fmt.Errorf("%q is not a place to begin at", r.Start)
	}
	return at, false, nil
}
