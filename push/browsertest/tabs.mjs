// usher.js in a real Chromium: tabs that share, hide, sleep, and are put away.
import { check, end, wish, tab, over, has, until, count, more, eventually, connsAre, assert, hideable, hide, cached, pause } from './lib.mjs';

const still = async (page) => { await page.clock.install(); await hideable(page); };
const leads = (p) => until(p, () => line.leads);
const sent = (p, socket, what) => p.sockets[socket].sent.filter((f) => f.includes(what));

await check('two tabs share one connection, and the second leads when the first goes', async (c) => {
  const a = await tab(c);
  await has(a, 'rank');
  const b = await tab(c);
  await has(b, 'rank'); // from the first
  await connsAre(1);
  // The first leads, unless it was too slow to say so in time.
  const [one, other] = await a.evaluate(() => line.leads) ? [a, b] : [b, a];
  assert(!await other.evaluate(() => line.leads), 'both lead');
  const ranks = await count(other, 'rank');
  await one.close();
  await leads(other);
  await over(other, 'ws');
  await more(other, 'rank', ranks); // by its own connection
});

await check('a leader that nobody looks at gives way to a tab that is looked at', async (c) => {
  const a = await tab(c, {}, hideable);
  await has(a, 'rank');
  const b = await tab(c, {}, hideable);
  await has(b, 'rank');
  await hide(a, true);
  await leads(b);
  await until(a, () => !line.leads);
  await connsAre(1);
  const ranks = await count(a, 'rank');
  await hide(b, true);
  await hide(a, false); // and back
  await leads(a);
  await more(a, 'rank', ranks);
});

await check('a leader that is asleep, holding the lock, is not waited for', async (c) => {
  const a = await c.newPage();
  await a.goto(process.argv[2] + '/blank');
  await a.evaluate(() => { navigator.locks.request('usher:' + location.origin + '/v1:premiere:', () => new Promise(() => {})); });
  const b = await tab(c);
  await leads(b);
  await has(b, 'rank');
});

await check('without locks, as on plain http, each tab has its own connection', async (c) => {
  const bare = (p) => p.addInitScript(() => Object.defineProperty(Navigator.prototype, 'locks', { get: () => undefined }));
  const a = await tab(c, {}, bare);
  const b = await tab(c, {}, bare);
  await has(a, 'rank');
  await has(b, 'rank');
  await connsAre(2);
});

await check('hidden, its place comes seldom; seen again, at once', async (c) => {
  const p = await tab(c, {}, still);
  await has(p, 'rank');
  await pause(p); // or a slow answer would count as none
  assert(sent(p, 0, 'hidden:1').length === 0, 'hidden from the start');
  await hide(p, true);
  await eventually('told', () => sent(p, 0, 'hidden:1').length === 1);
  const ranks = await count(p, 'rank');
  await hide(p, false);
  await more(p, 'rank', ranks);
  assert(sent(p, 0, 'destination:/topic/rank/').length === 3 && !sent(p, 0, 'destination:/topic/rank/').pop().includes('hidden'), 'subscribed anew');
  assert(p.sockets.length === 1, 'one socket all along');
});

await check('a stream or poll begun hidden is begun anew when seen', async (c) => {
  for (const rung of ['sse', 'poll']) {
    const asked = [];
    const p = await tab(c, { from: [rung], share: false }, async (page) => {
      await hideable(page);
      page.on('request', (r) => { if (/events|poll/.test(r.url())) asked.push(r.url()); });
    });
    await has(p, 'rank');
    await hide(p, true);
    await cached(p, true);
    await cached(p, false);
    await eventually('asked hidden', () => asked.some((u) => u.includes('hidden=1')));
    const n = asked.length;
    await hide(p, false);
    await eventually('asked seen', () => asked.slice(n).some((u) => !u.includes('hidden=1')));
    await p.close();
  }
});

await check('put into the back/forward cache it hangs up, and another tab leads; taken out it goes on', async (c) => {
  const a = await tab(c);
  await has(a, 'rank');
  await cached(a, true);
  await connsAre(0);
  const b = await tab(c);
  await leads(b);
  await has(b, 'rank');
  const ranks = await count(a, 'rank');
  await cached(a, false);
  await more(a, 'rank', ranks); // from the other tab
  await b.close();
  await leads(a);
});

for (const [how, act] of [
  ['timers that jump, as after sleep', (p) => p.evaluate(() => { window.skew = 600000; })],
  ['being looked at', async (p) => { await hide(p, true); await hide(p, false); }],
  ['being online again', (p) => p.evaluate(() => window.dispatchEvent(new Event('online')))],
]) {
  await check('a socket that died in silence is found out by ' + how, async (c) => {
    const p = await tab(c, { quiet: 600000 }, async (page) => {
      await hideable(page);
      await page.addInitScript(() => { const real = Date.now; window.skew = 0; Date.now = () => real() + window.skew; });
    });
    await has(p, 'rank');
    await wish('stall');
    const ranks = await count(p, 'rank');
    await act(p);
    await more(p, 'transport', 1);
    await more(p, 'rank', ranks);
    assert(p.sockets.length > 1, 'it is the same socket');
  });
}

await check('a socket that lives is left alone by all of these', async (c) => {
  const p = await tab(c, {}, still);
  await has(p, 'rank');
  await pause(p);
  await hide(p, true);
  await hide(p, false);
  await p.evaluate(() => window.dispatchEvent(new Event('online')));
  await eventually('answered', () => p.sockets[0].got.filter((f) => f.includes('RECEIPT')).length === 2);
  await p.clock.runFor(3500); // past the time in which it must answer
  await p.evaluate(() => 0);
  assert(p.sockets.length === 1, p.sockets.length + ' sockets');
});

await end();
