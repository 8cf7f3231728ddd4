package config

import (
	"net/netip"
	"time"
)

// Config is a whole configuration file. Use [Load], [Parse] or [Quick] to make
// one: its zero value lacks the defaults.
type Config struct {
	// Where visitors are answered.
	Public Public `yaml:"public"`
	// Where the operator is answered: admin API, service API, metrics, profiles.
	Admin Admin `yaml:"admin"`
	// Access for programs that use the service API.
	Service Service `yaml:"service"`
	// Where state is kept.
	Engine Engine `yaml:"engine"`
	// The keys that sign tickets and admissions.
	Keys Keys `yaml:"keys"`
	// This running usher.
	Node Node `yaml:"node"`
	// Networks whose X-Forwarded-* and original-URL headers are believed, as CIDR. Danger: whoever sits in one of them can pretend to be any visitor.
	TrustedProxies []netip.Prefix `yaml:"trusted_proxies"`
	// What usher itself may reach.
	Egress Egress `yaml:"egress"`
	// The waiting rooms.
	Rooms []Room `yaml:"rooms"`
	// Gates in front of what is proxied: so many requests of one key at once. Read again on SIGHUP.
	Gates []Gate `yaml:"gates"`
	// An external scaler for KEDA, so that a cluster scales by who waits.
	Keda Keda `yaml:"keda"`
	// Routes to the instance that owns a session.
	Routes []Route `yaml:"routes"`
	// The keeper of outbound WebSocket connections. keeper: {} switches it on.
	Keeper Keeper `yaml:"keeper"`
	// Relays of events to other systems. Changes take a restart.
	Relay []Relay `yaml:"relay"`

	src source
}

// Public is the visitors' listener.
type Public struct {
	// Address and port of the visitors' listener. Port 0 takes a free one.
	Listen string `yaml:"listen" default:"127.0.0.1:8080" kind:"listen"`
	// The address visitors see, if a proxy stands in front: scheme, host and, where it is not the usual one, port. Redirects and token issuer are built on it.
	URL string `yaml:"url" example:"https://tickets.example.com"`
	// Certificate and key, to serve https without a proxy in front. Read again on SIGHUP.
	TLS TLS `yaml:"tls"`
}

// Admin is the operator's listener.
type Admin struct {
	// Address and port of the operator's listener. Danger: keep it on loopback or on a private network.
	Listen string `yaml:"listen" default:"127.0.0.1:8081" kind:"listen"`
	// Bearer token of the admin API, or USHER_ADMIN_TOKEN. Empty: made once and kept in the data folder, mode 0600.
	Token Secret `yaml:"token" min:"16"`
	// Certificate and key, to serve https on this listener.
	TLS TLS `yaml:"tls"`
}

// TLS names a certificate and its key. Both or none.
type TLS struct {
	// PEM file with the certificate and its chain.
	Cert string `yaml:"cert" example:"/etc/usher/tls.crt"`
	// PEM file with the private key.
	Key string `yaml:"key" example:"/etc/usher/tls.key"`
}

// On reports whether TLS is configured.
func (t TLS) On() bool { return t.Cert != "" || t.Key != "" }

// Service is access to the service API.
type Service struct {
	// Bearer tokens, or USHER_SERVICE_TOKENS, comma-separated. None: the service API refuses everybody.
	Tokens []Secret `yaml:"tokens" min:"16"`
}

