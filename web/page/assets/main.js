// What to do about the news: the page's own small state machine.
const HELD = {waiting: 1, paused: 1, prequeue: 1}; // states in which we hold a ticket and follow it
const HOPS = 3;
const HOP_WINDOW_MS = 60000;

const d = JSON.parse(document.getElementById('usher-data').textContent);
d.text = JSON.parse(document.getElementById('usher-text').textContent);

// What must outlive a reload of this tab. Where storage is forbidden the page works without it.
const keep = {
  get: function (k) { try { return d.preview ? '' : sessionStorage.getItem(k) || ''; } catch (e) { return ''; } },
  set: function (k, v) { try { if (d.preview) return; if (v) sessionStorage.setItem(k, v); else sessionStorage.removeItem(k); } catch (e) { /* forbidden */ } },
  json: function (k) { try { return JSON.parse(keep.get(k)) || {}; } catch (e) { return {}; } },
};

const text = d.text;
const view = createView(d);
const chime = createSound(view);
const KEY = 'usher:' + d.room;
let line = null; // the news of the ticket, while there is one

// m is what is shown.
const m = {
  state: d.state, reason: d.reason, ticket: d.ticket, place: d.place, waiting: num(d.waiting), behind: num(d.behind), eta: d.eta,
  message: d.message, first: 0, done: 0, countdown: '', time: '',
};
let opensAt = Date.parse(d.opens_at || '');
let entersAt = Date.parse(d.enters_at || '');
let offset = Date.parse(d.at) - Date.now();
let lastAt = Date.parse(d.at) || 0;
let spoken = 0;
let goTimer = 0;
let retryTimer = 0;
let openingTimer = 0;
let clockTimer = 0;
let tries = 0;
let busy = false;
let requestID = '';

function num(n) { return typeof n === 'number' ? n : -1; }
function now() { return Date.now() + offset; }

// ---- what is known of the place ----

// A place never rises on the screen. What was seen of a ticket outlives reloads; another ticket starts anew, and says so.
function remember(ticket, place) {
  let s = keep.json(KEY);
  if (ticket && s.ticket !== ticket) {
    if (s.ticket) view.notice('note.reissued');
    s = {ticket: ticket, first: 0, min: 0, done: 0};
  }
  if (m.ticket !== ticket && ticket) {
    m.ticket = ticket;
    m.first = m.done = 0;
    m.place = 0;
  }
  if (place > 0) {
    m.place = Math.min(place, s.min > 0 ? s.min : place, m.place > 0 ? m.place : place);
    m.first = s.first || m.first || d.first || place;
    m.done = Math.max(s.done || 0, m.done, (m.first - m.place + 0.5) / m.first);
    s = {ticket: m.ticket, first: m.first, min: m.place, done: m.done};
  }
  keep.set(KEY, JSON.stringify(s));
}

// take reads the fields that status, rank and stats share.
function take(b) {
  // The place needs no order, for it only falls. What the room says must not be undone by an older word.
  if (typeof b.place === 'number' && b.place > 0) remember(b.ticket_id || m.ticket, b.place);
  if (b.eta !== undefined) m.eta = b.eta;
  const at = Date.parse(b.at || '') || lastAt;
  if (at >= lastAt) {
    if (b.at) offset = at - Date.now();
    lastAt = at;
    if (typeof b.waiting === 'number') m.waiting = b.waiting;
    room(b);
  }
  m.behind = m.place > 0 && m.waiting >= 0 ? Math.max(0, m.waiting - m.place) : -1;
}

function room(b) {
  opening(b);
  if (typeof b.message === 'string' && b.message !== m.message) {
    m.message = b.message;
    if (b.message) view.say(fill(text['say.message'], {message: b.message}), true);
  }
  const rs = b.room_state;
  if (!rs || !HELD[m.state]) return;
  const early = rs === 'prequeue' || rs === 'not_open' || rs === 'scheduled';
  m.state = early ? 'prequeue' : rs === 'paused' ? 'paused' : 'waiting';
}

