package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// CreateOptions of Create. The zero value pays by request.
type CreateOptions struct {
	// Read and Write are provisioned capacity units of the table, its index and the workers' table, each; 0: on demand.
	Read, Write int64
}

// Create makes the tables of a space, waits until they can be used, and says what it made. Those that exist are left as they
// are when their keys are right, and refused when not. deploy/terraform makes the same.
func Create(ctx context.Context, client *dynamodb.Client, table string, opts CreateOptions) (made []string, err error) {
	if (opts.Read > 0) != (opts.Write > 0) {
		return nil, errors.New("dynamodb: read and write capacity: give both, or neither for on demand")
	}
	for _, in := range tables(table, opts) {
		_, err := client.CreateTable(ctx, in)
		var exists *types.ResourceInUseException
		switch {
		case errors.As(err, &exists):
		case err != nil:
			return made, fmt.Errorf("dynamodb: table %s: %w", *in.TableName, err)
		default:
			made = append(made, *in.TableName)
		}
		err = dynamodb.NewTableExistsWaiter(client, func(o *dynamodb.TableExistsWaiterOptions) {
			o.MinDelay, o.MaxDelay = 200*time.Millisecond, 5*time.Second
		}).Wait(ctx, &dynamodb.DescribeTableInput{TableName: in.TableName}, 5*time.Minute)
		if err != nil {
			return made, fmt.Errorf("dynamodb: table %s is not active: %w", *in.TableName, err)
		}
		if err := same(ctx, client, in); err != nil {
			return made, err
		}
	}
	return made, nil
}

func tables(table string, opts CreateOptions) []*dynamodb.CreateTableInput {
	attribute := func(name string) types.AttributeDefinition {
		return types.AttributeDefinition{AttributeName: aws.String(name), AttributeType: types.ScalarAttributeTypeS}
	}
	hash := func(name string) types.KeySchemaElement {
		return types.KeySchemaElement{AttributeName: aws.String(name), KeyType: types.KeyTypeHash}
	}
	billing := types.BillingModePayPerRequest
	var capacity *types.ProvisionedThroughput
	if opts.Read > 0 {
		billing = types.BillingModeProvisioned
		capacity = &types.ProvisionedThroughput{ReadCapacityUnits: aws.Int64(opts.Read), WriteCapacityUnits: aws.Int64(opts.Write)}
	}
	return []*dynamodb.CreateTableInput{{
		TableName: aws.String(table), BillingMode: billing, ProvisionedThroughput: capacity,
		AttributeDefinitions: []types.AttributeDefinition{attribute("Pk"), attribute("desired_state"), attribute("lease_owner")},
		KeySchema:            []types.KeySchemaElement{hash("Pk")},
		GlobalSecondaryIndexes: []types.GlobalSecondaryIndex{{
			IndexName:             aws.String(index),
			KeySchema:             []types.KeySchemaElement{hash("desired_state"), {AttributeName: aws.String("lease_owner"), KeyType: types.KeyTypeRange}},
			Projection:            &types.Projection{ProjectionType: types.ProjectionTypeInclude, NonKeyAttributes: []string{"owner_generation", "fence", "rev"}},
			ProvisionedThroughput: capacity,
		}},
	}, {
		TableName: aws.String(table + "-workers"), BillingMode: billing, ProvisionedThroughput: capacity,
		AttributeDefinitions: []types.AttributeDefinition{attribute("Pk")},
		KeySchema:            []types.KeySchemaElement{hash("Pk")},
	}}
}

// same compares the keys of a table that exists with those that are needed.
func same(ctx context.Context, client *dynamodb.Client, want *dynamodb.CreateTableInput) error {
	out, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: want.TableName})
	if err != nil {
		return fmt.Errorf("dynamodb: table %s: %w", *want.TableName, err)
	}
	schema := func(ks []types.KeySchemaElement) (s string) {
		for _, k := range ks {
			s += aws.ToString(k.AttributeName) + " " + string(k.KeyType) + " "
		}
		return s
	}
	if got, need := schema(out.Table.KeySchema), schema(want.KeySchema); got != need {
		return fmt.Errorf("dynamodb: table %s exists with the key (%s), usher needs (%s): choose another name", *want.TableName, got, need)
	}
	for _, need := range want.GlobalSecondaryIndexes {
		ok := false
		for _, got := range out.Table.GlobalSecondaryIndexes {
			ok = ok || aws.ToString(got.IndexName) == *need.IndexName && schema(got.KeySchema) == schema(need.KeySchema)
		}
		if !ok {
			return fmt.Errorf("dynamodb: table %s exists without the index %s over (%s): choose another name, or add it", *want.TableName, *need.IndexName, schema(need.KeySchema))
		}
	}
	return nil
}
