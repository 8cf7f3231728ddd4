package relays

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/ushergo/usher/config"
)

// Remote is a running usher whose rooms are read through its admin API.
type Remote struct {
	Base  string   // http://host:port
	Rooms []string // empty: all
}

// ParseFrom reads the address of a source: usher://host:port/room (or usher+https://), redis://host:6379/0?stream=KEY&key=FIELD,
// nats://host:4222/STREAM?filter=SUBJECTS, kinesis://STREAM?region=REGION.
func ParseFrom(text string) (from config.RelayFrom, remote *Remote, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" {
		return from, nil, errors.New("--from: no address; write usher://127.0.0.1:8081/premiere or redis://127.0.0.1:6379/0?stream=bookings")
	}
	switch u.Scheme {
	case "usher", "usher+http", "usher+https":
		if u.Host == "" {
			return from, nil, errors.New("--from: no host; write usher://127.0.0.1:8081/premiere")
		}
		remote = &Remote{Base: "http://" + u.Host}
		if u.Scheme == "usher+https" {
			remote.Base = "https://" + u.Host
		}
		if id := strings.Trim(u.Path, "/"); id != "" && id != "*" {
			remote.Rooms = []string{id}
		}
		return from, remote, nil
	case "redis", "rediss":
		q := u.Query()
		from.Redis.Stream, from.Redis.Key = q.Get("stream"), q.Get("key")
		if from.Redis.Stream == "" {
			return from, nil, errors.New("--from: no stream; write redis://127.0.0.1:6379/0?stream=bookings")
		}
		q.Del("stream")
		q.Del("key")
		u.RawQuery = q.Encode()
		from.Redis.URL = config.NewSecret(u.String())
		return from, nil, nil
	case "nats", "tls":
		from.JetStream.Stream, from.JetStream.Filter = strings.Trim(u.Path, "/"), u.Query().Get("filter")
		if u.Host == "" || from.JetStream.Stream == "" {
			return from, nil, errors.New("--from: no stream; write nats://127.0.0.1:4222/bookings")
		}
		from.JetStream.URL = natsServer(u)
		return from, nil, nil
	case "kinesis":
		from.Kinesis, err = kinesisAddress("--from", u)
		return from, nil, err
	}
	return from, nil, fmt.Errorf("--from: %s: is no source; use usher, usher+https, redis, rediss, nats, tls (NATS) or kinesis", u.Scheme)
}

// ParseTo reads the address of a sink and fills in to, which has the defaults: - for standard output, a file's path or
// file:, http(s):, postgres:, mysql:, sqlite:, kafka://broker,broker/topic, sqs+https://queue,
// nats://host:4222/SUBJECT (a stream must take it; usher.{partition}.{type} without one), kinesis://STREAM?region=REGION.
func ParseTo(text string, to *config.RelayTo) error {
	scheme, rest, found := strings.Cut(text, ":")
	if text == "-" || text == "stdout:" {
		to.Stdout = true
		return nil
	}
	if !found || strings.ContainsAny(scheme, "/.") {
		to.File.Path = text
		return nil
	}
	switch scheme {
	case "file":
		to.File.Path = strings.TrimPrefix(rest, "//")
	case "http", "https":
		to.Webhook.URL = text
	case "sqs+http", "sqs+https":
		to.SQS.Queue = strings.TrimPrefix(text, "sqs+")
	case "sqlite":
		to.SQL.Driver, to.SQL.DSN = "sqlite", config.NewSecret(strings.TrimPrefix(rest, "//"))
	case "postgres", "postgresql":
		return sqlAddress(text, "postgres", to)
	case "mysql", "mariadb":
		return sqlAddress(text, "mysql", to)
	case "kafka":
		hosts, topic, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "/")
		if hosts == "" || topic == "" {
			return errors.New("--to: write kafka://broker:9092,broker:9092/topic")
		}
		to.Kafka.Brokers, to.Kafka.Topic = strings.Split(hosts, ","), topic
	case "nats", "tls":
		u, err := url.Parse(text)
		if err != nil || u.Host == "" { // err may quote the password
			return errors.New("--to: write nats://127.0.0.1:4222/usher.{partition}.{type}")
		}
		if subject := strings.Trim(u.Path, "/"); subject != "" {
			to.JetStream.Subject = subject
		}
		to.JetStream.URL = natsServer(u)
	case "kinesis":
		u, err := url.Parse(text)
		if err != nil {
			u = new(url.URL)
		}
		to.Kinesis, err = kinesisAddress("--to", u)
		return err
	default:
		return fmt.Errorf("--to: %s: is no sink; use -, file, https, postgres, mysql, sqlite, kafka, nats, tls (NATS), kinesis or sqs+https", scheme)
	}
	return nil
}

// kinesisAddress reads kinesis://STREAM?region=REGION&endpoint=URL.
func kinesisAddress(flag string, u *url.URL) (config.RelayKinesis, error) {
	q := u.Query()
	k := config.RelayKinesis{Stream: u.Host, Region: q.Get("region"), Endpoint: q.Get("endpoint")}
	q.Del("region")
	q.Del("endpoint")
	if k.Stream == "" || u.Port() != "" || strings.Trim(u.Path, "/") != "" || len(q) > 0 {
		return k, errors.New(flag + ": write kinesis://STREAM?region=eu-central-1, and &endpoint=http://… for an emulator")
	}
	return k, nil
}

// natsServer is the address without what we have put behind it.
func natsServer(u *url.URL) config.Secret {
	server := url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host}
	return config.NewSecret(server.String())
}

// sqlAddress takes ?table= out of a database's address.
func sqlAddress(text, driver string, to *config.RelayTo) error {
	u, err := url.Parse(text)
	if err != nil || u.Path == "" || u.Path == "/" {
		return fmt.Errorf("--to: write %s://user:password@host/database?table=usher_events", driver) // err may quote the password
	}
	q := u.Query()
	if t := q.Get("table"); t != "" {
		to.SQL.Table = t
	}
	q.Del("table")
	u.RawQuery = q.Encode()
	to.SQL.Driver = driver
	if driver == "postgres" {
		to.SQL.DSN = config.NewSecret(u.String())
		return nil
	}
	who := ""
	if u.User != nil {
		who = u.User.Username()
		if pass, ok := u.User.Password(); ok {
			who += ":" + pass
		}
		who += "@"
	}
	dsn := who + "tcp(" + u.Host + ")" + u.Path
	if u.RawQuery != "" {
		dsn += "?" + u.RawQuery
	}
	to.SQL.DSN = config.NewSecret(dsn)
	return nil
}