// Engine says where state is kept.
type Engine struct {
	// memory: one node, state in memory behind a durable log on disk. redis: many nodes share one Redis or Valkey, and nothing else.
	Kind string `yaml:"kind" default:"memory" enum:"memory,redis"`
	// The data folder of the memory engine, one process at a time; signing keys are kept there too. With redis only the admin token is, if none is given.
	Dir string `yaml:"dir" default:"./usher-data"`
	// sync: an answered call is on disk. none: state is lost with the process; for tests and demonstrations.
	Durability string `yaml:"durability" default:"sync" enum:"sync,none" only:"memory"`
	// Redis addresses: the one server; some of the Cluster's; or all Sentinels.
	Addrs []string `yaml:"addrs" only:"redis" example:"127.0.0.1:6379"`
	// Redis set-up.
	Mode string `yaml:"mode" default:"single" enum:"single,cluster,sentinel" only:"redis"`
	// Redis ACL user. Empty: the default user.
	Username string `yaml:"username" only:"redis"`
	// Redis password, or USHER_REDIS_PASSWORD.
	Password Secret `yaml:"password" only:"redis"`
	// Speak TLS to Redis. Its certificate is verified.
	TLS bool `yaml:"tls" only:"redis"`
	// PEM file with the authorities that sign the certificates of Redis. Empty: those of the system.
	TLSCA string `yaml:"tls_ca" only:"redis" example:"/etc/usher/redis-ca.crt"`
	// PEM file with usher's own certificate, for a Redis that asks for one.
	TLSCert string `yaml:"tls_cert" only:"redis" example:"/etc/usher/redis.crt"`
	// PEM file with the key of tls_cert.
	TLSKey string `yaml:"tls_key" only:"redis" example:"/etc/usher/redis.key"`
	// Name of the master that Sentinel watches.
	SentinelMaster string `yaml:"sentinel_master" only:"redis" example:"mymaster"`
	// ACL user of the Sentinels, where it is not that of Redis.
	SentinelUsername string `yaml:"sentinel_username" only:"redis"`
	// Password of the Sentinels, or USHER_SENTINEL_PASSWORD.
	SentinelPassword Secret `yaml:"sentinel_password" only:"redis"`
	// How long one attempt to connect to Redis may take.
	DialTimeout time.Duration `yaml:"dial_timeout" default:"5s" min:"100ms" max:"1m" only:"redis"`
	// By how many replicas a change must be known before it is answered, so that the promotion of one of them loses no answer. 0: the master alone answers. Danger: while fewer follow, every call ends in 503.
	WaitReplicas int `yaml:"wait_replicas" default:"0" min:"0" max:"10" only:"redis"`
	// How long nobody is admitted after Redis may have lost what it had answered: it was started again, or a replica was promoted. Visitors whose tickets are lost there come back meanwhile. Danger: too short, the limit is exceeded by those who were inside.
	FailoverPause time.Duration `yaml:"failover_pause" default:"10s" min:"0s" max:"10m" only:"redis"`
}

// Keys says where signing keys come from.
type Keys struct {
	// Folder of the signing keys, or the keys themselves in USHER_KEYS. Empty: the data folder, or, with redis, made there once and shared by all nodes. Danger: then whoever reads that Redis can make tickets and admissions.
	Dir string `yaml:"dir"`
	// The keys themselves; from the environment alone, never from the file.
	Inline Secret `yaml:"-"`
}

// Keda is the external scaler for KEDA, a gRPC server of its own.
type Keda struct {
	// Address and port of the gRPC listener, as scalerAddress in a ScaledObject has it. Empty: off. Danger: whoever reaches it learns how many wait and are inside; nothing else, and nothing can be changed there.
	Listen string `yaml:"listen" kind:"listen" example:":8082"`
	// Certificate and key, to serve TLS on this listener.
	TLS TLS `yaml:"tls"`
}

// Node is this running usher.
type Node struct {
	// Name of this node, unique among those that share state. Empty: host name and a random part.
	ID string `yaml:"id" pattern:"[A-Za-z0-9._-]{0,64}" patternhelp:"up to 64 of A-Z a-z 0-9 . _ -"`
	// How long a graceful stop may take. Set the supervisor's kill timeout above it.
	Drain time.Duration `yaml:"drain" default:"30s" min:"0s" max:"1h"`
}

// Egress bounds what usher itself may dial.
type Egress struct {
	// Private networks that keeper, webhooks and probes may reach, as CIDR. Danger: each opens an internal network to addresses that others configure.
	Allow []netip.Prefix `yaml:"allow"`
}

