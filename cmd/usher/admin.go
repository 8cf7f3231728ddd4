package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ushergo/usher/cmd/usher/internal/adminapi"
	"github.com/ushergo/usher/cmd/usher/internal/server"
	"github.com/ushergo/usher/config"
)

// adminFlags say which usher is meant, and how to prove that one may ask it.
type adminFlags struct {
	url, tokenFile, data, config string
}

func (f *adminFlags) register(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.url, "admin", "", "address of the admin listener (default USHER_ADMIN_URL, --config, or http://127.0.0.1:8081)")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the admin token (default USHER_ADMIN_TOKEN, --config, or admin.token in --data)")
	flags.StringVar(&f.data, "data", "", "data folder of the running usher (default ./usher-data)")
	flags.StringVar(&f.config, "config", "", "configuration file of the running usher, to take address, token and folder from")
}

// client asks the admin API that the flags mean.
func (f *adminFlags) client() (*adminapi.Client, error) {
	url, token, from, err := f.find()
	if err != nil {
		return nil, err
	}
	return adminapi.New(url, token, from)
}

// find finds address and token: what is said on the command line wins over the
// environment, and the environment over the file. from says where the token,
// which may be empty, came from.
func (f *adminFlags) find() (url string, token config.Secret, from string, err error) {
	url, data := f.url, f.data
	if v := os.Getenv("USHER_ADMIN_URL"); url == "" && v != "" {
		url = v
	}
	if f.config != "" {
		c, err := config.Load(f.config)
		if err != nil {
			return "", token, "", err
		}
		if url == "" {
			url = adminURL(c)
		}
		if data == "" {
			data = c.Engine.Dir
		}
		token, from = c.Admin.Token, f.config // of the environment, if it has one
	}
	if url == "" {
		url = "http://127.0.0.1:8081"
	}
	if data == "" {
		data = "./usher-data"
	}
	switch env := strings.TrimSpace(os.Getenv("USHER_ADMIN_TOKEN")); {
	case f.tokenFile != "":
		t, err := readToken(f.tokenFile)
		if err != nil {
			return "", token, "", err
		}
		token, from = t, f.tokenFile
	case env != "":
		token, from = config.NewSecret(env), "USHER_ADMIN_TOKEN"
	case token.Empty():
		path := filepath.Join(data, server.AdminTokenFile)
		t, err := readToken(path)
		if err == nil {
			token, from = t, path
		} else if !os.IsNotExist(err) {
			return "", token, "", err
		} else {
			from = ""
		}
	}
	return url, token, from, nil
}

// adminURL is where a local client finds the admin listener of c.
func adminURL(c *config.Config) string { return listenerURL(c.Admin.Listen, c.Admin.TLS.On()) }

func listenerURL(listen string, tls bool) string {
	scheme := "http://"
	if tls {
		scheme = "https://"
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return scheme + listen
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + net.JoinHostPort(host, port)
}

func readToken(path string) (config.Secret, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		if os.IsPermission(err) {
			return config.Secret{}, fmt.Errorf("may not read the admin token in %s; run this as the user that runs usher, or set USHER_ADMIN_TOKEN", path)
		}
		return config.Secret{}, err
	}
	t := strings.TrimSpace(string(data))
	if t == "" {
		return config.Secret{}, fmt.Errorf("%s is empty; it should hold the admin token", path)
	}
	return config.NewSecret(t), nil
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
