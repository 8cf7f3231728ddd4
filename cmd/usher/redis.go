package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/cmd/usher/internal/server"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/engine/redis"
)

func newRedisCmd() *cobra.Command {
	cmd := group("redis", "Look after the keys that usher has in Redis",
		`With engine.kind: redis all that usher knows is in Redis, in keys that begin with usher:.
These commands look through those of the rooms, while usher runs or not. They reach Redis
as the configuration file says.`,
		`  usher redis check --config usher.yaml
  usher redis clean --config usher.yaml --dry-run
  usher redis clean --config usher.yaml`)
	cmd.AddCommand(newRedisCheckCmd(), newRedisCleanCmd())
	return cmd
}

// openRedisOf connects to the Redis that a configuration file names.
func openRedisOf(ctx context.Context, file string) (rueidis.Client, error) {
	c, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	if c.Engine.Kind != "redis" {
		return nil, fmt.Errorf("%s: engine.kind is %s; these commands are for kind: redis", file, c.Engine.Kind)
	}
	return redis.Connect(ctx, server.RedisConfig(c))
}

func newRedisCheckCmd() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Tell what is not in order; changes nothing",
		Long: `check names each key that is of the wrong type or of another version, that is nobody's, or
that a deleted room has left, with its mend. It ends with 1 if there is one.`,
		Example: `  usher redis check --config /etc/usher/usher.yaml`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := openRedisOf(cmd.Context(), file)
			if err != nil {
				return err
			}
			defer client.Close()
			rooms, found, err := redis.CheckRooms(cmd.Context(), client)
			if err != nil {
				return err
			}
			for _, f := range found {
				fmt.Fprintln(cmd.OutOrStdout(), f)
			}
			if len(found) == 0 {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "in order, %s\n", count(rooms, "room"))
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s in order, %s to mend\n", count(rooms, "room"), count(len(found), "thing"))
			return &exitError{1}
		},
	}
	cmd.Flags().StringVar(&file, "config", "usher.yaml", "configuration file")
	return cmd
}

func newRedisCleanCmd() *cobra.Command {
	var file string
	var dry bool
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Remove what usher has left behind",
		Long: `clean removes what check finds and nothing reads: the rest of deleted rooms, and names of
rooms that do not exist. Keys of another version or type are never removed, nor is anything
that may be somebody's place.`,
		Example: `  usher redis clean --dry-run   # what would go
  usher redis clean`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := openRedisOf(cmd.Context(), file)
			if err != nil {
				return err
			}
			defer client.Close()
			_, found, err := redis.CheckRooms(cmd.Context(), client)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			removed, left := 0, 0
			for _, f := range found {
				switch {
				case !f.Removable:
					left++
					fmt.Fprintln(out, "left alone:", f)
				case dry:
					removed += f.Keys
					fmt.Fprintln(out, "would remove:", f)
				default:
					n, err := redis.Clean(cmd.Context(), client, f)
					if err != nil {
						return err
					}
					removed += n
					fmt.Fprintln(out, "removed:", f)
				}
			}
			what := "removed"
			if dry {
				what = "would be removed"
			}
			_, err = fmt.Fprintf(out, "%s %s, %d left alone\n", count(removed, "key"), what, left)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "config", "usher.yaml", "configuration file")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be removed")
	return cmd
}