// opening reads when the room opens, null where nothing is planned any more. The prequeue moves with it.
function opening(b) {
  if (b.opens_at === undefined) return;
  const at = Date.parse(b.opens_at || '');
  entersAt += at - opensAt;
  opensAt = at;
}

// The news do not tell that an operator moved the opening. The public document does: before a draw it is read about once
// a minute, and once the countdown has run out without the doors opening.
function watchOpening() {
  if (openingTimer || d.preview || m.state !== 'prequeue') return;
  const left = opensAt - now();
  openingTimer = setTimeout(async function () {
    const r = m.state === 'prequeue' ? await call('GET', '/now') : {};
    openingTimer = 0;
    if (m.state !== 'prequeue') return;
    if (r.status === 200) opening(r.body);
    draw();
  }, left > 0 && left < 60000 ? left + rand(5000, 15000) : rand(45000, 75000));
}

function status(b) {
  if (b.state === 'admitted') return admitted();
  if (b.state && b.state !== 'waiting') return ended(b.reason || b.state);
  if (!HELD[m.state]) m.state = 'waiting';
  if (b.ticket_id && b.ticket_id !== m.ticket) remember(b.ticket_id, 0);
  take(b);
  draw();
}

function listen() {
  if (!line) line = usher.join(d.room, {api: d.api}).on('*', heard);
}

function hangUp() {
  if (line) line.close();
  line = null;
}

function heard(b) {
  switch (b.type) {
    case 'admission':
      return admitted();
    case 'timeout':
      return ended(b.reason);
    case 'lost':
      hangUp();
      return b.reason === 'room_not_found' ? become('gone') : hop('enter', function () { open(location.href); });
    case 'link':
      return view.link(b.state);
    case 'rank':
    case 'stats':
      take(b);
      return draw();
  }
}

// ---- what is shown ----

function draw() {
  const target = m.state === 'prequeue' ? opensAt : m.state === 'not_open' ? entersAt || opensAt : NaN;
  clearInterval(clockTimer);
  m.countdown = m.time = '';
  if (HELD[m.state] || m.state === 'not_open') m.reason = '';
  if (m.state === 'waiting' && d.order === 'random') m.reason = 'random';
  if ((m.state === 'prequeue' || m.state === 'not_open') && !target) m.reason = 'soon';
  if (target) {
    m.time = sayTime(d.lang, new Date(target), new Date(now()));
    m.countdown = sayCountdown(text, target - now());
    clockTimer = setInterval(function () {
      m.countdown = sayCountdown(text, target - now());
      view.tick(m);
    }, 1000);
  }
  watchOpening();
  const said = view.render(m);
  if (m.state === 'waiting' && m.place > 0 && m.place !== spoken) {
    if (spoken) view.say(fill(text['say.place'], {place: said.place, eta: said.eta}));
    spoken = m.place;
  }
}

function become(state, reason) {
  hangUp();
  clearTimeout(retryTimer);
  m.state = state;
  m.reason = reason || '';
  if (!HELD[state]) m.place = 0;
  if (!HELD[state] && state !== 'ended' && state !== 'origin' && state !== 'admitted') m.ticket = '';
  view.link('ok');
  draw();
  follow();
}

function ended(reason) {
  const known = {claim: 1, idle: 1, max: 1, abandoned: 1, left: 1};
  keep.set(KEY, '');
  become('ended', known[reason] ? reason : 'other');
}

// ---- going in ----

function admitted() {
  if (m.state === 'admitted' && goTimer) return;
  keep.set(KEY, '');
  become('admitted');
}

// While nobody looks, the title blinks and the chime sounds for a while before the page goes in: well within the time
// in which the admission must be claimed.
function announce() {
  const hidden = document.hidden;
  chime();
  if (hidden) view.flash(text['admitted.flash']);
  clearTimeout(goTimer);
  goTimer = setTimeout(go, hidden ? Math.min(15000, d.claim_s * 1000 / 3) : 1200);
}

