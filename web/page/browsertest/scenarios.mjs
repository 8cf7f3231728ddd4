// A visitor's day, in a real browser: node scenarios.mjs BASE [FILTER]. Each scenario has a room and a browser context
// of its own. Everything that the page's Content-Security-Policy or script trips over fails the scenario.
import {launch, context, report, until, check, within, during, close, finish} from './browser.mjs';

const [base, filter] = process.argv.slice(2);
const scenarios = [];
let rooms = 0;

function scenario(name, options, run) {
  if (!run) [options, run] = [{}, options];
  scenarios.push({name, options, run});
}

async function open(browser, options) {
  const {initial, init, lang, rung, ...rest} = options;
  const id = 'room' + (++rooms);
  const ctx = await context(browser, {viewport: {width: 360, height: 740}, locale: lang || 'en-US', ...rest});
  // The rung that the page found to work, so that it need not climb down to it first; '' lets it find one.
  const known = rung === undefined ? (initial && initial.sse ? 'sse' : 'poll') : rung;
  if (known) await ctx.addInitScript(([k, v]) => { try { if (!sessionStorage.getItem(k)) sessionStorage.setItem(k, v); } catch (e) { /* none */ } }, ['usher:rung:' + id, known]);
  const page = await within('a page', ctx.newPage());
  const faults = [];
  page.on('pageerror', (e) => faults.push(String(e)));
  page.on('console', (m) => {
    if (m.type() === 'error' && !/Failed to load resource|WebSocket connection to|ERR_INTERNET_DISCONNECTED|net::/.test(m.text())) faults.push(m.text());
  });
  const requests = [];
  page.on('request', (r) => { if (!r.url().startsWith('data:')) requests.push(r.method() + ' ' + r.url().slice(base.length)); });
  const call = async (path, body) => {
    const r = await fetch(base + '/-/' + id + path, {signal: AbortSignal.timeout(30000), ...body !== undefined && {method: 'POST', body: JSON.stringify(body)}});
    check(r.ok, 'control ' + path + ': ' + r.status);
    return path === '' ? r.json() : null;
  };
  const s = {
    id, context: ctx, page, faults, requests,
    url: base + '/wait/' + id + '?next=/inside/' + id,
    set: (v) => call('', v),
    get: () => call(''),
    send: (v) => call('/event', {raw: typeof v === 'string' ? v : 'data: ' + JSON.stringify(v) + '\n\n'}),
    cut: () => call('/cut', {}),
    text: (name) => page.textContent('[data-usher="' + name + '"]'),
    state: () => page.getAttribute('body', 'data-state'),
    done: () => page.evaluate(() => parseFloat(document.querySelector('.bar').style.getPropertyValue('--done'))),
    visible: (name) => page.isVisible('[data-usher="' + name + '"]'),
    isInside: () => new URL(page.url()).pathname === '/inside/' + id,
    // The stream has brought something: it is open on both sides.
    streaming: async () => {
      await until('the stream', async () => (await call('')).streams === 1);
      await call('', {place: 999});
      await until('news by the stream', async () => (await s.text('place')) === '999');
    },
    inside: () => until('being let in', () => new URL(page.url()).pathname === '/inside/' + id),
    isState: (want) => until('state ' + want, async () => await s.state() === want),
    isText: (name, want, ms) => until(name + ' ' + want, async () => (await s.text(name)) === want, ms),
    grows: async (key, by = 1) => {
      const from = (await call(''))[key];
      return until(key + ' grows', async () => (await call(''))[key] >= from + by);
    },
  };
  if (init) await page.addInitScript(init);
  await s.set(initial || {});
  return s;
}

// hide makes the page believe that it is hidden, or seen again.
const hideable = () => {
  window.hiddenNow = false;
  Object.defineProperty(Document.prototype, 'hidden', {configurable: true, get: () => window.hiddenNow});
  Object.defineProperty(Document.prototype, 'visibilityState', {configurable: true, get: () => window.hiddenNow ? 'hidden' : 'visible'});
};
const hide = (s, on) => s.page.evaluate((v) => { window.hiddenNow = v; document.dispatchEvent(new Event('visibilitychange')); }, on);

