package server

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ushergo/usher/config"
)

// AdminTokenFile is the file in the data folder that keeps a token usher made.
const AdminTokenFile = "admin.token"

// adminToken gives the configured token, or the one in the data folder, which
// is made when there is none. path is the file, "" for a configured token.
func adminToken(cfg *config.Config) (token config.Secret, path string, made bool, err error) {
	if !cfg.Admin.Token.Empty() {
		return cfg.Admin.Token, "", false, nil
	}
	path = filepath.Join(cfg.Engine.Dir, AdminTokenFile)
	token, err = readAdminToken(path)
	if !errors.Is(err, os.ErrNotExist) {
		return token, path, false, err
	}
	if err := makeDataFolder(cfg.Engine.Dir); err != nil {
		return config.Secret{}, path, false, err
	}
	random := make([]byte, 32)
	rand.Read(random)
	token = config.NewSecret(hex.EncodeToString(random))
	if err := writeOnce(path, token.Reveal()+"\n"); err != nil {
		if errors.Is(err, os.ErrExist) { // another process was faster
			token, err = readAdminToken(path)
			return token, path, false, err
		}
		return config.Secret{}, path, false, fmt.Errorf("the admin token cannot be kept in %s: %w; make the folder writable, or set USHER_ADMIN_TOKEN", path, err)
	}
	return token, path, true, nil
}

// writeOnce makes the file with all its content or not at all, and only if
// there is none: a name that exists always has a whole token in it.
func writeOnce(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".admin-token-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.WriteString(text); err != nil {
		f.Close()
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}

func readAdminToken(path string) (config.Secret, error) {
	info, err := os.Stat(path)
	if err != nil {
		return config.Secret{}, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return config.Secret{}, fmt.Errorf("others may read the admin token in %s (mode %04o); remove the file, usher makes a new one, or chmod 600 it if nobody has seen it", path, info.Mode().Perm())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return config.Secret{}, fmt.Errorf("cannot read the admin token: %w; run usher as the owner of the file, or set USHER_ADMIN_TOKEN", err)
	}
	text := strings.TrimSpace(string(data))
	if len(text) < 16 {
		return config.Secret{}, fmt.Errorf("%s holds no whole token; remove it, usher makes a new one", path)
	}
	return config.NewSecret(text), nil
}
