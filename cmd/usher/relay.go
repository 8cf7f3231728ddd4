package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/ushergo/usher/cmd/usher/internal/relays"
	"github.com/ushergo/usher/cmd/usher/internal/server"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/adminlog"
)

// relayFlags are what one relay in a process of its own can be told.
type relayFlags struct {
	from, to, id, state, start, onGap, level, format string
	events                                           []string
	allow                                            []string
	idle                                             time.Duration
	redrive                                          float64
}

func newRelayCmd() *cobra.Command {
	var f relayFlags
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Carry every event of a source to a sink",
		Long: `relay does in a process of its own what a relay: section does inside usher serve: at least
once, in order by key, with a cursor and dead letters that it keeps in --state. Several
processes with one --state on Redis or DynamoDB and one --id share the work and take over
from each other; a folder is for one process.

  --from  usher://host:port/ROOM         a room of a running usher, by its admin API (no room: all)
          redis://host:6379/0?stream=KEY&key=FIELD
          nats://host:4222/STREAM?filter=SUBJECTS
          kinesis://STREAM?region=eu-central-1
  --to    -                              standard output, as JSON lines
          events.jsonl, file:PATH        a file of JSON lines
          https://host/path              a webhook, signed by USHER_RELAY_SECRET
          postgres://…?table=NAME, mysql://…, sqlite:PATH
          kafka://broker:9092/topic, nats://host:4222/SUBJECT, sqs+https://QUEUE-URL
          kinesis://STREAM?region=eu-central-1

  --state ./relay-state                  a folder
          redis://host:6379/1
          dynamodb://TABLE?region=eu-central-1&dlq=QUEUE-URL
                                         a table of usher dynamodb create, for this relay alone;
                                         dead letters go to the SQS queue

The admin token comes from USHER_ADMIN_TOKEN. Its dead letters are looked at by usher dlq
with the same --state, and brought back by the same usher relay with --redrive.`,
		Example: `  usher relay --from usher://127.0.0.1:8081/premiere --to - --state ./relay-state
  usher relay --from usher://127.0.0.1:8081 --to https://tickets.example.com/events --id bookings --events admitted
  usher relay --from 'redis://127.0.0.1:6379/0?stream=bookings' --to kafka://127.0.0.1:9092/bookings --state redis://127.0.0.1:6379/1`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := server.NewLogger(cmd.ErrOrStderr(), f.level, f.format)
			if err != nil {
				return &usageError{err}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return inLog(log, f.run(ctx, cmd.OutOrStdout(), log))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.from, "from", "", "address of the source (required)")
	flags.StringVar(&f.to, "to", "", "address of the sink (required)")
	flags.StringVar(&f.id, "id", "relay", "name of the relay, which its cursor and dead letters belong to")
	flags.StringVar(&f.state, "state", "./usher-relay", "folder, redis:// or dynamodb:// address of cursors, leases and dead letters")
	flags.StringVar(&f.start, "start", "oldest", "where it begins the first time: oldest, newest, or a time (RFC 3339)")
	flags.StringVar(&f.onGap, "on-gap", "stop", "stop or continue, when the source no longer has what was not read")
	flags.StringSliceVar(&f.events, "events", nil, "types of events to carry (default all)")
	flags.StringSliceVar(&f.allow, "allow", nil, "private networks that a webhook may be in, as 10.0.0.0/8: egress.allow of the configuration file")
	flags.DurationVar(&f.idle, "until-idle", 0, "end when nothing has come for so long (default: never)")
	flags.Float64Var(&f.redrive, "redrive", 0, "bring all dead letters back, so many a second, and end; nothing else is carried")
	flags.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&f.format, "log-format", "", "text or json (default text in a terminal, else json)")
	return cmd
}

// conf makes the section of a file that says the same.
func (f *relayFlags) conf() (conf config.Relay, remote *relays.Remote, err error) {
	usage := func(err error) error { return &usageError{err} }
	if f.from == "" || f.to == "" {
		return conf, nil, usage(errors.New("--from and --to are needed: where events come from and where they go"))
	}
	conf = config.DefaultRelay()
	conf.ID, conf.Start, conf.OnGap, conf.Events = f.id, f.start, f.onGap, f.events
	if conf.From, remote, err = relays.ParseFrom(f.from); err != nil {
		return conf, nil, usage(err)
	}
	if err := relays.ParseTo(f.to, &conf.To); err != nil {
		return conf, nil, usage(err)
	}
	if secret := os.Getenv("USHER_RELAY_SECRET"); secret != "" {
		conf.To.Webhook.Secret = config.NewSecret(secret)
	}
	checked := conf
	if remote != nil {
		checked.From.Rooms = []string{"*"}
	}
	c := config.Default()
	c.Relay = []config.Relay{checked}
	if err := c.Validate(); err != nil {
		return conf, nil, asFlags(err)
	}
	return conf, remote, nil
}