scenario('the page asks for nothing but the API (room 23)', async (s) => {
  await s.page.goto(s.url);
  await s.grows('asks');
  const strays = s.requests.filter((r) => !r.startsWith('GET /wait/') && !r.includes('/v1/rooms/' + s.id + '/'));
  check(strays.length === 0, 'stray requests: ' + strays);
  check(s.requests.filter((r) => r.startsWith('GET /wait/')).length === 1, 'one page, one request');
});

scenario('the place falls and the bar moves, without a reload', {initial: {eta: [480, 720]}}, async (s) => {
  await s.page.goto(s.url);
  await s.isText('place', '1,000');
  await s.isText('eta', 'about 8–12 min');
  await s.isText('behind', '4,000');
  const d0 = await s.done();
  await s.set({place: 400, waiting: 6200, eta: [5400, 7000]});
  await s.isText('place', '400');
  await s.isText('behind', '5,800');
  await s.isText('eta', 'about 1 h 30 min to 2 h');
  await until('title', async () => await s.page.title() === '#400 · ' + s.id[0].toUpperCase() + s.id.slice(1));
  const d1 = await s.done();
  check(d1 > d0 && Math.abs(d1 - 60) < 1, 'bar from ' + d0 + ' to ' + d1);
  check((await s.page.getAttribute('[data-usher="bar"]', 'aria-valuenow')) === '60', 'aria-valuenow');
  check((await s.get()).pages === 1, 'no reload');
});

scenario('a place never rises, not even by a refresh (room 3)', async (s) => {
  await s.page.goto(s.url);
  await s.set({place: 200});
  await s.isText('place', '200');
  const d = await s.done();
  await s.set({place: 300, waiting: 9000});
  await s.isText('behind', '8,800');
  check(await s.text('place') === '200', 'rose to ' + await s.text('place'));
  for (let i = 0; i < 3; i++) await s.page.reload();
  check(await s.text('place') === '200' && await s.done() >= d, 'after reloads: ' + await s.text('place') + ', bar ' + await s.done());
  check((await s.get()).issued === 1, 'one ticket');
});

scenario('a ticket issued anew is explained', async (s) => {
  await s.page.goto(s.url);
  await s.set({place: 20});
  await s.isText('place', '20');
  await s.set({place: 700, ticket: 'adopted'});
  await s.context.clearCookies();
  await s.isText('place', '700');
  await until('the explanation', () => s.visible('notice'));
  check(/new one/.test(await s.text('notice')), await s.text('notice'));
});

scenario('an admission by the stream takes in at once', {initial: {sse: true, hold_ms: 60000}}, async (s) => {
  await s.page.goto(s.url);
  await s.streaming();
  await s.send({type: 'rank', status: 'WAITING', place: 3, waiting: 900, eta: null, at: new Date().toISOString()});
  await s.isText('place', '3');
  // In pieces, with a comment, as a proxy may cut it.
  await s.send(': beat\n\nid: 1.77\nda');
  await s.send('ta: {"type":"admission","status":"ADMITTED","act');
  await s.send('ion":"REDIRECT","admission":{}}\n\n');
  await s.inside();
  check((await s.get()).pages === 1, 'no reload');
});

scenario('an admission found by polling takes in', async (s) => {
  await s.page.goto(s.url);
  const titles = []; // it goes on within a second or so, which is too short to ask for them
  await s.page.exposeFunction('titled', (t) => { titles.push(t); });
  await s.page.evaluate(() => { new MutationObserver(() => titled(document.title)).observe(document.querySelector('title'), {childList: true, characterData: true, subtree: true}); });
  await s.set({state: 'admitted'});
  await s.inside();
  check(titles.some((t) => t.startsWith('Your turn!')), titles.join());
});

scenario('the stream dies and is refused: polling goes on (push 19)', {initial: {sse: true, hold_ms: 300}}, async (s) => {
  await s.page.goto(s.url);
  await s.streaming();
  await s.set({sse: false});
  await s.cut();
  await s.set({place: 90});
  await s.isText('place', '90');
  await s.set({place: 80});
  await s.isText('place', '80');
  check(await s.state() === 'waiting' && (await s.get()).pages === 1, 'no reload');
});

