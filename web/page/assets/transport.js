// How news of the ticket arrives: server-sent events where they work, and polling below them always. This is the one
// part that talks to the network, and the seam at which another transport can be put in: it calls
//   on.status(body)  a whole status document
//   on.event(body)   one message with a "type" (admission, rank, timeout, stats)
//   on.ended(reason) the ticket ended;  on.lost() the server does not know us;  on.gone() there is no such room
//   on.link(kind)    "ok", "trouble" (network), "away" (the server answers that it cannot), "offline"
// and offers start, stop, wake, enter, leave, now. After ended, lost or gone it has stopped by itself.
//
// The stream is read with fetch, not with EventSource: only so can its comments be seen as signs of life, and only so
// does a refusal not end it for ever.
const QUIET_MS = 35000;
const FIRST_BYTE_MS = 5000;
const CALL_MS = 10000;
const STREAM_WINDOW_MS = 10000;
const STREAM_TRIES = 3;
const STREAM_SLOTS = 2;
const MAX_BUFFER = 262144;

function rand(low, high) { return low + Math.random() * (high - low); }

// Full jitter: anything up to the doubled step, capped at a minute.
function backoff(fails) { return rand(250, Math.min(60000, 1000 * Math.pow(2, fails))); }

// Over HTTP/1 a browser opens six connections to a host, all tabs together: six streams, and the seventh tab does not
// even load. So there the tabs of one browser share two slots, and those without one poll. takeSlot resolves with a
// function that gives the slot back, or with null. Where tabs cannot agree (plain http: no locks) hidden ones do without.
async function takeSlot() {
  const nav = performance.getEntriesByType('navigation')[0];
  const free = function () {};
  if (!nav || !/^http\/1/.test(nav.nextHopProtocol)) return free;
  if (!navigator.locks) return document.hidden ? null : free;
  for (let n = 0; n < STREAM_SLOTS; n++) {
    const release = await new Promise(function (resolve) {
      navigator.locks.request('usher-stream-' + n, {ifAvailable: true}, function (lock) {
        if (!lock) return resolve(null);
        return new Promise(function (done) { resolve(done); });
      }).catch(function () { resolve(free); });
    });
    if (release) return release;
  }
  return null;
}

