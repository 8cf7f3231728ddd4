package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ushergo/usher/cmd/usher/internal/server"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/token"
)

// keyFlags say where the signing keys are.
type keyFlags struct {
	dir, data, config string
}

func newKeysCmd() *cobra.Command {
	var kf keyFlags
	cmd := group("keys", "Rotate, list and export the signing keys",
		`keys works on the key folder itself, whether usher runs or not: a running usher sees a
rotation within a minute. The keys seal tickets and sign admissions. Rotation cuts nobody
off: a new key is published ten minutes before it signs, and an old one is accepted until
what it made has expired.`,
		`  usher keys list
  usher keys rotate
  usher keys rotate --config /etc/usher/usher.yaml
  USHER_KEYS="$(cat keys.txt)" usher keys rotate > new-keys.txt
  usher keys export > keys.txt                  # secret: for USHER_KEYS of other nodes`)
	flags := cmd.PersistentFlags()
	flags.StringVar(&kf.dir, "keys", "", "the key folder (default keys.dir of --config, or the one in the data folder)")
	flags.StringVar(&kf.data, "data", "", "data folder of usher (default ./usher-data)")
	flags.StringVar(&kf.config, "config", "", "configuration file that says where the keys are: a folder, or the Redis that the nodes share")
	cmd.AddCommand(newKeysListCmd(&kf), newKeysRotateCmd(&kf), newKeysExportCmd(&kf))
	return cmd
}

// folder finds the key folder. It must exist: these commands make no keys,
// which would only hide a wrong path.
func (f *keyFlags) folder() (string, error) {
	dir, data := f.dir, f.data
	if f.config != "" {
		c, err := config.Load(f.config)
		if err != nil {
			return "", err
		}
		if dir == "" && data == "" {
			dir = server.KeyFolder(c)
		}
	}
	if data == "" {
		data = "./usher-data"
	}
	if dir == "" {
		dir = filepath.Join(data, "keys")
	}
	if _, err := os.Stat(dir); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("there are no keys in %s; name the folder of the running usher by --data, --keys or --config (usher serve makes keys at its first start)", dir)
		}
		return "", err
	}
	return dir, nil
}

// open takes the keys of USHER_KEYS, if it is set and no folder is named, or those that the nodes of the file share.
func (f *keyFlags) open() (*token.Keys, error) {
	if text := f.inline(); text != "" {
		return token.FromEnv(text)
	}
	if f.config != "" && f.dir == "" && f.data == "" {
		c, err := config.Load(f.config)
		if err != nil {
			return nil, err
		}
		if c.Engine.Kind == "redis" && c.Keys.Dir == "" && c.Keys.Inline.Empty() {
			return sharedKeys(c)
		}
	}
	dir, err := f.folder()
	if err != nil {
		return nil, err
	}
	return token.Open(dir)
}

// sharedKeys opens the keys that nodes keep in Redis. The connection ends with the process.
func sharedKeys(c *config.Config) (*token.Keys, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, err := redis.Connect(ctx, server.RedisConfig(c))
	if err != nil {
		return nil, err
	}
	store := redis.NewKeyStore(client)
	switch text, err := store.Load(ctx); {
	case err != nil:
		return nil, err
	case text == "":
		return nil, fmt.Errorf("there are no keys in %s; usher serve makes them at its first start", store)
	}
	return token.OpenStore(ctx, store)
}

func (f *keyFlags) inline() string {
	if f.dir != "" || f.data != "" || f.config != "" {
		return ""
	}
	return strings.TrimSpace(os.Getenv("USHER_KEYS"))
}

func newKeysListCmd(kf *keyFlags) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List keys without their secrets",
		Example: "  usher keys list\n  usher keys list --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			keys, err := kf.open()
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), keys.List())
			}
			tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(tw, "KIND\tID\tSTATE\tFROM\tUNTIL")
			for _, k := range keys.List() {
				until := ""
				if !k.Until.IsZero() {
					until = k.Until.Local().Format(time.DateTime)
				}
				fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", k.Kind, k.ID, k.State, k.From.Local().Format(time.DateTime), until)
			}
			return tw.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newKeysRotateCmd(kf *keyFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate",
		Short: "Bring new keys into use without cutting anybody off",
		Long: `rotate publishes new keys; they sign from ten minutes later on, when every origin
and node knows them. Old keys are accepted until what they made has expired.
With USHER_KEYS and no folder named, it prints the next value of USHER_KEYS on
standard output: give it to every node within those ten minutes.`,
		Example: "  usher keys rotate\n  USHER_KEYS=\"$(cat keys.txt)\" usher keys rotate > new-keys.txt",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if text := kf.inline(); text != "" {
				next, report, err := token.RotateText(text, time.Now())
				if err != nil {
					return err
				}
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), next); err != nil {
					return err
				}
				return printRotation(cmd.ErrOrStderr(), report)
			}
			keys, err := kf.open()
			if err != nil {
				return err
			}
			report, err := keys.Rotate(time.Now())
			if err != nil {
				return err
			}
			return printRotation(cmd.OutOrStdout(), report)
		},
	}
}

func printRotation(w io.Writer, r token.RotateReport) error {
	verb := "new key"
	if r.Already {
		verb = "a rotation is already under way: key"
	}
	_, err := fmt.Fprintf(w, "%s %s, published now, signs from %s\n", verb, r.KeyID, r.SignsAt.Local().Format(time.DateTime))
	for _, old := range r.Retired {
		if err == nil {
			_, err = fmt.Fprintf(w, "old key %s, accepted until %s\n", old.KeyID, old.Until.Local().Format(time.DateTime))
		}
	}
	return err
}

func newKeysExportCmd(kf *keyFlags) *cobra.Command {
	var public, force bool
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Print the keys, for USHER_KEYS of other nodes",
		Long: `export prints all keys as one line, the value of USHER_KEYS. Whoever has it can make
tickets and admissions: keep it as you keep passwords. --public prints the public half
alone (JWKS), which origins may have.`,
		Example: "  usher keys export > keys.txt\n  usher keys export --public > jwks.json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			keys, err := kf.open()
			if err != nil {
				return err
			}
			if public {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", keys.JWKS())
				return err
			}
			if terminal(cmd.OutOrStdout()) && !force {
				return errors.New("these are the secret keys, and this is a screen; write them to a file or a pipe (usher keys export > keys.txt), or add --force")
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), keys.Export())
			return err
		},
	}
	cmd.Flags().BoolVar(&public, "public", false, "print the public keys alone, as JWKS")
	cmd.Flags().BoolVar(&force, "force", false, "print secrets on a terminal too")
	return cmd
}
