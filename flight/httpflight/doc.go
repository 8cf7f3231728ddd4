// Package httpflight puts a flight.Group in front of an HTTP handler, usually a reverse proxy: equal GET and HEAD
// requests that are under way at the same time become one request to the origin.
//
//	proxy := httputil.NewSingleHostReverseProxy(origin)
//	http.Handle("/", httpflight.Handler(proxy, httpflight.Options{}))
//
// Transport does the same behind a proxy, for the requests that it sends, so that what the proxy does with each client's
// response stays hers:
//
//	proxy.Transport = httpflight.Transport(proxy.Transport, httpflight.Options{})
//
// It is not a cache. Nobody gets a response to a request that was finished before hers began.
//
// # Which requests are equal
//
// Those whose method, host, path, query (all of it, or chosen parameters), chosen headers and principal are equal.
// A request passes by, as if this handler were not there, when it has another method, a body, Range, Expect or Upgrade,
// or carries Authorization or Cookie while nothing says whose it is (Options.Principal).
//
// # Which responses are shared
//
// All, failures too, except those that say they are somebody's: Cache-Control private or no-store, Set-Cookie, Vary on
// "*" or on a header that is not part of the key, 206, event streams, and what is longer than Options.MaxBody. These
// are not shareable: the request that led gets hers, those who waited are let go at once and ask the origin each for
// herself, within the budget, and for Options.NotShareableFor nobody waits for another on that key.
//
// # What else holds
//
//   - A response is streamed to all who wait as it comes; a slow client delays no other. Who comes before its end gets
//     it from its start.
//   - When the first client goes the fill goes on for the others, and by default also for nobody, for at most
//     Options.Timeout, because the next client is likely to be near.
//   - Timeout runs until the response's header is there. The budget is held until the origin's response has ended.
//   - The shared request carries the first client's headers, but for Options.DropHeaders and IgnoreCookies. A handler
//     behind this one that adds headers which name a client must not do so when Shared(r.Context()) is true.
//   - A request that may change things (POST, PUT, …), once answered, parts the loads of the same host and path (and
//     those that its Location and Content-Location name) from who comes later: she waits for a new one.
//   - While a key's origin fails (5xx, 429) it is asked again on a schedule (Options.Backoff); others get 503 with
//     Retry-After at once.
//
// # In a configuration file
//
// Options are the keys of a "collapse:" section, as usher has it for rooms in proxy mode; all have defaults:
//
//	collapse:
//	  query: [page, sort]              # default: the query as sent
//	  headers: [Accept, Accept-Encoding, Accept-Language, Origin, X-Requested-With]
//	  principal_header: ""             # whose request it is, when it carries Cookie or Authorization
//	  ignore_cookies: [usher-*, __Host-usher-*]
//	  drop_headers: [X-Usher-Ticket-Id, X-Usher-Token]
//	  timeout: 30s                     # for the origin's header
//	  concurrency: 0                   # shared requests at the origin at once; 0: no limit
//	  per_second: 0                    # and a second
//	  burst: 0
//	  max_pending: 1024                # waiting for these two; more get 503 origin_busy
//	  max_waiters: 100000
//	  max_waiters_per_key: 20000
//	  max_body: 1048576                # bytes of one body that are kept while it arrives
//	  max_memory: 268435456            # and of all
//	  slow_client: 10s
//	  on_leave: finish                 # or cancel
//	  not_shareable_for: 10s
//	  backoff: on                      # or off
package httpflight