function createTransport(opt, on) {
  const base = opt.api + '/rooms/' + encodeURIComponent(opt.room);
  let running = false;
  let pollAfter = opt.poll;
  let presenceAfter = opt.presence;
  let fails = 0;
  let polling = null;
  let pollTimer = 0;
  let pingTimer = 0;
  let streamTimer = 0;
  let ticker = 0;
  let stream = null;
  let streamFails = 0;
  let lastByte = 0;

  // call resolves with {status, body, retryMs}; status 0 is a network that failed.
  async function call(method, path, body, control) {
    const c = control || new AbortController();
    const timer = setTimeout(function () { c.abort(); }, CALL_MS);
    try {
      const init = {method: method, headers: {Accept: 'application/json'}, credentials: 'same-origin', cache: 'no-store', redirect: 'error', signal: c.signal};
      if (body !== undefined) {
        init.headers['Content-Type'] = 'application/json';
        init.body = JSON.stringify(body);
      }
      const r = await fetch(base + path, init);
      let doc = null;
      if (r.status !== 204) {
        try { doc = await r.json(); } catch (e) { doc = null; }
      }
      if (r.ok && r.status !== 204 && (doc === null || typeof doc !== 'object')) return {status: 0, body: {}, retryMs: 0};
      const after = parseInt(r.headers.get('Retry-After') || '0', 10);
      return {status: r.status, body: doc || {}, retryMs: after > 0 ? Math.min(after, 600) * 1000 : 0};
    } catch (e) {
      return {status: 0, body: {}, retryMs: 0};
    } finally {
      clearTimeout(timer);
    }
  }

  function plan(ms) {
    clearTimeout(pollTimer);
    if (running) pollTimer = setTimeout(poll, ms);
  }

  async function poll() {
    if (!running || polling) return;
    const mine = polling = new AbortController();
    const r = await call('GET', '/status', undefined, mine);
    if (polling !== mine) return;
    polling = null;
    if (!running) return;
    if (r.status === 200) {
      fails = 0;
      heard();
      if (r.body.poll_after_ms > 0) pollAfter = Math.min(Math.max(r.body.poll_after_ms, 500), 60000);
      if (r.body.presence_after_ms > 0) presenceAfter = Math.max(r.body.presence_after_ms, 1000);
      on.link('ok');
      on.status(r.body);
      plan(next());
    } else if (r.status === 401) {
      stop();
      on.lost();
    } else if (r.status === 404) {
      stop();
      on.gone();
    } else if (r.status === 410) {
      stop();
      on.ended(r.body.reason || r.body.state || '');
    } else {
      fails++;
      on.link(navigator.onLine === false ? 'offline' : r.status === 0 ? 'trouble' : 'away');
      // The server's word is a floor: stretch it, never shorten it.
      plan(r.retryMs * rand(1, 1.3) + backoff(fails));
    }
  }

  // While the stream lives, polling is only the net below it.
  function next() { return stream && stream.live ? rand(60000, 90000) : pollAfter * rand(0.9, 1.1); }

  function heard() {
    clearTimeout(pingTimer);
    if (running) pingTimer = setTimeout(ping, presenceAfter * rand(0.9, 1));
  }

  async function ping() {
    const r = await call('POST', '/presence');
    if (!running) return;
    heard();
    if (r.status === 401 || r.status === 404 || r.status === 410) wake(0); // status says what happened
  }

  async function openStream() {
    clearTimeout(streamTimer);
    if (!running || stream) return;
    const c = new AbortController();
    const s = stream = {live: false, abort: function () { c.abort(); }, window: STREAM_WINDOW_MS, slot: -1};
    const release = await takeSlot();
    if (!release || stream !== s) {
      if (release) release();
      if (stream !== s) return;
      stream = null;
      if (running) streamTimer = setTimeout(openStream, rand(20000, 40000));
      return;
    }
    let quiet = setTimeout(s.abort, FIRST_BYTE_MS);
    const opened = Date.now();
    let refused = 0;
    let buf = '';
    try {
      const r = await fetch(base + '/events', {headers: {Accept: 'text/event-stream'}, credentials: 'same-origin', cache: 'no-store', redirect: 'error', signal: c.signal});
      const kind = r.headers.get('Content-Type') || '';
      if (!r.ok || !r.body || kind.indexOf('text/event-stream') !== 0) {
        refused = r.status;
        c.abort();
        throw new Error('no stream');
      }
      const reader = r.body.getReader();
      const decoder = new TextDecoder();
      for (;;) {
        const part = await reader.read();
        if (part.done || stream !== s) break;
        lastByte = Date.now();
        clearTimeout(quiet);
        quiet = setTimeout(s.abort, QUIET_MS);
        if (!s.live) {
          s.live = true;
          on.link('ok');
          plan(next());
        }
        buf = feed(buf + decoder.decode(part.value, {stream: true}), s);
        if (buf.length > MAX_BUFFER) break;
      }
    } catch (e) {
      // A broken stream is nothing that a visitor must hear of: polling goes on.
    }
    clearTimeout(quiet);
    c.abort();
    release();
    if (stream !== s) return;
    stream = null;
    if (!running) return;
    if (refused === 401 || refused === 404 || refused === 410) return wake(0);
    streamFails = s.live && Date.now() - opened > 10000 ? 0 : streamFails + 1;
    if (s.live) plan(pollAfter * rand(0.2, 1));
    let wait = s.slot >= 0 ? s.slot : rand(0, s.window) + (streamFails > 1 ? backoff(streamFails) : 0);
    if (s.slot < 0 && streamFails >= STREAM_TRIES) wait = rand(60000, 120000); // poll, and probe upward now and then
    streamTimer = setTimeout(openStream, wait);
  }

  // feed takes whole blocks off the front of s and returns the rest.
  function feed(s, st) {
    for (;;) {
      const m = /\r\n\r\n|\n\n|\r\r/.exec(s);
      if (!m) return s;
      const block = s.slice(0, m.index);
      s = s.slice(m.index + m[0].length);
      const data = [];
      block.split(/\r\n|\n|\r/).forEach(function (line) {
        const i = line.indexOf(':');
        const field = i < 0 ? line : line.slice(0, i);
        const value = i < 0 ? '' : line.slice(i + 1).replace(/^ /, '');
        if (field === 'data') data.push(value);
        if (field === 'retry' && /^\d{1,7}$/.test(value)) {
          // At the end of a stream it is our own slot to come back in; before that, the window to spread over.
          st.window = Number(value);
          st.slot = Number(value);
        }
      });
      if (data.length === 0) continue;
      let doc = null;
      try { doc = JSON.parse(data.join('\n')); } catch (e) { continue; }
      if (!doc || typeof doc !== 'object') continue;
      st.slot = -1;
      if (doc.type === 'RECONNECT_SOON') {
        if (doc.after_ms >= 0) st.slot = Number(doc.after_ms);
        continue;
      }
      if (running) on.event(doc);
    }
  }

  function start() {
    if (running) return wake(0);
    running = true;
    fails = streamFails = 0;
    heard();
    plan(opt.fresh ? rand(0.3, 1) * pollAfter : 0);
    opt.fresh = false;
    openStream();
    let last = Date.now();
    ticker = setInterval(function () {
      // Timers that did not run for a while: the machine slept. A hidden tab's run once a minute, which is no sleep.
      const gap = Date.now() - last;
      last = Date.now();
      if (gap > (document.hidden ? 90000 : 15000)) wake(500);
    }, 5000);
  }

  function stop() {
    running = false;
    clearTimeout(pollTimer);
    clearTimeout(pingTimer);
    clearTimeout(streamTimer);
    clearInterval(ticker);
    const p = polling;
    const s = stream;
    polling = stream = null;
    if (p) p.abort();
    if (s) s.abort();
  }

  // wake asks at once, or within spread, whatever was planned: after sleep, when the tab is looked at, back online.
  function wake(spread) {
    if (!running) return;
    const p = polling;
    polling = null;
    if (p) p.abort();
    plan(rand(0, spread));
    if (stream && Date.now() - lastByte > QUIET_MS) {
      const s = stream;
      stream = null;
      s.abort();
    }
    if (!stream && streamFails < STREAM_TRIES) {
      clearTimeout(streamTimer);
      streamTimer = setTimeout(openStream, rand(0, spread + 1000));
    }
  }

  return {
    start: start,
    stop: stop,
    wake: wake,
    enter: function (id) { return call('POST', '/enter', {request_id: id}); },
    leave: function () { return call('POST', '/leave'); },
    now: function () { return call('GET', '/now'); },
  };
}
