package memory

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ushergo/usher/engine/memory/journal/disk"
	"github.com/ushergo/usher/room"
)

// A deleted room's folder gets the name .deleted-<room>.<epoch>.<seq> and is emptied. One
// rename is the deletion and remembers what must survive it: the next room of that name writes
// events of a later epoch, and gives no seq again.

const deletedPrefix = ".deleted-"

// tomb is what remains of a deleted room.
type tomb struct {
	epoch, seq uint64 // the last ones
}

func (t tomb) name(id string) string {
	return fmt.Sprintf("%s%s.%d.%d", deletedPrefix, id, t.epoch, t.seq)
}

func parseTomb(name string) (id string, t tomb, ok bool) {
	id, rest, _ := strings.Cut(strings.TrimPrefix(name, deletedPrefix), ".")
	n, _ := fmt.Sscanf(rest, "%d.%d", &t.epoch, &t.seq)
	return id, t, n == 2 && t.name(id) == name
}

// Delete implements room.Store.
func (e *Engine) Delete(_ context.Context, id string, force bool) error {
	gone, err := e.bury(id, force)
	if err == nil {
		e.empty(gone)
	}
	return err
}

// bury stops a room and gives its folder another name, which it returns.
func (e *Engine) bury(id string, force bool) (string, error) {
	e.making.Lock()
	defer e.making.Unlock()
	h, err := e.host(id)
	if err != nil {
		return "", err
	}
	last, err := h.delete(force)
	if err != nil {
		return "", err
	}
	e.mu.Lock()
	delete(e.hosts, id)
	e.mu.Unlock()
	roomsDir := filepath.Join(e.dir, "rooms")
	gone := filepath.Join(roomsDir, last.name(id))
	err = os.Rename(filepath.Join(roomsDir, id), gone)
	if err == nil {
		err = disk.OS().SyncDir(roomsDir)
	}
	if err != nil {
		return "", fmt.Errorf("room %s is stopped, but its folder may come back at the next start: %w; delete %s by hand", id, err, filepath.Join(roomsDir, id))
	}
	if old, ok := e.last[id]; ok {
		e.remove(filepath.Join(roomsDir, old.name(id)))
	}
	e.last[id] = last
	return gone, nil
}

// buryAll finishes deletions that were interrupted, and learns what they left.
func (e *Engine) buryAll(entries []fs.DirEntry) {
	roomsDir := filepath.Join(e.dir, "rooms")
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), deletedPrefix) {
			continue
		}
		name := filepath.Join(roomsDir, entry.Name())
		id, t, ok := parseTomb(entry.Name())
		old, known := e.last[id]
		switch {
		case !ok, known && old.epoch > t.epoch:
			e.remove(name)
			continue
		case known:
			e.remove(filepath.Join(roomsDir, old.name(id)))
		}
		e.last[id] = t
		e.empty(name)
	}
}

// empty removes what is in a deleted room's folder, and keeps its name.
func (e *Engine) empty(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		e.log.Warn("a deleted room's files are still there", "folder", dir, "err", err)
	}
	for _, entry := range entries {
		e.remove(filepath.Join(dir, entry.Name()))
	}
}

func (e *Engine) remove(name string) {
	if err := os.RemoveAll(name); err != nil {
		e.log.Warn("a deleted room's files are still there", "file", name, "err", err)
	}
}

var _ room.Store = (*Engine)(nil)