scenario('neither WebSocket nor stream: it finds that polling works', {rung: '', initial: {sse: false}}, async (s) => {
  await s.page.goto(s.url);
  await s.set({place: 10});
  await s.isText('place', '10');
  await s.isText('livetext', 'Updates by itself');
  check(await s.page.evaluate((k) => sessionStorage.getItem(k), 'usher:rung:' + s.id) === 'poll', 'remembered');
});

scenario('many tabs of one browser: each loads, few hold a stream, all are told', {initial: {sse: true, hold_ms: 1000}}, async (s) => {
  await s.page.goto(s.url);
  const tabs = [s.page];
  for (let i = 0; i < 8; i++) {
    const tab = await s.context.newPage();
    await tab.goto(s.url);
    tabs.push(tab);
  }
  await until('streams', async () => (await s.get()).streams >= 1);
  check((await s.get()).issued === 1, 'one ticket');
  await until('one stream', async () => (await s.get()).streams === 1);
  await s.set({place: 77});
  await s.send({type: 'rank', status: 'WAITING', place: 77, waiting: 900, eta: null, at: new Date().toISOString()});
  for (const tab of tabs) await until('news in every tab', async () => await tab.textContent('[data-usher="place"]') === '77');
});

scenario('RECONNECT_SOON: back in its own slot', {initial: {sse: true, hold_ms: 60000}}, async (s) => {
  await s.page.goto(s.url);
  await s.streaming();
  await s.send({type: 'RECONNECT_SOON', reason: 'SERVER_SHUTDOWN', after_ms: 100});
  await s.cut();
  await until('the stream again', async () => { const r = await s.get(); return r.opened >= 2 && r.streams === 1; });
});

scenario('server away and back: place kept, no reload', async (s) => {
  await s.page.goto(s.url);
  await s.grows('asks');
  await s.set({fail: 503});
  await until('words', async () => /not answering/.test(await s.text('livetext')));
  await s.set({fail: 0, drop: true});
  await until('words', async () => /interrupted/.test(await s.text('livetext')));
  check(await s.text('place') === '1,000', 'place is shown on');
  await s.set({drop: false, place: 900});
  await s.isText('place', '900');
  await s.isText('livetext', 'Updates by itself');
  const r = await s.get();
  check(r.pages === 1 && r.issued === 1, 'no reload: ' + JSON.stringify(r));
});

scenario('a pause comes with its message within a poll, and goes (room 26)', async (s) => {
  await s.page.goto(s.url);
  await s.grows('asks');
  const told = s.page.waitForResponse(async (r) => r.url().includes('/poll') && /"paused"/.test(await r.text()));
  await s.set({room_state: 'paused', message: 'Back at <b>19:40</b> & sorry'});
  await told; // the first poll after it
  await s.isState('paused');
  check(await s.text('message') === 'Back at <b>19:40</b> & sorry', await s.text('message'));
  check(await s.text('place') === '1,000', 'place kept');
  await until('said', async () => /19:40/.test(await s.text('say')));
  await s.set({room_state: 'open', message: ''});
  await s.isState('waiting');
  check(!(await s.visible('messagebox')), 'the message is gone');
});

scenario('a pause comes by the stream too', {initial: {sse: true, hold_ms: 60000}}, async (s) => {
  await s.page.goto(s.url);
  await s.streaming();
  await s.send({type: 'stats', waiting: 70, active: 5, room_state: 'paused', message: 'A short break', at: new Date().toISOString()});
  await s.isState('paused');
  await s.isText('message', 'A short break');
});

scenario('without scripts a plain refresh does it (room 27)', {javaScriptEnabled: false, initial: {refresh: 1}}, async (s) => {
  await s.page.goto(s.url);
  check(await s.text('place') === '1,000', 'place');
  check(!(await s.visible('leave')) && !(await s.visible('sound')), 'nothing that needs scripts is shown');
  await s.set({place: 44});
  await s.isText('place', '44');
  await s.set({state: 'admitted'});
  await s.inside();
});

scenario('with scripts it never reloads (room 27)', {initial: {refresh: 1, hold_ms: 300}}, async (s) => {
  await s.page.goto(s.url);
  await s.grows('asks', 10);
  check((await s.get()).pages === 1, 'pages');
});

