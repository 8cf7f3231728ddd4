package token

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

const (
	keyFile  = "usher.keys"
	lockFile = "usher.keys.lock"
	tempGlob = ".usher.keys.*"
)

// folder keeps the text in a file of its own folder.
type folder struct{ dir string }

func (f *folder) String() string { return f.path() }
func (f *folder) path() string   { return filepath.Join(f.dir, keyFile) }

func openFolder(dir string) (*folder, error) {
	if dir == "" {
		return nil, errors.New("token: the key folder has no name: set keys.dir")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("token: make the key folder: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("token: open the key folder: %w", err)
	}
	if err := private(dir, info, 0o700); err != nil {
		return nil, err
	}
	return &folder{dir}, nil
}

// private refuses what other users can read or change. Windows keeps permissions elsewhere, out of our sight.
func private(path string, info fs.FileInfo, want uint32) error {
	if mode := uint32(info.Mode().Perm()); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return &PermissionError{Path: path, Mode: mode, Want: want}
	}
	return nil
}

func (f *folder) Load(context.Context) (string, error) {
	file, err := os.Open(f.path())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("token: read the keys: %w", err)
	}
	defer file.Close()
	info, err := file.Stat() // of the open file, so that what is checked is what is read
	if err != nil {
		return "", fmt.Errorf("token: read the keys: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("token: %s is not a plain file", f.path())
	}
	if err := private(f.path(), info, 0o600); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxText+1))
	if err != nil {
		return "", fmt.Errorf("token: read the keys: %w", err)
	}
	if len(text) == 0 {
		// Not ours: files are complete before they get their name. Taking it for "no keys yet" would make new ones.
		return "", &FormatError{f.path() + " is empty: restore it from a backup, or remove it to start with new keys"}
	}
	return string(text), nil
}

// Swap replaces the file whole: other processes see the old text or the new one, and so does a machine that lost
// power in between.
func (f *folder) Swap(ctx context.Context, prev, next string) (bool, error) {
	unlock, err := lock(filepath.Join(f.dir, lockFile))
	if err != nil {
		return false, fmt.Errorf("token: lock the key folder: %w", err)
	}
	defer unlock()
	now, err := f.Load(ctx)
	if err != nil || now != prev {
		return false, err
	}
	f.sweep()
	if err := f.write(next); err != nil {
		return false, fmt.Errorf("token: write the keys: %w", err)
	}
	return true, nil
}

func (f *folder) write(text string) (err error) {
	temp, err := os.CreateTemp(f.dir, tempGlob) // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = temp.Close()
			_ = os.Remove(temp.Name())
		}
	}()
	if _, err = temp.WriteString(text); err != nil {
		return err
	}
	if err = temp.Sync(); err != nil {
		return err
	}
	if err = temp.Close(); err != nil {
		return err
	}
	if err = os.Rename(temp.Name(), f.path()); err != nil {
		return err
	}
	return syncFolder(f.dir)
}

// sweep removes what a process that died while writing left behind: it holds keys. The lock is held.
func (f *folder) sweep() {
	left, _ := filepath.Glob(filepath.Join(f.dir, tempGlob))
	for _, path := range left {
		_ = os.Remove(path)
	}
}

func syncFolder(dir string) error {
	if runtime.GOOS == "windows" { // folders cannot be synced there
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