// Room is one waiting room.
type Room struct {
	// Name of the room, in URLs, cookies and metrics.
	ID string `yaml:"id" required:"true" pattern:"[a-z0-9-]{1,64}" patternhelp:"1 to 64 of a-z 0-9 -" example:"premiere"`
	// What the room protects; the most specific match of all rooms wins.
	Match []Match `yaml:"match"`
	// Proxy mode: the server that admitted visitors reach. Empty: check mode, or API alone.
	Origin string `yaml:"origin" example:"http://127.0.0.1:9000"`
	// Proxy mode: equal GETs and HEADs that are under way at the same time become one request to the origin. collapse: {} switches it on. Of this node alone and not of the room's settings in the engine: changed in the file, and read again on SIGHUP.
	Collapse Collapse `yaml:"collapse"`
	// How many may be inside.
	Capacity Capacity `yaml:"capacity"`
	// How living instances are counted, for capacity.per_instance.
	Instances Instances `yaml:"instances"`
	// What an admitted visitor holds.
	Session Session `yaml:"session"`
	// How the others wait.
	Queue Queue `yaml:"queue"`
	// When the room opens and closes by itself.
	Schedule Schedule `yaml:"schedule"`
	// What visitors get while state cannot be reached. closed: 503 and Retry-After. admitted: those with a valid admission pass. open: everybody passes. Danger: open gives up the limit.
	OnEngineFailure string `yaml:"on_engine_failure" default:"closed" enum:"closed,admitted,open"`
	// Foreign web origins that may call the room's API from a browser.
	CORS []string `yaml:"cors" example:"https://app.example.com"`
	// The waiting page.
	Page Page `yaml:"page"`
	// The room's log of events.
	Log Log `yaml:"log"`
	// Match paths by case. Danger: an origin that does not tell cases apart is then entered by /SALE.
	CaseSensitive bool `yaml:"case_sensitive"`
	// Leave the origin's Cache-Control as it is, instead of making answers private. Danger: a shared cache may hand them to visitors who were not admitted.
	SharedCache bool `yaml:"shared_cache"`
	// The analysis advises to scale up when the expected wait exceeds this.
	TargetWait time.Duration `yaml:"target_wait" default:"30s" min:"1s" max:"24h"`
}