function go() {
  clearTimeout(goTimer);
  goTimer = 0;
  view.unflash();
  if (d.preview) return;
  hop('go', function () {
    open(d.next || '/');
  });
}

// open goes to an address of this site, in place of this page in the history.
function open(address) {
  let to = new URL(address, location.href);
  if (to.origin !== location.origin) to = new URL('/', location.href);
  if (!to.hash && location.hash) to.hash = location.hash;
  // Going to the address that we are at, with a fragment, would only scroll.
  if (to.hash && to.href.split('#')[0] === location.href.split('#')[0]) location.reload();
  else location.replace(to.href);
}

// hop lets the page send the visitor on three times a minute. More means that something sends her back each time: a
// browser without cookies, most often. Then words are better than a loop.
function hop(kind, act) {
  const key = 'usher-hops:' + kind + ':' + d.room;
  let list = [];
  try {
    list = JSON.parse(keep.get(key) || (window.name.indexOf(key) === 0 ? window.name.slice(key.length + 1) : '[]'));
  } catch (e) { /* none yet */ }
  list = (Array.isArray(list) ? list : []).filter(function (t) { return Date.now() - t < HOP_WINDOW_MS && t <= Date.now(); });
  if (list.length >= HOPS || navigator.cookieEnabled === false) return become('stuck');
  list.push(Date.now());
  const s = JSON.stringify(list);
  keep.set(key, s);
  if (keep.get(key) !== s) window.name = key + ' ' + s; // no storage: the tab's name outlives a reload too
  act();
}

// ---- without a ticket ----

function follow() {
  clearTimeout(retryTimer);
  if (d.preview) return rehearse();
  const later = function (ms, f) { retryTimer = setTimeout(f, ms); };
  const told = d.retry_s * 1000 * rand(1, 1.3);
  d.retry_s = 0;
  if (HELD[m.state]) return listen();
  switch (m.state) {
    case 'admitted':
      return announce();
    case 'not_open': {
      const at = entersAt || opensAt;
      const left = at - now();
      // Before a draw nobody gains by being first, so the crowd can come in one by one.
      const spread = opensAt > at ? Math.min((opensAt - at) / 4, 30000) : 2000;
      if (left < 60000) return later(Math.max(left, 0) + rand(0, spread), enter);
      return later(Math.min(left - 30000, rand(30000, 60000)), look);
    }
    case 'closed':
      return later(Math.max(told, rand(15000, 30000)), look);
    case 'full':
    case 'too_many':
      return later(Math.max(told, rand(8000, 16000)) + backoff(tries), enter);
    case 'unavailable':
      return later(Math.max(told, 1000) + backoff(tries + 1), enter);
    case 'origin':
      if (d.next) later(Math.max(told, rand(5000, 15000)) * Math.pow(2, Math.min(originTries(), 3)), reopen);
  }
}

function originTries() {
  const s = keep.json('usher-origin:' + d.room);
  const n = Date.now() - (s.at || 0) < 300000 ? s.n || 0 : 0;
  keep.set('usher-origin:' + d.room, JSON.stringify({n: n + 1, at: Date.now()}));
  return n;
}

function reopen() { open(d.next || location.href); }

// look reads the public document, which costs the server next to nothing, and enters when the door has opened.
async function look() {
  const state = m.state;
  const r = await call('GET', '/now');
  if (m.state !== state) return;
  if (r.status === 404) return become('gone');
  view.link(r.status === 200 ? 'ok' : r.status === 0 ? 'trouble' : 'away');
  if (r.status === 200) {
    room(r.body);
    draw();
    const rs = r.body.room_state;
    if (rs === 'open' || rs === 'paused' || rs === 'prequeue') {
      if (state === 'closed') view.notice('note.opened');
      retryTimer = setTimeout(enter, rand(0, 10000));
      return;
    }
  }
  follow();
}

function freshID() {
  const b = crypto.getRandomValues(new Uint8Array(16));
  return Array.prototype.map.call(b, function (n) { return (n < 16 ? '0' : '') + n.toString(16); }).join('');
}

