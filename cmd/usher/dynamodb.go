package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/ushergo/usher/cmd/usher/internal/relays"
	"github.com/ushergo/usher/engine/dynamodb"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/relay/sqs"
)

func newDynamoDBCmd() *cobra.Command {
	cmd := group("dynamodb", "Make the tables that leases are kept in",
		`DynamoDB can keep leases and their cursors: who holds which connection, and how far it
has come. Credentials are found as every AWS tool finds them: environment, shared config,
web identity, container, instance. An emulator takes any, as AWS_ACCESS_KEY_ID=x and
AWS_SECRET_ACCESS_KEY=x.`,
		`  usher dynamodb create --table usher-leases --region eu-west-1
  usher dynamodb create --endpoint http://127.0.0.1:4567 --region local   # an emulator`)
	cmd.AddCommand(newDynamoDBCreateCmd())
	return cmd
}

func newDynamoDBCreateCmd() *cobra.Command {
	var settings dynamodb.Settings
	var opts dynamodb.CreateOptions
	var table string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make them, or say that they are there",
		Long: `create makes TABLE, its index desired_state-lease_owner, and TABLE-workers, and waits until
they can be used. Tables that exist are left as they are; one of another make is refused.
deploy/terraform makes the same.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := dynamodb.Client(cmd.Context(), settings)
			if err != nil {
				return err
			}
			made, err := dynamodb.Create(cmd.Context(), client, table, opts)
			for _, name := range made {
				fmt.Fprintln(cmd.OutOrStdout(), "made", name)
			}
			if err != nil {
				return err
			}
			if len(made) == 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "%s and %s-workers are there already\n", table, table)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&table, "table", "usher-leases", "name of the table of resources")
	flags.StringVar(&settings.Region, "region", "", "AWS region (default AWS_REGION, or the shared config)")
	flags.StringVar(&settings.Endpoint, "endpoint", "", "endpoint, for an emulator (default the region's)")
	flags.Int64Var(&opts.Read, "read-capacity", 0, "provisioned read capacity of each table and the index (default on demand)")
	flags.Int64Var(&opts.Write, "write-capacity", 0, "provisioned write capacity of each table and the index (default on demand)")
	return cmd
}

// dynamoState keeps leases and cursors in a table of DynamoDB, and dead letters in a queue of SQS.
func dynamoState(state string, opts *relays.Options) error {
	u, err := url.Parse(state)
	if err != nil {
		u = new(url.URL)
	}
	q := u.Query()
	settings := dynamodb.Settings{Region: q.Get("region"), Endpoint: q.Get("endpoint")}
	queue := q.Get("dlq")
	for _, known := range []string{"region", "endpoint", "dlq"} {
		q.Del(known)
	}
	if u.Host == "" || u.Path != "" || queue == "" || len(q) > 0 {
		return &usageError{errors.New("--state: write dynamodb://TABLE?region=eu-central-1&dlq=QUEUE-URL: a table, and the URL of an SQS queue for dead letters")}
	}
	ctx := context.Background() // nothing is connected to yet
	client, err := dynamodb.Client(ctx, settings)
	if err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	if opts.Dead, err = sqs.OpenDeadLetters(ctx, sqs.Options{Queue: queue, Region: settings.Region}); err != nil {
		return fmt.Errorf("--state: dlq: %w", err)
	}
	opts.Leases = func(context.Context, string) (lease.Store, io.Closer, error) {
		return dynamodb.NewLeases(client, u.Host), nil, nil
	}
	return nil
}