scenario('an ended ticket says why and joins again without a reload (room 19)', async (s) => {
  await s.page.goto(s.url);
  await s.set({state: 'abandoned'});
  await s.isState('ended');
  check(await s.text('heading') === 'You were away too long', await s.text('heading'));
  check(/5 minutes/.test(await s.text('lead')), await s.text('lead'));
  await s.set({place: 3000});
  await s.page.click('[data-usher="button"]');
  await s.isText('place', '3,000');
  const r = await s.get();
  check(r.issued === 2 && r.pages === 1, JSON.stringify(r));
  check(!(await s.visible('notice')), 'no word of a reissued ticket: she asked for it');
});

scenario('a timeout by the stream ends it', {initial: {sse: true, hold_ms: 60000}}, async (s) => {
  await s.page.goto(s.url);
  await s.streaming();
  await s.send({type: 'timeout', reason: 'claim', at: new Date().toISOString()});
  await s.isState('ended');
  check(await s.text('heading') === 'Your turn has passed', await s.text('heading'));
});

scenario('the answer to joining again is lost: the same ticket (room 20)', async (s) => {
  await s.page.goto(s.url);
  await s.set({state: 'idle'});
  await s.isState('ended');
  await s.set({lose: true});
  await s.page.click('[data-usher="button"]');
  await s.isState('waiting');
  check((await s.get()).issued === 2, 'one new ticket, not two');
});

scenario('a browser that keeps no cookie is not sent round for ever (room 11)', {initial: {forget: true}}, async (s) => {
  await s.page.goto(s.url);
  await s.isState('stuck');
  const r = await s.get();
  check(r.pages <= 4, r.pages + ' pages');
  await s.set({forget: false});
  await s.page.click('[data-usher="button"]');
  await s.inside(); // what stood behind next; a real one would send her to the waiting page once more
});

scenario('hidden: the title blinks, then it goes in when looked at', {init: hideable}, async (s) => {
  await s.page.goto(s.url);
  await hide(s, true);
  await s.set({state: 'admitted'});
  await s.isState('admitted');
  const titles = new Set();
  await until('blinking', async () => { titles.add(await s.page.title()); return titles.size >= 2; });
  check([...titles].some((t) => t.includes('▶')), [...titles].join());
  check(!s.isInside(), 'it waits while nobody looks');
  await hide(s, false);
  await s.inside();
});

scenario('hidden for good: it still goes in, within the claim', {init: hideable, initial: {claim_ms: 6000}}, async (s) => {
  await s.page.goto(s.url);
  await hide(s, true);
  await s.set({state: 'admitted'});
  await s.inside();
});

scenario('a hidden tab goes on showing signs of life (room 18, 19)', {init: hideable}, async (s) => {
  await s.page.goto(s.url);
  await hide(s, true);
  await s.grows('hidden', 2);
});

scenario('seen again: it asks at once', {init: hideable, initial: {hold_ms: 60000}}, async (s) => {
  await s.page.goto(s.url);
  await s.grows('asks');
  await hide(s, true);
  await s.set({place: 900});
  await s.isText('place', '900');
  await s.set({deaf: true, place: 12});
  await hide(s, false);
  await s.isText('place', '12');
});

scenario('asleep and awake: it asks at once', {
  initial: {hold_ms: 60000},
  init: () => { const real = Date.now; window.skew = 0; Date.now = () => real() + window.skew; },
}, async (s) => {
  await s.page.goto(s.url);
  await until('the poll', async () => (await s.get()).asks >= 2);
  await s.set({deaf: true, place: 13});
  await s.page.evaluate(() => { window.skew = 600000; });
  await s.isText('place', '13');
});

scenario('offline and online', async (s) => {
  await s.page.goto(s.url);
  await s.grows('asks');
  await s.context.setOffline(true);
  await until('words', async () => /offline.*5 minutes/.test(await s.text('livetext')));
  await s.set({place: 55});
  await s.context.setOffline(false);
  await s.isText('place', '55');
  await s.isText('livetext', 'Updates by itself');
  check((await s.get()).pages === 1, 'no reload');
});