// Collapse says how equal requests to an origin become one.
type Collapse struct {
	// On is set by a section in the file, be it empty.
	On bool `yaml:"-"`

	// Query parameters by which requests differ. Default: the query as it was sent. []: none. Danger: the origin sees the others too, those of the first visitor; name all that it heeds.
	Query []string `yaml:"query" example:"page"`
	// Request headers by which requests differ. A response whose Vary names another is not shared. Default: Accept, Accept-Encoding, Accept-Language, Origin, X-Requested-With.
	Headers []string `yaml:"headers" pattern:"[A-Za-z0-9!#$%&'*+.^_|~-]+" patternhelp:"the name of a header" example:"Accept-Language"`
	// Header that says whose request it is, set in front of usher or by usher (X-Usher-Ticket-Id). What carries Cookie or Authorization is then shared too, among requests with one value of it. Empty: such requests are never shared. Danger: a header that visitors can write lets them read each other's pages.
	PrincipalHeader string `yaml:"principal_header" pattern:"[A-Za-z0-9!#$%&'*+.^_|~-]+" patternhelp:"the name of a header" example:"X-Usher-Ticket-Id"`
	// Cookies, by name or by prefix with a *, that do not make a request somebody's. They are taken out of shared requests. Usher's own never reach an origin. Default: usher-*, __Host-usher-*.
	IgnoreCookies []string `yaml:"ignore_cookies" pattern:"[A-Za-z0-9!#$%&'+.^_|~-]+[*]?" patternhelp:"the name of a cookie, or the beginning of one and *" example:"_ga*"`
	// Headers taken out of shared requests, since they name the first visitor alone. Default: X-Usher-Ticket-Id, X-Usher-Token. []: none, for an origin that verifies the token; it sees the first visitor's.
	DropHeaders []string `yaml:"drop_headers" pattern:"[A-Za-z0-9!#$%&'*+.^_|~-]+" patternhelp:"the name of a header" example:"X-Usher-Token"`
	// How long the origin may take until the headers of a shared response.
	Timeout time.Duration `yaml:"timeout" default:"30s" min:"10ms" max:"1h"`
	// Most shared requests at the origin at once, of this node; others wait. 0: no limit.
	Concurrency int `yaml:"concurrency" min:"0" max:"1000000"`
	// Most shared requests to the origin a second, of this node; others wait. 0: no limit.
	PerSecond int `yaml:"per_second" min:"0" max:"1000000"`
	// How many of per_second may go at once. 0: a tenth of it.
	Burst int `yaml:"burst" min:"0" max:"1000000"`
	// Most requests that wait for these limits; beyond it 503 origin_busy.
	MaxPending int `yaml:"max_pending" default:"1024" min:"1" max:"1000000"`
	// Most visitors who wait for shared responses; beyond it 503 origin_busy.
	MaxWaiters int `yaml:"max_waiters" default:"100000" min:"1" max:"10000000"`
	// Most visitors who wait for one response.
	MaxWaitersPerKey int `yaml:"max_waiters_per_key" default:"20000" min:"1" max:"10000000"`
	// Longest body that is kept for those who come while it arrives; a longer one is shared only by those who were there first.
	MaxBody Size `yaml:"max_body" default:"1MiB" min:"1KiB" max:"1GiB"`
	// Most memory for such bodies, of the room.
	MaxMemory Size `yaml:"max_memory" default:"256MiB" min:"1MiB" max:"1TiB"`
	// How long a visitor may hold up the others of a long body before she is cut off.
	SlowClient time.Duration `yaml:"slow_client" default:"10s" min:"10ms" max:"1h"`
	// What becomes of a request that all visitors have left. finish: it goes on, since the next is near. cancel: it is cancelled.
	OnLeave string `yaml:"on_leave" default:"finish" enum:"finish,cancel"`
	// How long requests of one key go each by itself after a response that could not be shared.
	NotShareableFor time.Duration `yaml:"not_shareable_for" default:"10s" min:"1ms" max:"1h"`
	// on: an address that fails (5xx, 429, no answer) is asked again after 100ms, doubling to 2s, or as its Retry-After says; others get 503 origin_failing. off: each is sent on.
	Backoff string `yaml:"backoff" default:"on" enum:"on,off"`
}

// Match is a host and a path with all below it.
type Match struct {
	// Host name without scheme and port. Empty: every host.
	Host string `yaml:"host" example:"tickets.example.com"`
	// The path and all below it.
	Path string `yaml:"path" default:"/" example:"/premiere"`
}

// Capacity is how many may be inside.
type Capacity struct {
	// Most sessions at one moment, exact. 0: bounded by per_instance or rate_per_minute alone.
	Active int `yaml:"active" min:"0" max:"100000000" example:"600"`
	// With it, the limit is the lesser of active and per_instance times the living instances. 0: off.
	PerInstance int `yaml:"per_instance" min:"0" max:"100000000"`
	// Most admissions in any 60 seconds. 0: no such limit.
	RatePerMinute int `yaml:"rate_per_minute" min:"0" max:"10000000"`
}

// Instances says how the living instances of what a room protects are counted.
type Instances struct {
	// nodes: running ushers. static: always fallback. kubernetes: ready pods.
	Source string `yaml:"source" default:"nodes" enum:"nodes,kubernetes,static"`
	// Label selector of the pods.
	Selector string `yaml:"selector" only:"kubernetes" example:"app=shop"`
	// Namespace of the pods. Empty: usher's own.
	Namespace string `yaml:"namespace" only:"kubernetes" pattern:"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?" patternhelp:"1 to 63 of a-z 0-9 -, as kubectl get namespaces lists them" example:"shop"`
	// The count while the source has not answered for 60 s; with source static, the count.
	Fallback int `yaml:"fallback" default:"2" min:"0" max:"100000"`
}

