package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"sort"
	"strings"
	"time"
)

var kinds = []string{"usher", "gorilla", "gorilla-chat", "centrifuge-tuned", "centrifuge"}

func main() {
	serve := flag.String("serve", "", "be the server of this kind (internal)")
	conns := flag.Int("conns", 15000, "connections")
	rounds := flag.Int("rounds", 5, "broadcasts")
	only := flag.String("only", "", "kinds to run, comma-separated; none: none; default all of "+strings.Join(kinds, ","))
	waiters := flag.Int("waiters", 100_000, "waiters of one room, for the CPU share and the delay of an admission; 0 leaves it out")
	sockets := flag.Int("sockets", 15_000, "of them on WebSockets, the first in line; the others are in the server's process")
	seconds := flag.Int("seconds", 30, "for so long")
	rate := flag.Int("drain", 1500, "drain rate, a second; 0 leaves drain and storm out")
	flag.Parse()
	if *serve != "" {
		err := error(nil)
		if *serve == "house" {
			err = serveHouse(*waiters, *sockets)
		} else {
			err = serveKind(*serve)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	list := kinds
	if *only != "" {
		list = strings.Split(*only, ",")
	}
	if *only != "none" {
		peers(list, *conns, *rounds)
	}
	if *rate > 0 {
		if err := leave(*conns, *rate); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if *waiters > 0 {
		if err := packed(*waiters, *sockets, 20, *seconds); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// peers prints the table.
func peers(list []string, conns, rounds int) {
	fmt.Printf("%-18s %12s %14s %14s %14s\n", "", "KB/conn", "µs CPU/accept", "µs CPU/frame", "to the last")
	var first figures
	for i, kind := range list {
		f, err := measure(kind, conns, rounds)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", kind, err)
			continue
		}
		if i == 0 {
			first = f
		}
		fmt.Printf("%-18s %12.1f %14.0f %14.1f %14s   × %.1f %.1f %.1f\n", kind, f.kb, f.accept, f.frame, f.last.Round(time.Millisecond), f.kb/first.kb, f.accept/first.accept, f.frame/first.frame)
	}
}

type figures struct {
	kb, accept, frame float64
	last              time.Duration
}

// child is a server process.
type child struct {
	cmd  *exec.Cmd
	in   *json.Encoder
	out  *bufio.Scanner
	addr string
}

// state is what a server says of itself.
type state struct {
	Addr  string
	RSS   float64 // KB
	CPU   float64 // µs, since it began
	Conns int
	// Of a house.
	Frames int64
	Level  int
	Note   string
}

func start(kind string) (*child, error) { return startArgs("-serve", kind) }

func startArgs(args ...string) (*child, error) {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, in: json.NewEncoder(in), out: bufio.NewScanner(out)}
	c.out.Buffer(nil, 16<<20)
	s, err := c.read()
	c.addr = s.Addr
	return c, err
}

func (c *child) read() (s state, err error) {
	if !c.out.Scan() {
		return s, fmt.Errorf("the server ended: %w", c.out.Err())
	}
	return s, json.Unmarshal(c.out.Bytes(), &s)
}

// ask sends a word and reads the state after it.
func (c *child) ask(word string) (state, error) {
	if err := c.in.Encode(word); err != nil {
		return state{}, err
	}
	return c.read()
}

func (c *child) stop() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func measure(kind string, n, rounds int) (f figures, err error) {
	srv, err := start(kind)
	if err != nil {
		return f, err
	}
	defer srv.stop()
	empty, err := srv.ask("state")
	if err != nil {
		return f, err
	}
	cl, err := connect(kind, srv.addr, n)
	if err != nil {
		return f, err
	}
	defer cl.close()
	taken, err := srv.ask("state")
	if err != nil {
		return f, err
	}
	if taken.Conns != n {
		return f, fmt.Errorf("%d of %d connected", taken.Conns, n)
	}
	f.accept = (taken.CPU - empty.CPU) / float64(n)
	f.kb = (taken.RSS - empty.RSS) / float64(n)
	var last []time.Duration
	before, err := srv.ask("cpu")
	if err != nil {
		return f, err
	}
	for range rounds {
		cl.expect()
		at := time.Now()
		if _, err := srv.ask("broadcast"); err != nil {
			return f, err
		}
		if err := cl.wait(60 * time.Second); err != nil {
			return f, err
		}
		last = append(last, time.Since(at))
	}
	after, err := srv.ask("cpu")
	if err != nil {
		return f, err
	}
	f.frame = (after.CPU - before.CPU) / float64(n*rounds)
	sort.Slice(last, func(i, j int) bool { return last[i] < last[j] })
	f.last = last[len(last)/2]
	return f, nil
}
