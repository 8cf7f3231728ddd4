// Package lines writes events as JSON lines, one relay.Envelope each, to a file or to standard output.
//
// Promise: an event is taken when its line is in the file, and with Sync on the disk. A line that was cut off by a crash is
// removed when the file is opened again; its event is written anew. A file that was moved away (logrotate) is made anew.
package lines

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/ushergo/usher/relay"
)

// Sink writes lines. It implements relay.Sink.
type Sink struct {
	path string // empty: out is the caller's
	sync bool

	mu   sync.Mutex
	out  io.Writer
	file *os.File
}

var _ relay.Sink = (*Sink)(nil)

// To writes to w, which stays the caller's. What w has taken is delivered.
func To(w io.Writer) *Sink { return &Sink{out: w} }

// Open appends to a file, mode 0600, that is made if there is none; with sync, every batch is on the disk before it counts.
func Open(path string, sync bool) (*Sink, error) {
	s := &Sink{path: path, sync: sync}
	if err := s.reopen(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Sink) reopen() error {
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("relay: the file cannot be opened: %w; check to.file.path and who may write there", err)
	}
	if err := cutTorn(f); err != nil {
		_ = f.Close()
		return fmt.Errorf("relay: %s: %w", s.path, err)
	}
	if s.file != nil {
		_ = s.file.Close()
	}
	s.file, s.out = f, f
	return nil
}

// begins is how every line of ours does.
var begins = []byte(`{"id":`)

// cutTorn removes what follows the last line end, if it is the beginning of a line of ours; else it ends that line.
func cutTorn(f *os.File) error {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	size := info.Size()
	buf := make([]byte, 64<<10)
	for end := size; end > 0; {
		from := max(end-int64(len(buf)), 0)
		n, err := f.ReadAt(buf[:end-from], from)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			return cutFrom(f, from+int64(i)+1, size)
		}
		end = from
	}
	return cutFrom(f, 0, size)
}

func cutFrom(f *os.File, keep, size int64) error {
	if keep == size {
		return nil
	}
	tail := make([]byte, min(size-keep, int64(len(begins))))
	if _, err := f.ReadAt(tail, keep); err != nil {
		return err
	}
	if bytes.Equal(tail, begins[:len(tail)]) {
		return f.Truncate(keep)
	}
	_, err := f.Write([]byte{'\n'})
	return err
}

// Limits implements relay.Sink.
func (s *Sink) Limits() relay.Limits { return relay.Limits{Bytes: 4 << 20} }

// Send implements relay.Sink.
func (s *Sink) Send(ctx context.Context, b relay.Batch) []error {
	if err := ctx.Err(); err != nil {
		return relay.All(len(b.Events), err)
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	errs := make([]error, len(b.Events))
	for i := range b.Events {
		if err := enc.Encode(b.Events[i].Envelope()); err != nil {
			errs[i] = relay.Classed(relay.Rejected, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.write(buf.Bytes()); err != nil {
		return relay.All(len(b.Events), err)
	}
	return errs
}

func (s *Sink) write(lines []byte) error {
	if s.path == "" {
		_, err := s.out.Write(lines)
		return err
	}
	if s.file == nil || s.moved() {
		if err := s.reopen(); err != nil {
			return err
		}
	}
	if _, err := s.file.Write(lines); err != nil {
		return errors.Join(err, s.drop()) // opened anew, without the half line
	}
	if s.sync {
		if err := s.file.Sync(); err != nil {
			return errors.Join(err, s.drop())
		}
	}
	return nil
}

func (s *Sink) drop() error {
	err := s.file.Close()
	s.file = nil
	return err
}

// moved reports whether the path leads to another file by now, or to none.
func (s *Sink) moved() bool {
	at, err := os.Stat(s.path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	have, err := s.file.Stat()
	return err == nil && !os.SameFile(at, have)
}

// Close implements relay.Sink.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	return s.drop()
}