// Session is what an admitted visitor holds.
type Session struct {
	// Ends a session without a request for so long.
	Idle time.Duration `yaml:"idle" default:"5m" min:"1s" max:"24h"`
	// Ends every session after so long.
	Max time.Duration `yaml:"max" default:"30m" min:"1s" max:"168h"`
	// Ends an admission that nobody used for so long. 0: off.
	Claim time.Duration `yaml:"claim" default:"60s" min:"0s" max:"24h"`
	// Keep a slot until the admission token can no longer be used anywhere (its expiry and 60 s of leeway), for origins that verify offline.
	Hold bool `yaml:"hold"`
}

// Queue is how visitors wait.
type Queue struct {
	// fifo: first come, first served. random: drawn at each admission. passthrough: nobody waits, all are counted (the limit is not kept). reject: nobody waits, 429 when full.
	Order string `yaml:"order" default:"fifo" enum:"fifo,random,passthrough,reject"`
	// A waiter who is not heard from for so long is abandoned. Danger: browsers wake hidden tabs only once a minute.
	Grace time.Duration `yaml:"grace" default:"5m" min:"1s" max:"24h"`
	// Most waiters; beyond it 429 room_full.
	MaxWaiting int `yaml:"max_waiting" default:"1000000" min:"1" max:"10000000"`
}

// Schedule is when the room opens and closes by itself.
type Schedule struct {
	// When admissions start, RFC 3339. Empty: at once.
	OpensAt time.Time `yaml:"opens_at" example:"2030-06-01T10:00:00+09:00"`
	// Who arrives so long before opens_at is put in random order at the opening; whoever comes before that is told to come later.
	Prequeue time.Duration `yaml:"prequeue" default:"15m" min:"0s" max:"168h"`
	// When new visitors are refused, RFC 3339; those who wait are still admitted. Empty: never.
	ClosesAt time.Time `yaml:"closes_at" example:"2030-06-01T22:00:00+09:00"`
}

// Page is the waiting page.
type Page struct {
	// Folder with the operator's texts, colours, logo or whole template. Empty: the built-in page.
	Dir string `yaml:"dir"`
}

// Log is the room's log of events.
type Log struct {
	// How long events are kept.
	Retain time.Duration `yaml:"retain" default:"24h" min:"1m" max:"8760h"`
	// Most bytes kept; the oldest events go first.
	MaxBytes Size `yaml:"max_bytes" default:"1GiB" min:"1MiB" max:"1TiB"`
}

// Gate bounds how many requests of one key are at the origin at once.
type Gate struct {
	// Name of the gate. It is part of its keys: nodes that share an engine count gates of one name together.
	ID string `yaml:"id" required:"true" pattern:"[a-z0-9-]{1,64}" patternhelp:"1 to 64 of a-z 0-9 -" example:"checkout"`
	// Where the gate stands. A request that matches several gates needs a permit of each, in the order of the file.
	Match []GateMatch `yaml:"match"`
	// Which requests count together: all, or those of one ip (an IPv6 /64 is one), path, header:NAME, cookie:NAME or query:NAME. Those without that header, cookie or parameter count as one. Danger: visitors choose what their headers, cookies and queries say.
	Key string `yaml:"key" default:"all" pattern:"all|ip|path|(header|cookie|query):[A-Za-z0-9!#$%&'*+.^_|~-]+" patternhelp:"all, ip, path, header:NAME, cookie:NAME or query:NAME" example:"header:X-Account"`
	// Most requests of one key at once, over all nodes. A change counts from zero: requests that run under the old number do not count against the new one.
	Permits int `yaml:"permits" min:"1" max:"1000000" required:"true" example:"20"`
	// How long a request waits for its turn before it is answered 429. 0: not at all.
	Wait time.Duration `yaml:"wait" default:"100ms" min:"0s" max:"1m"`
	// Most requests that wait for one key on one node; beyond it 429 at once.
	MaxWaiting int `yaml:"max_waiting" default:"1000" min:"1" max:"1000000"`
	// How long the requests of a crashed node count on. A request that runs is not ended by it.
	Lease time.Duration `yaml:"lease" default:"30s" min:"1s" max:"1h"`
	// While state cannot be reached. closed: 503. open: nothing is limited. Danger: open gives up the limit.
	OnEngineFailure string `yaml:"on_engine_failure" default:"closed" enum:"closed,open"`
}

