package relays

import (
	"testing"

	"github.com/ushergo/usher/config"
)

func TestAddresses(t *testing.T) {
	for text, check := range map[string]func(config.RelayTo) bool{
		"-":                       func(c config.RelayTo) bool { return c.Stdout },
		"events.jsonl":            func(c config.RelayTo) bool { return c.File.Path == "events.jsonl" },
		"./a:b/events.jsonl":      func(c config.RelayTo) bool { return c.File.Path == "./a:b/events.jsonl" },
		"file:///var/log/e.jsonl": func(c config.RelayTo) bool { return c.File.Path == "/var/log/e.jsonl" },
		"https://h/x?y=1":         func(c config.RelayTo) bool { return c.Webhook.URL == "https://h/x?y=1" },
		"sqlite:e.db": func(c config.RelayTo) bool {
			return c.SQL.Driver == "sqlite" && c.SQL.DSN.Reveal() == "e.db" && c.SQL.Table == "usher_events"
		},
		"postgres://u:p@h/d?table=t": func(c config.RelayTo) bool { return c.SQL.DSN.Reveal() == "postgres://u:p@h/d" && c.SQL.Table == "t" },
		"mysql://u:p@h:3306/d": func(c config.RelayTo) bool {
			return c.SQL.Driver == "mysql" && c.SQL.DSN.Reveal() == "u:p@tcp(h:3306)/d"
		},
		"kafka://a:1,b:2/topic":      func(c config.RelayTo) bool { return len(c.Kafka.Brokers) == 2 && c.Kafka.Topic == "topic" },
		"sqs+https://sqs.x/1/q.fifo": func(c config.RelayTo) bool { return c.SQS.Queue == "https://sqs.x/1/q.fifo" },
		"nats://u:p@h:4222": func(c config.RelayTo) bool {
			return c.JetStream.URL.Reveal() == "nats://u:p@h:4222" && c.JetStream.Subject == "usher.{partition}.{type}"
		},
		"nats://h/a.{key}": func(c config.RelayTo) bool {
			return c.JetStream.URL.Reveal() == "nats://h" && c.JetStream.Subject == "a.{key}"
		},
		"kinesis://Book_ings.1?region=eu-west-1&endpoint=http://h:4567": func(c config.RelayTo) bool {
			return c.Kinesis == config.RelayKinesis{Stream: "Book_ings.1", Region: "eu-west-1", Endpoint: "http://h:4567"}
		},
	} {
		to := config.DefaultRelay().To
		if err := ParseTo(text, &to); err != nil || !check(to) || len(to.Kinds()) != 1 {
			t.Errorf("%s: %+v %v", text, to, err)
		}
	}
	for _, text := range []string{"ftp://x/y", "kafka://x", "postgres://h", "nats:x", "kinesis:x", "kinesis://x/y", "kinesis://x?regoin=z"} {
		to := config.DefaultRelay().To
		if err := ParseTo(text, &to); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
	from, remote, err := ParseFrom("usher://127.0.0.1:8081/premiere")
	if err != nil || remote == nil || remote.Base != "http://127.0.0.1:8081" || len(remote.Rooms) != 1 {
		t.Errorf("%+v %+v %v", from, remote, err)
	}
	from, _, err = ParseFrom("redis://u:p@h:6379/2?stream=s&key=k")
	if err != nil || from.Redis.URL.Reveal() != "redis://u:p@h:6379/2" || from.Redis.Stream != "s" || from.Redis.Key != "k" {
		t.Errorf("%+v %v", from, err)
	}
	from, _, err = ParseFrom("nats://t@h:4222/bookings?filter=usher.>")
	if j := from.JetStream; err != nil || j.URL.Reveal() != "nats://t@h:4222" || j.Stream != "bookings" || j.Filter != "usher.>" {
		t.Errorf("%+v %v", j, err)
	}
	from, _, err = ParseFrom("kinesis://bookings?region=eu-west-1")
	if err != nil || from.Kinesis.Stream != "bookings" || from.Kinesis.Region != "eu-west-1" || len(from.Kinds()) != 1 {
		t.Errorf("%+v %v", from, err)
	}
	for _, text := range []string{"", "premiere", "redis://h:1/0", "kafka://h/t", "nats://h", "kinesis://?region=x"} {
		if _, _, err := ParseFrom(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
