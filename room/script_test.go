package room

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs testdata: rooms told as stories, with everything that happened printed.
// To write the answers of a new story: go test ./room -run Scripts -rewrite
func TestScripts(t *testing.T) {
	stories, err := filepath.Glob("testdata/*.txt") // rapid keeps its failures beside them
	if err != nil || len(stories) == 0 {
		t.Fatal(stories, err)
	}
	for _, path := range stories {
		t.Run(filepath.Base(path), func(t *testing.T) {
			s := &script{names: map[string]ID{}, refs: map[string]Ref{}}
			datadriven.RunTest(t, path, s.run)
		})
	}
}

type script struct {
	m     *Machine
	clock int64
	names map[string]ID
	refs  map[string]Ref
	out   strings.Builder
}

var scriptStart = time.Date(2026, 12, 4, 9, 0, 0, 0, time.UTC)

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.out.Reset()
	switch d.Cmd {
	case "room": // room active=2 grace=10s …: a new room
		s.m, s.clock = NewMachine(), scriptStart.UnixMicro()
		c := s.config(t, d, DefaultConfig("premiere"))
		s.do(&Command{Op: OpConfigure, Config: &c, Seed: bytes.Repeat([]byte{7}, 32)})
	case "configure":
		c := s.config(t, d, s.m.config)
		s.do(&Command{Op: OpConfigure, Config: &c, Seed: bytes.Repeat([]byte{8}, 32)})
	case "state":
		cmd := &Command{Op: OpState, State: d.CmdArgs[0].Key, Seed: bytes.Repeat([]byte{9}, 32)}
		d.MaybeScanArgs(t, "message", &cmd.Message)
		s.do(cmd)
	case "instances":
		n, _ := strconv.Atoi(d.CmdArgs[0].Key)
		s.do(&Command{Op: OpInstances, Instances: int64(n)})
	case "enter": // enter ann bob: each by her request id
		for _, a := range d.CmdArgs {
			id, ok := s.names[a.Key]
			if !ok {
				copy(id[:], a.Key)
				s.names[a.Key] = id
			}
			r := s.do(&Command{Op: OpEnter, NewID: id, Request: [16]byte(id)})
			if r.View.Created {
				s.refs[a.Key] = r.View.Ref
			}
			s.say(a.Key, r)
		}
	case "status", "claim", "renew", "leave":
		op := map[string]Op{"status": OpStatus, "claim": OpClaim, "renew": OpRenew, "leave": OpLeave}[d.Cmd]
		for _, a := range d.CmdArgs {
			s.say(a.Key, s.do(&Command{Op: op, Ref: s.refs[a.Key]}))
		}
	case "heard":
		cmd := &Command{Op: OpHeard}
		for _, a := range d.CmdArgs {
			cmd.Refs = append(cmd.Refs, s.refs[a.Key])
		}
		s.do(cmd)
	case "wait": // wait 10s [heard=(ann,bob)]: ticks every second, with signs of life
		total, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		for ; total > 0; total -= time.Second {
			s.clock += min(total, time.Second).Microseconds()
			cmd := &Command{Op: OpHeard}
			for _, a := range d.CmdArgs[1:] {
				for _, name := range a.Vals {
					cmd.Refs = append(cmd.Refs, s.refs[name])
				}
			}
			s.do(cmd)
			s.do(&Command{Op: OpTick})
		}
	case "clock": // clock 1h: one step of the clock, forward or back
		step, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		s.clock += step.Microseconds()
		s.do(&Command{Op: OpTick})
	default:
		t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	sum := s.m.Summary()
	fmt.Fprintf(&s.out, "= %d inside, %d waiting\n", sum.Active, sum.Waiting)
	return s.out.String()
}

