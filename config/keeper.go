package config

import (
	"fmt"
	"strings"
	"time"
)

// Keeper is the keeper of outbound connections.
type Keeper struct {
	// On is set by a section in the file, be it empty.
	On bool `yaml:"-"`

	// Where leases and cursors are kept. engine: where the engine section says; memory is for one process. dynamodb: in the table of dynamodb.table, see usher dynamodb create.
	Store string `yaml:"store" default:"engine" enum:"engine,dynamodb"`
	// The DynamoDB table, for store: dynamodb and for a sink of that kind. Credentials come by the SDK's default chain.
	DynamoDB DynamoDB `yaml:"dynamodb"`
	// Name of the connections that workers share. Workers of one space hold each connection once.
	Space string `yaml:"space" default:"keeper" pattern:"[A-Za-z0-9_.-]{1,64}" patternhelp:"1 to 64 of A-Z a-z 0-9 _ . -"`
	// Name of this worker, unique in its space. Empty: host name and a random part. Danger: one that stays the same over restarts waits for its predecessor's lease after a crash.
	Worker string `yaml:"worker" pattern:"[A-Za-z0-9_.:-]{0,128}" patternhelp:"up to 128 of A-Z a-z 0-9 _ . : -"`
	// Most connections of this worker.
	Cap int `yaml:"cap" default:"700" min:"1" max:"100000"`
	// How long a worker that is not heard of keeps its connections. All workers of a space need the same. Danger: shorter, a slow store costs a healthy worker its connections.
	Lease time.Duration `yaml:"lease" default:"20s" min:"1s" max:"1h"`
	// How often a worker says that it lives; one write, whatever it holds.
	Beat time.Duration `yaml:"beat" default:"5s" min:"100ms" max:"20m"`
	// How often desired state is read for all connections, where nobody tells of changes.
	Desired time.Duration `yaml:"desired" default:"10s" min:"100ms" max:"1h"`
	// How often cursors that moved are written, all together. It is what comes again, and is left out as known, after a crash. On DynamoDB each is a paid write: 10s cost a tenth of 1s.
	Flush time.Duration `yaml:"flush" default:"1s" min:"100ms" max:"10m"`
	// How often connections without an owner are looked for without a cause.
	Sweep time.Duration `yaml:"sweep" default:"1m" min:"1s" max:"1h"`

	// Where messages are stored, or USHER_KEEPER_SINK: sqlite:FILE, postgres://USER:PASSWORD@HOST/DATABASE, mysql:USER:PASSWORD@tcp(HOST:3306)/DATABASE or dynamodb:TABLE. Empty: keeper.db in the data folder.
	Sink Secret `yaml:"sink"`
	// Sends messages to a sink of relays instead, at least once, each named by connection and number. One of its keys.
	To RelayTo `yaml:"to"`
	// How long one call of the sink may take.
	StoreTimeout time.Duration `yaml:"store_timeout" default:"10s" min:"100ms" max:"5m"`
	// Calls of the sink at once.
	Lanes int `yaml:"lanes" default:"4" min:"1" max:"64"`
	// Messages of one connection that wait for the sink; beyond it the connection is not read.
	Pending int `yaml:"pending" default:"256" min:"1" max:"100000"`
	// Bytes of one connection's messages that wait for the sink; one message may be more.
	PendingBytes Size `yaml:"pending_bytes" default:"256KiB" min:"1KiB" max:"1GiB"`
	// How long a connection that ends waits until what it has read is stored.
	Drain time.Duration `yaml:"drain" default:"1s" min:"1ms" max:"1m"`

	// How often an upstream is pinged.
	Ping time.Duration `yaml:"ping" default:"20s" min:"100ms" max:"10m"`
	// A connection without a byte for so long is made again. At least two pings.
	Silence time.Duration `yaml:"silence" default:"45s" min:"200ms" max:"1h"`
	// How long an attempt to connect may take, from name to handshake.
	DialTimeout time.Duration `yaml:"dial_timeout" default:"10s" min:"100ms" max:"5m"`
	// Attempts to connect at once.
	Dials int `yaml:"dials" default:"64" min:"1" max:"10000"`
	// Before a lost connection is made again: a random time below this, which doubles with each failure,
	Reconnect time.Duration `yaml:"reconnect" default:"500ms" min:"1ms" max:"10m"`
	// to this.
	MaxReconnect time.Duration `yaml:"max_reconnect" default:"30s" min:"1ms" max:"1h"`
	// Longest message; a longer one ends the connection. With a dynamodb sink at most 390KiB.
	MaxMessage Size `yaml:"max_message" default:"1MiB" min:"125B" max:"1GiB"`
}

// DynamoDB names a table.
type DynamoDB struct {
	// Name of the table; a second one with -workers behind it belongs to it.
	Table string `yaml:"table" pattern:"[A-Za-z0-9_.-]{3,247}" patternhelp:"3 to 247 of A-Z a-z 0-9 _ . -" example:"usher-keeper"`
	// Region. Empty: AWS_REGION, or the SDK's shared configuration.
	Region string `yaml:"region" example:"eu-central-1"`
	// Address of the service, for emulators. Empty: the region's.
	Endpoint string `yaml:"endpoint" example:"http://127.0.0.1:4567"`
}

// keeper checks what tags cannot say.
func (k *checker) keeper() {
	c := &k.c.Keeper
	if !c.On {
		return
	}
	if c.Store == "dynamodb" && c.DynamoDB.Table == "" {
		k.add("keeper.dynamodb.table", "is missing beside store: dynamodb", "make one with usher dynamodb create, and name it here")
	}
	if c.Store != "dynamodb" && c.DynamoDB.Table != "" {
		k.add("keeper.dynamodb.table", "belongs to store: dynamodb", "write store: dynamodb, or remove it")
	}
	if most := c.Lease * 9 / 20; c.Beat > most { // two beats within lease − lease/10
		k.add("keeper.beat", fmt.Sprintf("%s is too long for a lease of %s", formatDuration(c.Beat), formatDuration(c.Lease)),
			fmt.Sprintf("two must fit into nine tenths of it: at most %s", formatDuration(most)))
	}
	if c.Silence < 2*c.Ping {
		k.add("keeper.silence", fmt.Sprintf("%s is less than two pings (%s)", formatDuration(c.Silence), formatDuration(2*c.Ping)), "make it longer, so that one ping may be lost")
	}
	if c.MaxReconnect < c.Reconnect {
		k.add("keeper.max_reconnect", "is less than reconnect", "make it the larger one")
	}
	switch kinds := k.sinks("keeper.to", c.To); {
	case len(kinds) > 1:
		k.one("keeper.to", kinds, "", "let a relay carry the messages on from there")
	case len(kinds) == 1 && !c.Sink.Empty():
		k.add("keeper.to", "is given together with sink", "keep one of the two")
	}
	if u := c.To.Webhook.URL; u != "" {
		k.webhook("keeper.to.webhook.url", u)
	}
	switch kind, rest, ok := strings.Cut(c.Sink.Reveal(), ":"); {
	case c.Sink.Empty():
	case !ok || rest == "" || kind != "sqlite" && kind != "postgres" && kind != "postgresql" && kind != "mysql" && kind != "dynamodb":
		k.add("keeper.sink", "is no sink", "begin it with sqlite:, postgres://, mysql: or dynamodb:")
	}
}