// GateMatch is a host, a path with all below it, and methods.
type GateMatch struct {
	// Host name without scheme and port. Empty: every host.
	Host string `yaml:"host" example:"tickets.example.com"`
	// The path and all below it, in any case.
	Path string `yaml:"path" default:"/" example:"/checkout"`
	// Methods that count, in capitals. None: all.
	Methods []string `yaml:"methods" pattern:"[A-Z][A-Z-]{0,31}" patternhelp:"methods in capitals, as POST" example:"POST"`
}

// Route brings requests to the instance that has their session.
type Route struct {
	// Name of the route, in logs.
	ID string `yaml:"id" required:"true" pattern:"[a-z0-9-]{1,64}" patternhelp:"1 to 64 of a-z 0-9 -" example:"browsers"`
	// What the route serves; the longest path wins. Danger: a path that a room also matches is the route's, and nobody waits there.
	Match []Match `yaml:"match"`
	// Name that the instances have in common in the directory. Empty: the id.
	Space string `yaml:"space" pattern:"[A-Za-z0-9_.-]{0,64}" patternhelp:"up to 64 of A-Z a-z 0-9 _ . -"`
	// Where requests have their session's key. One of its keys at least; the first that a request has counts.
	Key RouteKey `yaml:"key"`
	// Instances that do not announce themselves by the service API.
	Instances []RouteInstance `yaml:"instances"`
	// How an instance's death is noticed.
	Health RouteHealth `yaml:"health"`
	// Most sessions of an instance that announces no limit of its own. 0: no limit.
	MaxSessions int `yaml:"max_sessions" min:"0" max:"1000000"`
	// Largest body that is kept to be sent a second time, and in which a key is looked for.
	MaxReplay Size `yaml:"max_replay" default:"64KiB" min:"1KiB" max:"16MiB"`
	// Shared with the instances, which see by it that a request comes from a gateway. Danger: empty, whoever reaches an instance can pretend to be one.
	Secret Secret `yaml:"secret" min:"16"`
}

// RouteKey says where a session's key is.
type RouteKey struct {
	// Name of a header.
	Header string `yaml:"header" example:"X-Account"`
	// Name of a cookie.
	Cookie string `yaml:"cookie" example:"account"`
	// Path with one segment {key}, and all below it.
	Path string `yaml:"path" example:"/accounts/{key}"`
	// Name of a query parameter.
	Query string `yaml:"query" example:"account"`
	// Field of a JSON body, nested by dots.
	JSON string `yaml:"json" example:"user.account"`
}

// RouteInstance is an instance that does not announce itself.
type RouteInstance struct {
	// The name that it claims by.
	ID string `yaml:"id" required:"true" pattern:"[A-Za-z0-9_.:-]{1,128}" patternhelp:"1 to 128 of A-Z a-z 0-9 _ . : -" example:"b-1"`
	// Its address.
	Addr string `yaml:"addr" required:"true" example:"http://10.0.0.7:3000"`
	// Most sessions. 0: the route's max_sessions.
	MaxSessions int `yaml:"max_sessions" min:"0" max:"1000000"`
}

// RouteHealth says how death is noticed.
type RouteHealth struct {
	// Path of the probe. It must not wait for sessions.
	Path string `yaml:"path" default:"/health/live"`
	// Between two probes.
	Every time.Duration `yaml:"every" default:"1s" min:"100ms" max:"1m"`
	// How long a probe may take.
	Timeout time.Duration `yaml:"timeout" default:"1s" min:"50ms" max:"1m"`
	// An instance that answered no probe for so long is dead; one that refuses connections is at once. Danger: too short, a pause of a busy instance costs its sessions.
	FailAfter time.Duration `yaml:"fail_after" default:"5s" min:"500ms" max:"10m"`
}