func (f *relayFlags) run(ctx context.Context, stdout io.Writer, log *slog.Logger) error {
	conf, remote, err := f.conf()
	if err != nil {
		return err
	}
	opts := relays.Options{Relays: []config.Relay{conf}, Logger: log, Stdout: stdout}
	for _, text := range f.allow {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return &usageError{fmt.Errorf("--allow %s: write a network, as 10.0.0.0/8", text)}
		}
		opts.Egress = append(opts.Egress, p)
	}
	if remote != nil {
		token := strings.TrimSpace(os.Getenv("USHER_ADMIN_TOKEN"))
		if token == "" {
			return &usageError{fmt.Errorf("--from %s: its admin token is missing; set USHER_ADMIN_TOKEN, as by USHER_ADMIN_TOKEN=$(cat usher-data/admin.token)", f.from)}
		}
		opts.Source = adminlog.New(remote.Base, adminlog.Options{Token: token, Rooms: remote.Rooms})
	}
	closer, err := openState(f.state, &opts, log)
	if err != nil {
		return err
	}
	defer closer()
	rs, err := relays.Open(ctx, opts)
	if err != nil {
		return err
	}
	if f.redrive > 0 {
		out, err := rs.List()[0].Redrive(ctx, relay.Redrive{PerSecond: f.redrive})
		fmt.Fprintf(stdout, "%d brought back, %d refused again\n", out.Taken, out.Failed)
		return errors.Join(err, rs.Close())
	}
	log.Info("relay is up", "id", conf.ID, "state", f.stateName())
	rs.Run()
	f.await(ctx, rs)
	return rs.Close()
}

// stateName is the place without a password.
func (f *relayFlags) stateName() string {
	if strings.HasPrefix(f.state, "redis") {
		return "redis"
	}
	return f.state
}

// openState opens what cursors, leases and dead letters are kept in.
func openState(state string, opts *relays.Options, log *slog.Logger) (closer func(), err error) {
	if strings.HasPrefix(state, "dynamodb:") {
		return func() {}, dynamoState(state, opts)
	}
	if strings.HasPrefix(state, "redis://") || strings.HasPrefix(state, "rediss://") {
		opt, err := rueidis.ParseURL(state)
		if err != nil {
			return nil, &usageError{errors.New("--state: write redis://user:password@host:6379/0")} // err may quote the password
		}
		opt.DisableCache = true
		client, err := rueidis.NewClient(opt)
		if err != nil {
			return nil, fmt.Errorf("--state: %w", err)
		}
		opts.Dead = redis.NewDeadLetters(client)
		opts.Leases = func(_ context.Context, space string) (lease.Store, io.Closer, error) {
			l, err := redis.NewLeases(client, space)
			return l, nil, err
		}
		return client.Close, nil
	}
	dead, err := memory.OpenDeadLetters(state, memory.DeadLetterOptions{Logger: log})
	if err != nil {
		return nil, fmt.Errorf("--state %s: %w", state, err)
	}
	opts.Dead = dead
	opts.Leases = func(_ context.Context, space string) (lease.Store, io.Closer, error) {
		l, err := memory.OpenLeases(state, space, memory.LeaseOptions{Logger: log})
		return l, l, err
	}
	return func() {
		if err := dead.Close(); err != nil {
			log.Error("the dead letters were not closed in order", "err", err)
		}
	}, nil
}

// await returns when ctx ends, or when nothing has come for --until-idle.
func (f *relayFlags) await(ctx context.Context, rs *relays.Relays) {
	if f.idle <= 0 {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(min(f.idle/4+time.Millisecond, time.Second))
	defer tick.Stop()
	var carried uint64
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var now uint64
		busy := false
		for _, r := range rs.List() {
			lanes := r.Lanes()
			busy = busy || len(lanes) == 0
			for _, l := range lanes {
				now += l.Taken + l.Buried
				busy = busy || !l.CaughtUp
			}
		}
		if busy || now != carried {
			carried, since = now, time.Now()
		} else if time.Since(since) >= f.idle {
			return
		}
	}
}
