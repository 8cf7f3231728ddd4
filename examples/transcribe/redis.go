package transcribe

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"time"
)

// StartRedis runs a redis-server that listens on a socket in dir and on no port. exec.ErrNotFound: there is none.
func StartRedis(ctx context.Context, dir string) (socket string, stop func(), err error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", nil, err
	}
	socket = filepath.Join(dir, "redis.sock")
	cmd := exec.Command(path, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", dir, "--logfile", filepath.Join(dir, "redis.log"))
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for ctx.Err() == nil {
		if c, err := net.Dial("unix", socket); err == nil {
			_ = c.Close()
			return socket, stop, nil
		}
		pause(ctx, 10*time.Millisecond)
	}
	stop()
	return "", nil, fmt.Errorf("redis-server does not answer on %s: %w", socket, context.Cause(ctx))
}

// WorkerMain is the command line of Work.
func WorkerMain(ctx context.Context, args []string, log io.Writer) error {
	var o WorkerOptions
	fs := flag.NewFlagSet("worker", flag.ExitOnError)
	fs.StringVar(&o.Name, "name", "", "name of the worker; default: one that nobody else has")
	fs.StringVar(&o.Store, "store", "redis:127.0.0.1:6379", "where leases and cursors are, see OpenStore")
	fs.StringVar(&o.Sink, "sink", "sqlite:messages.db", "where messages are stored, see sqlsink.Open")
	fs.DurationVar(&o.Lease, "lease", 20*time.Second, "how long a worker that is not heard of keeps its connections")
	fs.StringVar(&o.Via, "via", "", "dial this address instead of the upstream's")
	_ = fs.Parse(args)
	o.Log = slog.New(slog.NewTextHandler(log, nil))
	return Work(ctx, o)
}
