// The real @stomp/stompjs against a real usher: the same checks in Node and in Chromium. say(message) is the operator's
// message, free() lets the one inside go.
export async function checks({ Client, base, out, say, free }) {
const url = base.replace(/^http/, 'ws') + '/v1/stomp';
const sleep = (ms) => new Promise((r) => setTimeout(r, ms));
const within = (p, what, ms = 60000) => Promise.race([p, sleep(ms).then(() => { throw new Error('not in time: ' + what); })]);

async function check(name, f) {
  try { await within(f(), name, 150000); await out(name, ''); } catch (e) { await out(name, String(e.stack || e)); }
}
function assert(ok, text) { if (!ok) throw new Error(text); }
async function until(what, ok) {
  for (const end = Date.now() + 60000; !ok(); await sleep(50)) if (Date.now() > end) throw new Error('never: ' + what);
}

// Without cookies: each is a visitor of her own.
async function enter() {
  const r = await fetch(base + '/v1/rooms/premiere/enter', { method: 'POST', credentials: 'omit' });
  return r.json();
}
const leave = (t) => fetch(base + '/v1/rooms/premiere/leave', { method: 'POST', credentials: 'omit', headers: { 'Usher-Ticket': t.ticket } });

// open connects and subscribes to everything of a ticket; bodies arrive in c.got, and next(type) waits for one.
async function open(t, more = {}) {
  const waits = [];
  const got = [];
  const c = new Client({ brokerURL: url, connectHeaders: { ticket: t.ticket }, reconnectDelay: 300, ...more });
  const on = (m) => { const b = JSON.parse(m.body); b.headers = m.headers; got.push(b); for (const w of [...waits]) if (w.ok(b)) { waits.splice(waits.indexOf(w), 1); w.done(b); } };
  let connects = 0;
  const connected = new Promise((done, fail) => {
    c.onConnect = (f) => {
      connects++;
      c.connected_ = f;
      for (const topic of ['admission', 'rank', 'timeout']) c.subscribe(`/topic/${topic}/${t.ticket_id}`, on);
      c.subscribe('/topic/stats/premiere', on);
      done(c);
    };
    c.onStompError = (f) => fail(new Error(f.headers.message));
  });
  c.activate();
  c.got = got;
  c.connects = () => connects;
  c.next = (ok, what) => within(new Promise((done) => waits.push({ ok, done })), what);
  await within(connected, 'connected');
  return c;
}

await check('connects as 1.2, is told its place and the room', async () => {
  const t = await enter();
  const c = await open(t);
  assert(c.connected_.headers.version === '1.2', c.connected_.headers.version);
  assert(c.connected_.headers['ticket-id'] === t.ticket_id, 'ticket-id');
  const r = c.got.find((b) => b.type === 'rank') || await c.next((b) => b.type === 'rank', 'rank');
  assert(r.place === t.place, `place ${r.place}, entered at ${t.place}`);
  assert(r.headers.cursor && r.headers['message-id'], 'headers');
  if (!c.got.find((b) => b.type === 'stats')) await c.next((b) => b.type === 'stats', 'stats');
  await c.deactivate();
  await leave(t);
});

await check('an operator’s message arrives byte by byte, whatever is in it', async () => {
  const t = await enter();
  const c = await open(t);
  const message = 'a\\n: \u{1F39F} “ünï” \\\\ \n two';
  const said = c.next((b) => b.type === 'stats' && b.message === message, 'message');
  await say(message);
  await said;
  await c.deactivate();
  await leave(t);
});

await check('deactivate waits for the receipt of its DISCONNECT', async () => {
  const t = await enter();
  let receipt = false;
  const c = await open(t, { debug: (s) => { if (/<<< RECEIPT/.test(s)) receipt = true; } });
  await within(c.deactivate(), 'deactivated');
  assert(receipt, 'no RECEIPT');
  await leave(t);
});

await check('receipts of SUBSCRIBE and UNSUBSCRIBE', async () => {
  const t = await enter();
  const c = await open(t);
  const got = (id) => within(new Promise((done) => c.watchForReceipt(id, done)), id);
  const a = got('r-1');
  const u = got('r-2');
  c.unsubscribe('sub-3', { receipt: 'r-1' });
  c.subscribe('/topic/stats/premiere', () => {}, { id: 'again', receipt: 'r-2' });
  await a;
  await u;
  await c.deactivate();
  await leave(t);
});

await check('another’s topic is an ERROR, and the end', async () => {
  const t = await enter();
  const o = await enter();
  const c = await open(t, { reconnectDelay: 0 });
  const failed = new Promise((done) => { c.onStompError = (f) => done(f.headers.message); });
  const closed = new Promise((done) => { c.onWebSocketClose = (e) => done(e.code); });
  c.subscribe('/topic/rank/' + o.ticket_id, () => {});
  assert(/not yours/.test(await within(failed, 'ERROR')), 'text');
  assert(await within(closed, 'close') === 1008, 'code');
  await c.deactivate();
  await leave(t);
  await leave(o);
});

await check('a SEND is an ERROR, and the end', async () => {
  const t = await enter();
  const c = await open(t, { reconnectDelay: 0 });
  const failed = new Promise((done) => { c.onStompError = (f) => done(f.headers.message); });
  c.publish({ destination: '/topic/rank/' + t.ticket_id, body: '{"place":1}' });
  assert(/do not send/.test(await within(failed, 'ERROR')), 'text');
  await c.deactivate();
  await leave(t);
});

await check('heart-beats: the server’s are enough, ours are not wanted', async () => {
  const t = await enter();
  let ours = 0;
  let theirs = 0;
  const c = await open(t, { heartbeatIncoming: 10000, heartbeatOutgoing: 1000, debug: (s) => { if (/>>> PING/.test(s)) ours++; if (/<<< PONG/.test(s)) theirs++; } });
  assert(c.connected_.headers['heart-beat'] === '20000,0', c.connected_.headers['heart-beat']);
  await until('two heart-beats', () => theirs >= 2); // the test's room has a grace of 20 s, so a beat each 5 s
  assert(ours === 0, 'sent ' + ours); // though it wanted to each second
  await c.deactivate();
  await leave(t);
});

await check('a client that reconnects by itself keeps its place and is told all again', async () => {
  const t = await enter();
  const c = await open(t);
  const before = c.got.length;
  c.forceDisconnect();
  await until('a second connection', () => c.connects() === 2);
  const again = () => c.got.slice(before).find((b) => b.type === 'rank');
  await until('its place again', again);
  assert(again().place === t.place, 'place ' + again().place);
  await c.deactivate();
  await leave(t);
});

await check('the admission comes to every tab', async () => {
  const t = await enter();
  const tabs = [await open(t), await open(t)];
  const all = tabs.map((c) => c.next((b) => b.type === 'admission', 'admission'));
  await free();
  for (const a of await Promise.all(all)) assert(a.action === 'REDIRECT' && a.admission.token, JSON.stringify(a));
  const ended = tabs.map((c) => new Promise((done) => { c.reconnectDelay = 0; c.onWebSocketClose = (e) => done(e.code); }));
  await leave(t);
  for (const code of await within(Promise.all(ended), 'closed')) assert(code === 4500, 'code ' + code);
  for (const c of tabs) await c.deactivate();
});
}
