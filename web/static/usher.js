/*! usher.js, Apache-2.0; docs/push.md says all. usher.join(room, options).on(type, f) */
(function (root) {
'use strict';
const d = document, nav = navigator, now = Date.now;
const FIRST = 5000, TRIES = 3, CAP = 3e4; // to connect; then one rung down; of the backoff
const rand = (a, b) => a + Math.random() * (b - a);
const keep = (k, v) => { try { return v ? sessionStorage.setItem(k, v) : sessionStorage.getItem(k); } catch { } };
const later = (t, f, ms) => { clearTimeout(t); return setTimeout(f, ms); };
const fields = (text) => {
	const f = {};
	for (const l of text.split('\n')) { const k = l.indexOf(':'); f[l.slice(0, k)] = l.slice(k + 1).trim(); }
	return f;
};
// A rung(o, h) → {close, hide, ping?} calls h.up, h.byte (a sign of life), h.msg(body, cursor), h.down(why).

function ws(o, h) {
	const sock = new WebSocket(o.url.replace(/^http/, 'ws') + o.api + '/stomp', ['v12.stomp']);
	let buf = '', me = '';
	const send = (s) => sock.send(s + '\n\n\0');
	const sub = (topic, of, more) => send('SUBSCRIBE\nid:' + topic[0] + '\ndestination:/topic/' + topic + '/' + of + (more || ''));
	const rank = (hidden) => sub('rank', me, hidden && '\nhidden:1');
	sock.onopen = () => send('CONNECT\naccept-version:1.2\nheart-beat:0,20000\nhost:' + location.host + '\nroom:' + o.room +
		(o.ticket && '\nticket:' + o.ticket) + (h.cursor() && '\nafter:' + h.cursor()));
	sock.onmessage = (e) => {
		h.byte();
		buf += e.data;
		for (let i; (i = buf.indexOf('\0')) >= 0;) {
			const f = buf.slice(0, i).trimStart(), k = f.indexOf('\n\n'), head = fields(f.slice(0, k));
			buf = buf.slice(i + 1);
			if (/^CONNECTED/.test(f)) {
				me = head['ticket-id'];
				h.window(+head['reconnect-window']);
				h.up();
				sub('admission', me);
				sub('timeout', me);
				rank(d.hidden);
				sub('stats', o.room);
			} else if (/^MESSAGE/.test(f)) {
				h.msg(JSON.parse(f.slice(k)), head.cursor);
			}
		}
		buf = buf.trimStart();
	};
	sock.onclose = (e) => h.down({code: e.code, after: +(/retry=(\d+)/.exec(e.reason) || [])[1] || 0});
	sock.onerror = () => h.down({});
	return {
		close() { sock.onmessage = sock.onclose = sock.onerror = null; sock.close(); },
		hide(on) { if (me) { send('UNSUBSCRIBE\nid:r'); rank(on); } },
		ping() { if (me) send('ACK\nid:0\nreceipt:p'); },
	};
}

const get = (o, path, signal) => fetch(o.url + o.api + '/rooms/' + o.room + path, {
	headers: o.ticket ? {'Usher-Ticket': o.ticket} : {}, credentials: 'include', cache: 'no-store', signal,
});

const fetched = (path, loop) => (o, h) => {
	const c = new AbortController();
	let hid = false;
	const ask = async () => {
		hid = d.hidden;
		const r = await get(o, path + '?after=' + h.cursor() + (hid ? '&hidden=1' : ''), c.signal);
		if (r.ok) return r;
		h.down({status: r.status, after: 1000 * r.headers.get('Retry-After')});
		throw r;
	};
	loop(h, ask).catch(() => h.down({}));
	return {close() { c.abort(); }, hide(on) { if (hid && !on) h.redo(); }};
};

const sse = fetched('/events', async (h, ask) => {
	const read = (await ask()).body.getReader(), text = new TextDecoder();
	let buf = '', retry = 0, said = false;
	for (;;) {
		const part = await read.read();
		if (part.done) return h.down({after: retry});
		h.byte();
		buf += text.decode(part.value, {stream: true});
		for (let i; (i = buf.indexOf('\n\n')) >= 0;) {
			const f = fields(buf.slice(0, i));
			buf = buf.slice(i + 2);
			if (f.retry) { if (said) retry = +f.retry; else h.window(+f.retry); }
			if (f.data && !f.event) {
				said = true;
				h.up();
				h.msg(JSON.parse(f.data), f.id);
			}
		}
	}
});

const poll = fetched('/poll', async (h, ask) => {
	for (;;) {
		const b = await (await ask()).json();
		h.byte();
		h.up();
		b.messages.forEach((m) => h.msg(m));
		h.msg(0, b.cursor);
		if (b.next_poll_ms) return h.down({after: b.next_poll_ms});
	}
});

const RUNGS = {ws, sse, poll};

function climb(o, tell) {
	const key = 'usher:rung:' + o.room, ears = new AbortController();
	let rung = Math.max(0, o.from.indexOf(keep(key))), conn = null, cursor = '', fails = 0, win = 2000, closed = false;
	let last = 0, tick = now(), mute, linked, timer, probing, steady;
	const link = (state) => { if (linked !== state) tell({type: 'link', state: linked = state}); };

	// A probe leaves the present connection alone until it works.
	function open(n, probe) {
		let c = null, live = false, dead = false, slot = 0, guard = setTimeout(() => down({}), o.from[n] === 'poll' ? o.quiet : FIRST);
		const down = (why) => {
			if (dead) return;
			dead = true;
			clearTimeout(guard);
			if (c) c.close();
			if (probe && !live) return climbOn();
			if (conn === c) { conn = null; lost(why, live, slot); }
		};
		const h = {
			down,
			cursor: () => cursor,
			window(ms) { win = Math.min(Math.max(ms, 500), 12e4); },
			byte() {
				last = now();
				mute = false;
				guard = later(guard, () => down({}), o.quiet);
				if (live) link('ok');
			},
			up() {
				if (live) return;
				live = true;
				if (conn && conn !== c) conn.close();
				conn = c;
				rung = n;
				keep(key, o.from[n]);
				steady = later(steady, () => fails = 0, 6e4);
				tell({type: 'transport', name: o.from[n]});
				link('ok');
				climbOn();
			},
			msg(b, at) {
				if (conn !== c) return;
				if (at) cursor = at;
				if (b && b.type === 'RECONNECT_SOON') slot = b.after_ms;
				else if (b) tell(b);
			},
			redo() { if (conn === c) redo(); },
		};
		try { c = RUNGS[o.from[n]](o, h); } catch { }
		if (!probe) conn = c;
		if (!c) down({});
	}

	async function lost(why, live, slot) {
		[probing, steady].forEach(clearTimeout);
		fails++;
		if (why.code >= 4500 || why.code === 1008 || [401, 404, 410].includes(why.status)) { // ended? the status says
			const r = await get(o, '/status').catch(() => 0), type = {410: 'timeout', 401: 'lost', 404: 'lost'}[r.status];
			const b = type && await r.json().catch(() => ({}));
			if (closed) return;
			if (b) return tell({type, reason: b.reason || b.code});
		}
		if (!slot) link(nav.onLine === false ? 'offline' : why.status > 428 ? 'away' : 'trouble');
		if (fails >= TRIES && rung < o.from.length - 1) { rung++; fails = 0; return again(rand(0, 1000)); }
		// In the server's slot; else anywhere in its window, then full jitter on top.
		again((slot || why.after || (live ? rand(0, win) : 0)) + (fails > 1 || !live ? rand(0, Math.min(CAP, 1000 * 2 ** fails)) : 0));
	}

	function drop() {
		if (conn) conn.close();
		conn = null;
		clearTimeout(timer);
	}
	function again(ms) { if (!closed) timer = later(timer, () => { if (!conn && !closed) open(rung); }, ms); }
	function redo() { drop(); again(0); }

	// probes the rung above
	function climbOn() {
		if (!closed && rung > 0) probing = later(probing, () => { if (conn && !closed) open(rung - 1, true); }, rand(...o.probe));
	}

	// The machine slept, or somebody looks: is it still alive?
	function wake() {
		if (!conn) return again(rand(0, 500));
		const c = conn;
		if (!c.ping) return linked !== 'ok' || now() - last > o.quiet ? redo() : 0;
		mute = true;
		c.ping();
		setTimeout(() => { if (conn === c && mute) redo(); }, 3000);
	}
	const watch = setInterval(() => {
		const gap = now() - tick;
		tick = now();
		if (gap > (d.hidden ? 9e4 : 10000)) wake();
	}, 5000);
	d.addEventListener('visibilitychange', () => { if (conn) conn.hide(d.hidden); if (!d.hidden) wake(); }, ears);
	addEventListener('online', wake, ears);
	addEventListener('offline', () => link('offline'), ears);

	open(rung);
	return {
		stop() {
			closed = true;
			drop();
			[probing, steady].forEach(clearTimeout);
			clearInterval(watch);
			ears.abort();
		},
	};
}

function join(room, options) {
	const o = {api: '/v1', ticket: '', from: ['ws', 'sse', 'poll'], share: true, url: location.origin, probe: [6e4, 12e4], quiet: 35e3, ...options, room};
	const fs = {}, seen = {}, ears = new AbortController(); // seen: the newest of each type, for those who come later
	const name = 'usher:' + o.url + o.api + ':' + room + ':' + o.ticket.slice(-16), locks = o.share && root.BroadcastChannel && nav.locks;
	let closed, climber, release, bus, give, queued, wait;
	const say = (x) => { if (bus) bus.postMessage(x); };
	const emit = (m) => {
		if (closed || m.type === 'admission' && seen.admission) return;
		seen[m.type] = m;
		for (const t of [m.type, '*']) for (const f of fs[t] || []) f(m);
		if (/timeout|lost/.test(m.type)) close();
	};
	const lead = () => { climber = climb(o, (m) => { if (!closed) { say({m}); emit(m); } }); };

	// Who holds the lock leads. It is taken from a leader that is hidden, or asleep.
	const take = (how) => {
		const mine = give;
		locks.request(name, how, () => {
			if (how.signal) queued = false;
			if (give === mine && bus && !climber) return new Promise((done) => { release = done; lead(); });
		}).catch(() => {
			if (!bus || give !== mine) return;
			if (climber) climber.stop();
			climber = null;
			queue();
		});
	};
	const queue = () => { if (!queued) { queued = true; take({signal: give.signal}); } };
	const patience = (led) => {
		clearTimeout(wait);
		if (!led) wait = setTimeout(() => { if (bus && !climber && !d.hidden) take({steal: true}); }, 3000);
	};
	const look = () => {
		if (climber) return say({led: !d.hidden});
		if (!d.hidden) { patience(); say({hello: 1}); }
	};
	function start() {
		if (!locks) return lead();
		give = new AbortController();
		bus = new BroadcastChannel(name);
		bus.onmessage = ({data: e}) => {
			if (climber && e.hello) { for (const t in seen) say({m: seen[t]}); look(); }
			if (climber) return;
			if (e.m) emit(e.m);
			if ('led' in e) patience(e.led);
		};
		queue();
		look();
	}
	function quit() {
		if (bus) { bus.close(); give.abort(); }
		bus = null;
		queued = false;
		clearTimeout(wait);
		if (climber) climber.stop();
		climber = null;
		if (release) release();
	}
	function close() {
		closed = true;
		quit();
		ears.abort();
	}
	addEventListener('pagehide', quit, ears); // else no bfcache
	addEventListener('pageshow', (e) => { if (e.persisted) start(); }, ears);
	if (locks) d.addEventListener('visibilitychange', look, ears);
	start();
	return {
		on(type, f) { (fs[type] = fs[type] || []).push(f); if (seen[type]) f(seen[type]); return this; },
		get leads() { return !!climber; },
		close,
	};
}

root.usher = {join};
})(self);