scenario('away and back by the browser\'s buttons', async (s) => {
  await s.page.goto(s.url);
  await s.set({place: 70});
  await s.isText('place', '70');
  await s.page.goto(base + '/inside/' + s.id);
  await s.page.goBack();
  await s.isText('place', '70');
  await s.set({place: 60});
  await s.isText('place', '60');
  check((await s.get()).issued === 1, 'same ticket');
});

scenario('put into the back/forward cache it is silent, taken out it asks at once', {initial: {sse: true, hold_ms: 300}}, async (s) => {
  await s.page.goto(s.url);
  await until('the stream', async () => (await s.get()).streams === 1);
  await s.page.evaluate(() => window.dispatchEvent(new PageTransitionEvent('pagehide', {persisted: true})));
  await until('no stream', async () => (await s.get()).streams === 0);
  await s.set({place: 8});
  check(await s.text('place') === '1,000', 'silent');
  await s.page.evaluate(() => window.dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true})));
  await s.isText('place', '8');
  await until('the stream', async () => (await s.get()).streams === 1);
});

scenario('by keyboard alone: sound, leave, stay, leave', async (s) => {
  await s.page.goto(s.url);
  const at = () => s.page.evaluate(() => document.activeElement.getAttribute('data-usher'));
  await s.page.keyboard.press('Tab');
  check(await at() === 'sound', 'first stop: ' + await at());
  const ring = await s.page.evaluate(() => getComputedStyle(document.querySelector('.switch')).outlineStyle);
  check(ring === 'solid', 'the focus is seen: ' + ring);
  await s.page.keyboard.press('Space');
  check(await s.page.isChecked('[data-usher="sound"]'), 'sound on');
  await s.page.keyboard.press('Tab');
  check(await at() === 'leave', 'second stop: ' + await at());
  await s.page.keyboard.press('Enter');
  check(await at() === 'stay', 'the question starts on the harmless answer: ' + await at());
  await s.page.keyboard.press('Escape');
  check(await at() === 'leave' && !(await s.visible('ask')), 'escape stays in line');
  await s.page.keyboard.press('Enter');
  await s.page.keyboard.press('Tab');
  check(await at() === 'go', 'then the other: ' + await at());
  await s.page.keyboard.press('Enter');
  await s.isState('ended');
  check((await s.get()).state === 'left', 'left');
  check(await at() === 'heading', 'focus on the news: ' + await at());
  check(await s.text('heading') === 'You have left the line', await s.text('heading'));
});

scenario('leaving fails: says so, place kept', async (s) => {
  await s.page.goto(s.url);
  await s.page.click('[data-usher="leave"]');
  await s.set({fail: 503});
  await s.page.click('[data-usher="go"]');
  await until('words', () => s.visible('failed'));
  check(await s.state() === 'waiting', 'still in line');
});

scenario('the chime sounds only when asked for', {
  init: () => {
    const real = window.AudioContext.prototype.createOscillator;
    window.AudioContext.prototype.createOscillator = function () { window.noted(); return real.call(this); };
  },
}, async (s) => {
  let notes = 0;
  await s.page.exposeFunction('noted', () => { notes++; });
  await s.page.goto(s.url);
  await s.page.click('label.sound');
  await until('one note as a trial', () => notes === 1);
  await s.set({state: 'admitted'});
  await s.inside();
  check(notes > 1, 'the chime: ' + notes + ' notes');
});

scenario('a screen reader is not talked to without end (room 27)', async (s) => {
  await s.page.goto(s.url);
  await s.page.evaluate(() => {
    window.said = [];
    new MutationObserver(() => window.said.push(document.querySelector('[data-usher="say"]').textContent))
      .observe(document.querySelector('[data-usher="say"]'), {childList: true, characterData: true, subtree: true});
  });
  for (let p = 900; p > 880; p -= 2) {
    await s.set({place: p});
    await s.isText('place', String(p));
  }
  const said = await s.page.evaluate(() => window.said);
  check(said.length <= 1, said.join(' / '));
  check(await s.page.getAttribute('[data-usher="say"]', 'aria-live') === 'polite', 'polite');
});

