/*! usher.js, Apache-2.0; docs/push.md says all. usher.join(room, options).on(type, f) */
(function (root) {
	'use strict';
	const d = document;
	const FIRST = 5000, TRIES = 3, CAP = 30000; // to connect; then one rung down; of the backoff
	const rand = (a, b) => a + Math.random() * (b - a);
	const keep = (k, v) => { try { return v ? sessionStorage.setItem(k, v) : sessionStorage.getItem(k); } catch (e) { } };
	// A rung(o, h) → {close, hide?, ping?} calls h.up once, h.byte for signs of life, h.msg(body, cursor), h.down(why) at its end.

	function ws(o, h) {
		const sock = new WebSocket(o.url.replace(/^http/, 'ws') + o.api + '/stomp', ['v12.stomp']);
		let buf = '', me = null, over = false;
		const send = (s) => { try { sock.send(s); } catch (e) { end({}); } };
		const sub = (id, dest, more) => send('SUBSCRIBE\nid:' + id + '\ndestination:/topic/' + dest + '\n' + (more || '') + '\n\0');
		const close = () => { over = true; sock.onmessage = sock.onclose = sock.onerror = null; sock.close(); };
		const end = (why) => { if (!over) { close(); h.down(why); } };
		const rank = (hidden) => sub('r', 'rank/' + me['ticket-id'], hidden ? 'hidden:1\n' : '');
		sock.onopen = () => send('CONNECT\naccept-version:1.2\nheart-beat:0,20000\nhost:' + location.host + '\nroom:' + o.room +
			(o.ticket ? '\nticket:' + o.ticket : '') + (h.cursor() ? '\nafter:' + h.cursor() : '') + '\n\n\0');
		sock.onmessage = (e) => {
			h.byte();
			buf += e.data;
			for (let i; !over && (i = buf.indexOf('\0')) >= 0;) {
				const f = buf.slice(0, i).replace(/^[\r\n]+/, '');
				buf = buf.slice(i + 1);
				const k = f.indexOf('\n\n'), lines = f.slice(0, k).split('\n'), head = {};
				for (const l of lines) { const c = l.indexOf(':'); head[l.slice(0, c)] = l.slice(c + 1); }
				if (lines[0] === 'CONNECTED') {
					me = head;
					h.window(+head['reconnect-window']);
					h.up();
					for (const t of ['admission', 'timeout']) sub(t[0], t + '/' + head['ticket-id']);
					rank(d.hidden);
					sub('s', 'stats/' + o.room);
				} else if (lines[0] === 'MESSAGE') {
					h.msg(JSON.parse(f.slice(k + 2)), head.cursor);
				}
			}
			if (/^[\r\n]*$/.test(buf)) buf = '';
		};
		sock.onclose = (e) => end({code: e.code, after: +(/retry=(\d+)/.exec(e.reason) || [])[1] || 0});
		sock.onerror = () => end({});
		return {
			close,
			hide(hidden) { if (me && !over) { send('UNSUBSCRIBE\nid:r\n\n\0'); rank(hidden); } },
			ping() { if (me && !over) send('ACK\nid:0\nreceipt:p\n\n\0'); },
		};
	}

	const get = (o, path, signal) => fetch(o.url + o.api + '/rooms/' + o.room + path, {
		headers: Object.assign({Accept: /^.events/.test(path) ? 'text/event-stream' : 'application/json'}, o.ticket && {'Usher-Ticket': o.ticket}),
		credentials: o.url === location.origin ? 'same-origin' : 'include', cache: 'no-store', signal,
	});

	const fetched = (path, loop) => (o, h) => {
		const c = new AbortController();
		let over = false;
		const close = () => { over = true; c.abort(); };
		const end = (why) => { if (!over) { close(); h.down(why); } };
		const ask = async () => {
			const r = await get(o, path + '?after=' + h.cursor() + (d.hidden ? '&hidden=1' : ''), c.signal);
			if (r.ok) return r;
			end({status: r.status, after: 1000 * r.headers.get('Retry-After')});
			throw r;
		};
		loop(h, ask, end).catch(() => end({}));
		return {close};
	};

	const sse = fetched('/events', async (h, ask, end) => {
		const read = (await ask()).body.getReader(), text = new TextDecoder();
		let buf = '', retry = 0, said = false;
		for (;;) {
			const part = await read.read();
			if (part.done) return end({after: retry});
			h.byte();
			buf += text.decode(part.value, {stream: true});
			for (let i; (i = buf.indexOf('\n\n')) >= 0;) {
				const f = {};
				for (const l of buf.slice(0, i).split('\n')) { const k = l.indexOf(':'); f[l.slice(0, k)] = l.slice(k + 1).trim(); }
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

	const poll = fetched('/poll', async (h, ask, end) => {
		for (;;) {
			const b = await (await ask()).json();
			h.byte();
			h.up();
			h.at(b.cursor);
			b.messages.forEach((m) => h.msg(m));
			if (b.next_poll_ms) return end({after: b.next_poll_ms});
		}
	});

	const RUNGS = {ws, sse, poll};

	function climb(o, tell) {
		const key = 'usher:rung:' + o.room;
		let rung = Math.max(0, o.from.indexOf(keep(key))), conn = null, cursor = '', fails = 0, win = 2000, timer = 0, probing = 0, closed = false;
		let last = 0, steady = 0;

		// A probe leaves the present connection alone until it works.
		function open(n, probe) {
			let live = false, dead = false, slot = 0, guard = setTimeout(() => down({}), o.from[n] === 'poll' ? o.quiet : FIRST);
			const down = (why) => {
				if (dead) return;
				dead = true;
				clearTimeout(guard);
				if (c) c.close();
				if (probe && !live) return later();
				if (conn === c) { conn = null; lost(why, live, slot); }
			};
			const h = {
				cursor: () => cursor,
				at(at) { if (at) cursor = at; },
				window(ms) { win = Math.min(Math.max(ms, 500), 120000); },
				byte() {
					last = Date.now();
					clearTimeout(guard);
					guard = setTimeout(() => down({}), o.quiet);
				},
				up() {
					if (live) return;
					live = true;
					if (conn && conn !== c) conn.close();
					conn = c;
					rung = n;
					keep(key, o.from[n]);
					clearTimeout(steady);
					steady = setTimeout(() => fails = 0, 60000);
					tell({type: 'transport', name: o.from[n]});
					tell({type: 'link', state: 'ok'});
					later();
				},
				msg(b, at) {
					if (!b || dead || closed) return;
					if (at) cursor = at;
					if (b.type === 'RECONNECT_SOON') { slot = b.after_ms; return; }
					tell(b);
					if (b.type === 'timeout') stop();
				},
				down,
			};
			const c = RUNGS[o.from[n]](o, h);
			if (!probe) conn = c;
		}

		function lost(why, live, slot) {
			if (closed) return;
			clearTimeout(steady);
			clearTimeout(probing);
			if (why.code >= 4500 || why.code === 1008 || [401, 404, 410].includes(why.status)) return ask();
			tell({type: 'link', state: navigator.onLine === false ? 'offline' : 'trouble'});
			fails++;
			if (fails >= TRIES && rung < o.from.length - 1) { rung++; fails = 0; return again(rand(0, 1000)); }
			// In the server's slot; else anywhere in its window, then full jitter on top.
			again(slot || why.after || (live ? rand(0, win) : 0) + (fails > 1 || !live ? rand(0, Math.min(CAP, 1000 * 2 ** fails)) : 0));
		}

		function drop() {
			if (conn) conn.close();
			conn = null;
			clearTimeout(timer);
		}

		function again(ms) {
			clearTimeout(timer);
			if (!closed) timer = setTimeout(() => { if (!conn && !closed) open(rung); }, ms);
		}

		// probes the rung above
		function later() {
			clearTimeout(probing);
			if (!closed && rung > 0) probing = setTimeout(() => { if (conn && !closed) open(rung - 1, true); }, rand(o.probe[0], o.probe[1]));
		}

		async function ask() {
			try {
				const r = await get(o, '/status');
				if (closed) return;
				const b = await r.json();
				const type = {410: 'timeout', 401: 'lost', 404: 'lost'}[r.status];
				if (type) { tell({type, reason: b.reason || b.code}); return stop(); }
			} catch (e) { }
			again(rand(1000, 5000));
		}

		// The machine slept, or somebody looks: a socket that looks open may be dead.
		function wake() {
			if (closed) return;
			if (!conn) return again(rand(0, 500));
			const c = conn, before = last;
			if (c.ping) {
				c.ping();
				setTimeout(() => { if (conn === c && last === before) { drop(); again(0); } }, 3000);
			} else if (Date.now() - last > o.quiet) {
				drop();
				again(0);
			}
		}

		let tick = Date.now();
		const watch = setInterval(() => {
			const gap = Date.now() - tick;
			tick = Date.now();
			if (gap > (d.hidden ? 90000 : 10000)) wake();
		}, 5000);
		const seen = () => { if (conn && conn.hide) conn.hide(d.hidden); if (!d.hidden) wake(); };
		const show = (e) => { if (e.persisted) again(0); };
		const ears = new AbortController();
		d.addEventListener('visibilitychange', seen, ears);
		addEventListener('online', wake, ears);
		addEventListener('pagehide', drop, ears); // else no bfcache
		addEventListener('pageshow', show, ears);

		function stop() {
			if (closed) return;
			closed = true;
			drop();
			[probing, steady].forEach(clearTimeout);
			clearInterval(watch);
			ears.abort();
		}
		open(rung);
		return {stop};
	}

	function join(room, options) {
		const o = Object.assign({api: '/v1', ticket: '', from: ['ws', 'sse', 'poll'], share: true, url: location.origin, probe: [60000, 120000], quiet: 35000}, options, {room});
		const fs = {}, seen = {}; // the newest of each type, for tabs that come later
		let closed = false, climber = null, release = null, bus = null;
		const emit = (m) => {
			if (closed || m.type === 'admission' && seen.admission) return;
			seen[m.type] = m;
			for (const t of [m.type, '*']) for (const f of fs[t] || []) f(m);
		};
		const lead = () => {
			climber = climb(o, (m) => { emit(m); if (bus) bus.postMessage({m}); });
		};
		const give = new AbortController();
		if (o.share && navigator.locks && root.BroadcastChannel) {
			const name = 'usher:' + o.url + o.api + ':' + room + ':' + o.ticket.slice(-16);
			bus = new BroadcastChannel(name);
			bus.onmessage = (e) => {
				if (e.data.m && !climber) emit(e.data.m);
				if (e.data.hello && climber) for (const t in seen) bus.postMessage({m: seen[t]});
			};
			bus.postMessage({hello: 1});
			navigator.locks.request(name, {signal: give.signal}, () => closed ? null : new Promise((done) => { release = done; lead(); })).catch(() => {});
		} else {
			lead();
		}
		return {
			on(type, f) { (fs[type] = fs[type] || []).push(f); if (seen[type]) f(seen[type]); return this; },
			get leads() { return !!climber; },
			close() {
				if (closed) return;
				closed = true;
				if (climber) climber.stop();
				if (release) release();
				give.abort();
				if (bus) bus.close();
			},
		};
	}

	root.usher = {join};
})(self);
