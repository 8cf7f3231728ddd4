package relays

import (
	"context"
	"io"
	"net/netip"
	"time"

	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/relay"
)

// OpenSink makes the sink that to names, for those who send without a relay: the keeper. timeout bounds one call of it.
func OpenSink(ctx context.Context, to config.RelayTo, egress []netip.Prefix, timeout time.Duration, stdout io.Writer) (relay.Sink, error) {
	m := &means{egress: egress, stdout: stdout}
	return m.openSink(ctx, &config.Relay{ID: "keeper", To: to, Timeout: timeout})
}