func (s *script) config(t *testing.T, d *datadriven.TestData, c Config) Config {
	for _, a := range d.CmdArgs {
		var err error
		v := a.Vals[0]
		switch a.Key {
		case "active":
			c.Capacity.Active, err = strconv.ParseInt(v, 10, 64)
		case "per_instance":
			c.Capacity.PerInstance, err = strconv.ParseInt(v, 10, 64)
		case "rate":
			c.Capacity.RatePerMinute, err = strconv.ParseInt(v, 10, 64)
		case "max_waiting":
			c.Queue.MaxWaiting, err = strconv.ParseInt(v, 10, 64)
		case "order":
			c.Queue.Order = Order(v)
		case "grace":
			err = c.Queue.Grace.UnmarshalText([]byte(v))
		case "idle":
			err = c.Session.Idle.UnmarshalText([]byte(v))
		case "max":
			err = c.Session.Max.UnmarshalText([]byte(v))
		case "claim":
			err = c.Session.Claim.UnmarshalText([]byte(v))
		case "hold":
			c.Session.Hold = v == "true"
		case "opens_in":
			var in time.Duration
			in, err = time.ParseDuration(v)
			c.Schedule.OpensAt = Time{scriptStart.Add(in)}
		case "closes_in":
			var in time.Duration
			in, err = time.ParseDuration(v)
			c.Schedule.ClosesAt = Time{scriptStart.Add(in)}
		case "prequeue":
			err = c.Schedule.Prequeue.UnmarshalText([]byte(v))
		default:
			t.Fatalf("%s: unknown setting %s", d.Pos, a.Key)
		}
		if err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
	}
	return c
}

// do steps the machine and prints its events.
func (s *script) do(cmd *Command) Result {
	r := s.m.Step(cmd, s.clock)
	for i := range r.Events {
		e := &r.Events[i]
		fmt.Fprintf(&s.out, "%s  %s", time.UnixMicro(e.At).UTC().Format("15:04:05"), e.Type)
		switch e.Type {
		case LimitChanged:
			if l := e.Limit; l.Limit == Unlimited {
				fmt.Fprintf(&s.out, " none, rate %d, %s, revision %d", l.Config.Capacity.RatePerMinute, l.Config.Queue.Order, l.Revision)
			} else {
				fmt.Fprintf(&s.out, " %d, rate %d, %s, revision %d", l.Limit, l.Config.Capacity.RatePerMinute, l.Config.Queue.Order, l.Revision)
			}
		case StateChanged:
			fmt.Fprintf(&s.out, " %s", EffectiveState(e.State.State, e.State.Phase))
			if e.State.Message != "" {
				fmt.Fprintf(&s.out, " %q", e.State.Message)
			}
			if o := e.State.Opening; o.Seed != "" {
				fmt.Fprintf(&s.out, ", %d drawn from pos %d on, root %.8s…", o.Count, o.FirstPos, o.Root)
			} else if o.SeedHash != "" {
				fmt.Fprintf(&s.out, ", seed's hash %.8s…", o.SeedHash)
			}
		default:
			fmt.Fprintf(&s.out, " %s", strings.TrimRight(string(e.ID[:]), "\x00"))
			if e.Pos != 0 {
				fmt.Fprintf(&s.out, ", pos %d", e.Pos)
			}
			if e.Reason != NoReason {
				fmt.Fprintf(&s.out, ", %s", e.Reason)
			}
		}
		s.out.WriteByte('\n')
	}
	if r.Err != nil {
		fmt.Fprintf(&s.out, "%v\n", r.Err)
	}
	return r
}

func (s *script) say(name string, r Result) {
	v := r.View
	fmt.Fprintf(&s.out, "%s: %v", name, v.State)
	switch v.State {
	case Waiting:
		mirror := s.m.Mirror()
		if place, ok := mirror.Place(v); ok {
			fmt.Fprintf(&s.out, ", place %d of %d", place, mirror.Summary.Waiting)
		} else {
			fmt.Fprintf(&s.out, ", one of %d", mirror.Summary.Waiting)
		}
	case Active:
		fmt.Fprintf(&s.out, ", %v to go, %v at most", v.IdleEnd, v.FinalEnd)
	case Ended:
		fmt.Fprintf(&s.out, ", %v", v.Reason)
	}
	s.out.WriteByte('\n')
}