// enter takes a ticket without reloading the page. The request id makes a repeat after a lost answer the same ticket.
async function enter() {
  if (busy) return;
  busy = true;
  clearTimeout(retryTimer);
  requestID = requestID || freshID();
  const r = await call('POST', '/enter', {request_id: requestID});
  busy = false;
  tries++;
  d.retry_s = r.retryMs / 1000;
  opening(r.body);
  if (r.body.enters_at) entersAt = Date.parse(r.body.enters_at);
  const code = r.body.code;
  if (r.status === 200 || r.status === 202) {
    tries = 0;
    requestID = '';
    lastAt = 0;
    view.notice('');
    if (r.body.state === 'admitted') return admitted();
    m.state = 'waiting';
    status(r.body);
    if (HELD[m.state]) listen();
    return;
  }
  if (r.status === 403) return become(code === 'room_not_open' ? 'not_open' : 'closed');
  if (r.status === 404) return become('gone');
  if (r.status === 410) {
    requestID = '';
    return tries > 2 ? become('ended', 'other') : enter();
  }
  if (r.status === 429) return become(code === 'room_full' ? 'full' : 'too_many');
  become('unavailable');
}

// ---- hands on the page ----

function press() {
  switch (m.state) {
    case 'admitted':
      return go();
    case 'origin':
    case 'stuck':
      keep.set('usher-hops:go:' + d.room, '');
      keep.set('usher-hops:enter:' + d.room, '');
      window.name = '';
      return reopen();
  }
  if (d.preview || busy) return;
  view.all('button').forEach(function (b) { b.disabled = true; });
  tries = 0;
  enter().then(function () {
    view.all('button').forEach(function (b) { b.disabled = false; });
    view.focusHeading();
  });
}

async function leave() {
  const buttons = view.all('go');
  buttons.forEach(function (b) { b.disabled = true; });
  view.show('failed', false);
  const r = d.preview ? {status: 204} : await call('POST', '/leave');
  buttons.forEach(function (b) { b.disabled = false; });
  if (r.status !== 204 && r.status !== 401 && r.status !== 410) return view.show('failed', true);
  closeAsk();
  ended('left');
  view.focusHeading();
}

function closeAsk() { view.all('ask').forEach(function (el) { if (el.open) el.close(); }); }

function wire(name, f) { view.all(name).forEach(function (el) { el.addEventListener('click', f); }); }

wire('button', press);
wire('stay', closeAsk);
wire('go', leave);
wire('leave', function () {
  const ask = view.all('ask')[0];
  view.show('failed', false);
  if (ask && ask.showModal) ask.showModal();
  else if (window.confirm(text['leave.heading'] + ' ' + text['leave.text'])) leave();
});

document.addEventListener('visibilitychange', function () {
  if (document.hidden) return;
  if (m.state === 'admitted' && goTimer) {
    clearTimeout(goTimer);
    goTimer = setTimeout(go, 800);
  }
});
window.addEventListener('online', function () {
  if (m.state === 'unavailable') retryTimer = setTimeout(enter, rand(0, 1000));
});
// A page in the back/forward cache does nothing; usher.js hangs up and comes back by itself.
window.addEventListener('pagehide', function () {
  clearTimeout(retryTimer);
  clearTimeout(goTimer);
  goTimer = 0;
});
window.addEventListener('pageshow', function (e) {
  if (!e.persisted || d.preview) return;
  if (m.state === 'admitted') m.state = 'waiting';
  follow();
});

// rehearse lets a preview's place fall, so that the bar and the title can be seen moving.
function rehearse() {
  if (m.state !== 'waiting' || !(m.place > 1)) return;
  retryTimer = setTimeout(function () {
    status({state: 'waiting', place: Math.max(1, m.place - Math.ceil(m.place / 60)), waiting: m.waiting + 3, eta: m.eta && {low_s: m.eta.low_s - 4, high_s: m.eta.high_s - 5}});
    rehearse();
  }, 2500);
}

if (HELD[m.state]) remember(m.ticket, m.place);
draw();
follow();
