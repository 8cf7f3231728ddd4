package arrows_test

// rule says what the packages below a folder may import beside the standard
// library. The first rule whose folder fits is the one that counts, so the
// deeper folders stand first. Rules for packages that do not exist yet are
// kept: they bind whoever writes them.
type rule struct {
	folder string   // "room" is that package; "room/..." all below it, not itself
	ours   []string // our packages, in the same form; "*" is all of them
	others []string // modules or package prefixes of others; "*" is all of them
	http   bool     // net/http is allowed
	why    string
}

// features are the packages that engines implement.
func features() []string {
	return []string{"room", "gate", "lease", "affinity", "keylock", "flight", "flight/shared", "push", "relay", "token"}
}

func table() []rule {
	return []rule{
		{folder: "keylock/keylockhttp", ours: []string{"keylock"}, http: true, why: "keylock stands alone; keylockhttp adds net/http"},
		{folder: "keylock", why: "keylock stands alone"},
		{folder: "flight/httpflight", ours: []string{"flight", "flight/..."}, http: true, why: "flight stands alone; httpflight adds net/http"},
		{folder: "flight/shared/...", ours: []string{"flight", "flight/shared"}, others: suiteClients(), why: "suites import the feature, never an engine"},
		{folder: "flight/shared", ours: []string{"flight"}, why: "flight stands alone"},
		{folder: "flight/flighttest", ours: []string{"flight", "flight/shared"}, others: suiteClients(), why: "suites import the feature, never an engine"},
		{folder: "flight", why: "flight stands alone"},

		{folder: "room/...", ours: []string{"room"}, others: suiteClients(), why: "suites import the feature, never an engine"},
		{folder: "room", why: "features own their Store and know no engine"},
		{folder: "gate/...", ours: []string{"gate"}, others: suiteClients(), http: true, why: "suites and adapters import the feature, never an engine"},
		{folder: "gate", why: "features own their Store and know no engine"},
		{folder: "lease/...", ours: []string{"lease"}, others: suiteClients(), why: "suites import the feature, never an engine"},
		{folder: "lease", why: "features own their Store and know no engine"},

		{folder: "affinity/gateway", ours: []string{"affinity", "keylock", "keylock/keylockhttp"}, http: true, others: []string{"github.com/gobwas/ws"}, why: "gateway adds net/http to affinity"},
		{folder: "affinity/affinitymetrics", ours: []string{"affinity", "affinity/gateway", "keylock"}, http: true, others: []string{"github.com/prometheus/"}, why: "figures for Prometheus, beside features that know no metrics"},
		{folder: "affinity/sidecar", ours: []string{"affinity", "affinity/gateway", "keylock"}, http: true, why: "the sidecar is an owner and a gateway in front of one app"},
		{folder: "affinity/...", ours: []string{"affinity", "keylock"}, others: suiteClients(), why: "suites import the feature, never an engine"},
		{folder: "affinity", ours: []string{"keylock"}, why: "features own their Store and know no engine"},

		{folder: "keda", ours: []string{"internal/externalscaler"}, others: []string{"google.golang.org/grpc"}, why: "gRPC stays in its own package"},
		{folder: "instances/kubernetes", ours: []string{"instances"}, others: []string{"k8s.io/"}, http: true, why: "client-go stays in its own package"},
		{folder: "instances", why: "counting knows no cluster"},

		{folder: "push/...", ours: []string{"push"}, others: []string{"github.com/gobwas/"}, http: true, why: "transports add net/http to push"},
		{folder: "push", others: []string{"github.com/gobwas/"}, why: "the hub is transport-free"},

		{folder: "egress", why: "what may be dialled: keeper, webhooks and probes share it, it stands alone"},
		{folder: "relay/roomlog", ours: []string{"relay", "room"}, why: "it reads rooms, and knows no engine"},
		{folder: "relay/...", ours: []string{"relay", "lease", "egress"}, others: []string{"*"}, http: true, why: "each sink brings its own client"},
		{folder: "relay", ours: []string{"lease"}, why: "relay knows no SDK"},
		{folder: "keeper/...", ours: []string{"keeper", "relay"}, others: []string{"*"}, http: true, why: "each sink brings its own client"},
		{folder: "keeper", ours: []string{"lease", "egress"}, others: []string{"github.com/gobwas/"}, http: true, why: "keeper knows no engine"},

		{folder: "token", others: []string{"github.com/go-jose/go-jose/"}, why: "token stands alone, on one JOSE library"},
		{folder: "admission", ours: []string{"token"}, http: true, why: "origins import it: it stays small"},

		{folder: "engine/memory/...", ours: append(features(), "engine/memory", "engine/memory/..."), others: []string{"*"}, why: "engines do not know each other, web or cmd"},
		{folder: "engine/memory", ours: append(features(), "engine/memory/..."), others: []string{"*"}, why: "engines do not know each other, web or cmd"},
		{folder: "engine/redis/...", ours: append(features(), "engine/redis", "engine/redis/..."), others: []string{"*"}, why: "engines do not know each other, web or cmd"},
		{folder: "engine/redis", ours: append(features(), "engine/redis/..."), others: []string{"*"}, why: "engines do not know each other, web or cmd"},
		{folder: "engine/dynamodb", ours: features(), others: []string{"*"}, http: true, why: "engines do not know each other, web or cmd; the SDK's transport is net/http's"},

		{folder: "web/...", ours: append(features(), "keeper", "web", "web/...", "admission", "push/..."), others: webClients(), http: true, why: "web reaches engines through interfaces alone"},
		{folder: "web", ours: append(features(), "web/...", "admission", "push/..."), others: webClients(), http: true, why: "web reaches engines through interfaces alone"},

		{folder: "config/internal/...", ours: []string{"config"}, why: "the generator reads the structs alone"},
		{folder: "config", ours: []string{"room"}, others: []string{"go.yaml.in/yaml/"}, why: "config turns a file into values"},

		{folder: "deploy", why: "tests what lies in its folder; nothing to import"},
		{folder: "cmd/...", ours: []string{"*"}, others: []string{"*"}, http: true, why: "cmd puts everything together"},
		{folder: "examples/...", ours: append(features(), "keeper", "keeper/...", "egress", "engine/dynamodb", "gate/gatehttp", "admission", "web", "config", "examples/...", "engine/memory", "engine/redis"), others: []string{"*"}, http: true, why: "examples use public packages, as a reader would"},
		{folder: "internal/...", ours: []string{"*"}, others: []string{"*"}, http: true, why: "helpers of commands and tests"},
	}
}