scenario('the draw: countdown by the server\'s clock, then a place', {initial: {room_state: 'prequeue', place: null, skew_ms: 3600000, opens_in_ms: 90000}}, async (s) => {
  await s.page.goto(s.url);
  await s.isState('prequeue');
  check(/^00:0[01]:\d\d$/.test(await s.text('countdown')), 'by the browser\'s own clock it would be an hour more: ' + await s.text('countdown'));
  check(!(await s.visible('placebox')), 'no place before the opening');
  const c = await s.text('countdown');
  await until('ticking', async () => await s.text('countdown') !== c);
  await s.set({room_state: 'open', place: 321});
  await s.isText('place', '321');
  await s.isState('waiting');
});

scenario('the draw is put off, and put off for good: the countdown follows', {initial: {room_state: 'prequeue', place: null, opens_in_ms: 90000}, clock: true}, async (s) => {
  await s.page.goto(s.url);
  await s.isState('prequeue');
  check(/^00:0[01]:\d\d$/.test(await s.text('countdown')), await s.text('countdown'));
  await s.set({opens_in_ms: 7200000});
  await until('the new countdown', async () => { await clocked(s, 20000); return /^0[12]:/.test(await s.text('countdown')); });
  await s.set({opens_in_ms: -1}); // the countdown has run out: it asks again then, too
  await until('no countdown', async () => { await clocked(s, 20000); return /^00:00:00$|^$/.test(await s.text('countdown')); });
  const n = s.requests.filter((r) => r.endsWith('/now')).length;
  await until('asking on', async () => { await clocked(s, 20000); return s.requests.filter((r) => r.endsWith('/now')).length > n; });
  check((await s.get()).pages === 1, 'no reload');
});

scenario('too early, and the opening is moved: the countdown follows', {initial: {view: 'not_open', opens_in_ms: 6000000, enters_in_ms: 5700000, refuse: '403 room_not_open'}, clock: true}, async (s) => {
  await s.page.goto(s.url);
  await s.isState('not_open');
  check(/^01:3\d:\d\d$/.test(await s.text('countdown')), await s.text('countdown'));
  await s.set({room_state: 'not_open', opens_in_ms: 20000000});
  await until('the new countdown', async () => { await clocked(s, 20000); return /^05:/.test(await s.text('countdown')); });
  check((await s.get()).enters === 0, 'it entered');
});

scenario('too early: enters by itself when the prequeue opens', {initial: {view: 'not_open', opens_in_ms: 600000, enters_in_ms: 300000, refuse: '403 room_not_open'}, clock: true}, async (s) => {
  await s.page.goto(s.url);
  await s.isState('not_open');
  check((await s.get()).enters === 0, 'not before');
  await clocked(s, 250000);
  await s.set({refuse: '', place: null});
  await until('in the prequeue', async () => { await clocked(s, 35000); return await s.state() !== 'not_open'; });
  const r = await s.get();
  check(r.pages === 1 && r.issued === 1, JSON.stringify(r));
});

// The browser's clock, put forward.
const clocked = async (s, ms) => { await s.page.clock.fastForward(ms); };

scenario('closed: watches the door, then joins', {initial: {view: 'closed', room_state: 'closed', refuse: '403 room_closed'}, clock: true}, async (s) => {
  await s.page.goto(s.url);
  await s.isState('closed');
  await clocked(s, 31000);
  await until('a look', () => s.requests.some((r) => r.endsWith('/now')));
  await s.set({room_state: 'open', refuse: '', view: ''});
  await until('joined', async () => { await clocked(s, 31000); return await s.state() === 'waiting'; });
});

scenario('full: tries again by itself (room 25)', {initial: {view: 'full', refuse: '429 room_full'}, clock: true}, async (s) => {
  await s.page.goto(s.url);
  await s.isState('full');
  await until('a try', async () => { await clocked(s, 20000); return (await s.get()).enters > 0; });
  await s.isState('full');
  await s.set({refuse: ''});
  await until('joined', async () => { await clocked(s, 20000); return await s.state() === 'waiting'; });
  check((await s.get()).pages === 1, 'no reload');
});

scenario('the engine is away at first: joins when it is back', {initial: {view: 'unavailable', fail: 503}}, async (s) => {
  await s.page.goto(s.url);
  await s.isState('unavailable');
  await s.grows('enters');
  await s.set({fail: 0});
  await s.isState('waiting');
});

