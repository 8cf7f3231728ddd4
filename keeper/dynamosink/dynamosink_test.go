package dynamosink_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ushergo/usher/internal/faultproxy"
	"github.com/ushergo/usher/keeper/dynamosink"
	"github.com/ushergo/usher/keeper/keepertest"
)

func emulator(t *testing.T) *faultproxy.Emulator {
	t.Helper()
	if testing.Short() {
		t.Skip("starts dynalite")
	}
	emu, err := faultproxy.Start("dynalite")
	if errors.Is(err, faultproxy.ErrMissing) && os.Getenv("USHER_TEST_ALL") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = emu.Close() })
	return emu
}

func client(t *testing.T, url string) *dynamodb.Client {
	t.Helper()
	cfg, err := config.LoadDefaultConfig(context.Background(), config.WithRegion("eu-central-1"),
		config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("test", "test", "")))
	if err != nil {
		t.Fatal(err)
	}
	return dynamodb.NewFromConfig(cfg, func(o *dynamodb.Options) { o.BaseEndpoint = aws.String(url) })
}

func rows(t *testing.T, c *dynamodb.Client, table string) (list []keepertest.Row) {
	t.Helper()
	for p := dynamodb.NewScanPaginator(c, &dynamodb.ScanInput{TableName: aws.String(table), ConsistentRead: aws.Bool(true)}); p.HasMorePages(); {
		page, err := p.NextPage(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range page.Items {
			n := func(name string) int64 {
				v, err := strconv.ParseInt(it[name].(*types.AttributeValueMemberN).Value, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			if n("Seq") < 0 {
				continue
			}
			list = append(list, keepertest.Row{
				Connection: it["Pk"].(*types.AttributeValueMemberS).Value, Seq: n("Seq"), Fence: uint64(n("fence")),
				Binary: it["is_binary"].(*types.AttributeValueMemberBOOL).Value, Data: string(it["data"].(*types.AttributeValueMemberB).Value),
			})
		}
	}
	return list
}

func TestSink(t *testing.T) {
	emu := emulator(t)
	p, err := faultproxy.New(emu.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	c := client(t, p.URL)
	var n atomic.Int32
	fresh := func(t *testing.T) keepertest.Fixture {
		table := fmt.Sprint("messages-", n.Add(1))
		direct := client(t, emu.URL)
		if err := dynamosink.Create(context.Background(), direct, table); err != nil {
			t.Fatal(err)
		}
		if err := dynamosink.New(direct, table).Ready(context.Background()); err != nil {
			t.Fatal(err)
		}
		s := dynamosink.New(c, table)
		return keepertest.Fixture{Sink: s, Rows: func(t *testing.T) []keepertest.Row { return rows(t, direct, table) }, FenceFirst: true}
	}
	keepertest.Run(t, fresh)
	t.Run("hurt", func(t *testing.T) {
		for _, r := range []faultproxy.Rule{
			{Fault: faultproxy.Throttle, Prob: 0.05}, {Fault: faultproxy.LoseReply, Prob: 0.05}, {Fault: faultproxy.Drop, Prob: 0.02},
			{Delay: 5 * time.Millisecond, Prob: 0.2},
		} {
			t.Cleanup(p.Add(r))
		}
		keepertest.Run(t, fresh)
	})
}

func TestTableThatIsMissing(t *testing.T) {
	c := client(t, emulator(t).URL)
	if err := dynamosink.New(c, "nowhere").Ready(context.Background()); err == nil || !strings.Contains(err.Error(), "create-table --table-name nowhere") {
		t.Fatalf("%v", err)
	}
}