// suiteClients are what conformance suites may use.
func suiteClients() []string {
	return []string{"github.com/anishathalye/porcupine", "pgregory.net/rapid"}
}

// webClients are the libraries of the HTTP side: sockets, metrics and traces.
func webClients() []string {
	return []string{"github.com/gobwas/", "github.com/prometheus/", "go.opentelemetry.io/otel", "golang.org/x/net/", "golang.org/x/text/", "golang.org/x/time/"}
}

// alsoMachines are files that belong to a machine which one file could not hold.
func alsoMachines() []string {
	return []string{
		"relay/heap.go", "relay/tuning.go",
		"lease/view.go",
		"room/apply.go", "room/command.go", "room/event.go", "room/line.go", "room/mirror.go", "room/opening.go", "room/operate.go", "room/rate.go", "room/ticket.go",
	}
}

// machineImports is all that a machine may import: values, no clock, no I/O.
func machineImports() []string {
	return []string{
		"bytes", "cmp", "container/heap", "container/list", "crypto/hmac", "crypto/sha256", "crypto/subtle",
		"encoding/base32", "encoding/binary", "encoding/hex", "encoding/json", "errors", "fmt", "hash", "hash/fnv", "hash/maphash",
		"iter", "maps", "math", "math/bits", "regexp", "slices", "sort", "strconv", "strings", "time", "unicode", "unicode/utf8",
	}
}