scenario('a dead origin is tried again, and costs nothing', {initial: {view: 'origin'}, clock: true}, async (s) => {
  await s.page.goto(s.url);
  await s.isState('origin');
  await until('let in', async () => { await clocked(s, 16000); return s.isInside(); });
});

scenario('next never leaves the site (room 22)', {initial: {next: '//evil.test/x'}}, async (s) => {
  await s.page.goto(s.url);
  await s.set({state: 'admitted'});
  await until('going home', () => s.page.url() === base + '/');
});

scenario('what the page says is text, never markup', {initial: {message: '<img src=x onerror="document.title=1">', place: 5}}, async (s) => {
  await s.page.goto(s.url);
  await s.grows('asks', 2);
  check(await s.page.evaluate(() => document.images.length) === 0, 'no element came of it');
  check((await s.text('message')).startsWith('<img'), await s.text('message'));
});

scenario('Korean by Accept-Language', {lang: 'ko-KR', initial: {eta: [480, 720]}}, async (s) => {
  await s.page.goto(s.url);
  check(await s.page.getAttribute('html', 'lang') === 'ko', 'lang');
  await s.isText('eta', '약 8~12분');
  await s.isText('behind', '4,000명');
});

scenario('an operator\'s folder: own page, own script, same life', {initial: {custom: true}}, async (s) => {
  await s.page.goto(s.url);
  check(await s.text('heading') === 'Please take a seat', await s.text('heading'));
  check(await s.page.evaluate(() => document.documentElement.dataset.own) === 'ran', 'its script ran under the policy');
  check(await s.page.evaluate(() => getComputedStyle(document.querySelector('.custom')).color) === 'rgb(176, 0, 32)', 'its style');
  await until('its logo', () => s.page.evaluate(() => document.images[0].naturalWidth > 0));
  await s.set({place: 9});
  await s.isText('place', '9');
  await s.set({state: 'admitted'});
  await s.inside();
});

scenario('the real back/forward cache brings the page back alive', {
  own: {ignoreDefaultArgs: ['--disable-back-forward-cache']}, initial: {sse: true, hold_ms: 60000, store: true},
}, async (s) => {
  await s.page.goto(s.url);
  await until('the stream', async () => (await s.get()).streams === 1);
  await s.page.evaluate(() => {
    window.mark = 'kept';
    window.addEventListener('pageshow', (e) => { window.persisted = e.persisted; });
  });
  await s.page.evaluate((to) => { location.href = to; }, base + '/inside/' + s.id);
  await s.inside();
  await until('no stream', async () => (await s.get()).streams === 0);
  await s.set({place: 31});
  await s.page.evaluate(() => history.back());
  await s.isText('place', '31');
  await until('the stream', async () => (await s.get()).streams === 1);
  check((await s.get()).issued === 1, 'same ticket');
  return (await s.page.evaluate(() => window.mark)) === 'kept' ? 'from the cache' : 'loaded anew (this browser did not cache it): ' + JSON.stringify(await s.page.evaluate(() => performance.getEntriesByType('navigation')[0].notRestoredReasons));
});

const browser = await launch();
const queue = scenarios.filter((s) => !filter || s.name.includes(filter));
async function worker() {
  for (let sc = queue.shift(); sc; sc = queue.shift()) {
    const began = Date.now();
    let s, ours;
    try {
      const {clock, own, ...options} = sc.options;
      const run = async () => {
        if (own) ours = await launch(own);
        s = await open(ours || browser, options);
        if (clock) await s.page.clock.install();
        return sc.run(s);
      };
      const note = await during(sc.name, () => within('the scenario', run(), 180000));
      check(s.faults.length === 0, 'the page complained: ' + s.faults.join('\n'));
      report(sc.name, null, (Date.now() - began) + ' ms ' + (note || ''));
    } catch (e) {
      if (s) e.message += '\nstate ' + JSON.stringify(await s.get().catch(() => ({}))) + '\nfaults ' + s.faults.join('\n') + '\nrequests ' + s.requests.slice(-8).join(', ');
      report(sc.name, e);
    } finally {
      if (s) await close(s.context);
      if (ours) await close(ours);
    }
  }
}
await Promise.all([worker(), worker(), worker(), worker()]);
await finish();
