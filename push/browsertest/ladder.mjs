// usher.js in a real Chromium: which way it takes, and when it takes another.
import { check, end, wish, tab, over, has, until, count, more, sleep, assert, hideable, hide, pause } from './lib.mjs';

await check('a page is told its place over a WebSocket', async (c) => {
  const p = await tab(c);
  await over(p, 'ws');
  await has(p, 'rank');
  await has(p, 'stats');
});

await check('without WebSockets it is an event stream, without that a poll; and the winner is remembered', async (c) => {
  await wish('no ws');
  const p = await tab(c);
  await over(p, 'sse');
  await has(p, 'rank');
  await p.reload();
  await p.evaluate(() => { window.got = []; window.line = usher.join('premiere', {}); line.on('*', (m) => got.push(m)); });
  await over(p, 'sse');
  await has(p, 'rank');
  assert(await p.evaluate(() => !got.some((m) => m.type === 'link' && m.state === 'trouble')), 'it tried the WebSocket again');
  await wish('no sse');
  await p.evaluate(() => line.close());
  await p.evaluate(() => { sessionStorage.clear(); window.got = []; window.line = usher.join('premiere', {}); line.on('*', (m) => got.push(m)); });
  await over(p, 'poll');
  await has(p, 'rank');
});

await check('a blackholed socket is left for another way, and found again when it works', async (c) => {
  const p = await tab(c, { quiet: 6000, probe: [500, 1000] });
  await over(p, 'ws');
  await has(p, 'rank');
  await wish('blackhole');
  await until(p, () => got.some((m) => m.type === 'transport' && m.name !== 'ws'));
  await until(p, () => { // its place comes by the other way
    const at = got.findIndex((m) => m.type === 'transport' && m.name !== 'ws');
    return got.slice(at).some((m) => m.type === 'rank');
  });
  await wish('all');
  await over(p, 'ws');
});

await check('35 s without a byte, by the page’s clock, are dead; three failures a rung; a poll; and upward again', async (c) => {
  const p = await tab(c, { probe: [20000, 25000] }, async (page) => { await page.clock.install(); await hideable(page); });
  await over(p, 'ws');
  await has(p, 'rank');
  const ranks = await count(p, 'rank');
  await hide(p, true);
  await hide(p, false); // so that its place is told now
  await more(p, 'rank', ranks);
  await pause(p);
  await wish('blackhole all');
  await p.clock.runFor(15000);
  const links = () => p.evaluate(() => got.filter((m) => m.type === 'link').map((m) => m.state).join());
  assert(await links() === 'ok', 'given up too early: ' + await links());
  await p.clock.runFor(21000);
  assert(await links() === 'ok,trouble', 'after 36 s: ' + await links());
  // The page's clock runs fast until it does something, and then stands still while the network answers.
  const asked = [];
  p.on('request', (r) => asked.push(r.url()));
  const advance = async (what, f) => {
    for (let i = 0; !f(); i++) {
      assert(i < 300, 'it never ' + what);
      await p.clock.runFor(1000);
      await sleep(30);
    }
  };
  await advance('polled', () => asked.some((u) => u.includes('/poll')));
  const events = () => asked.filter((u) => u.includes('/events')).length;
  assert(p.sockets.length === 3 && events() === 3, `${p.sockets.length} sockets, ${events()} streams`);
  const at = await p.evaluate(() => got.length);
  await wish('news'); // else the poll is held
  await over(p, 'poll');
  await until(p, (n) => got.slice(n).some((m) => m.type === 'stats' && m.message), at);
  assert((await links()).endsWith('ok'), await links());
  await wish('all');
  await advance('tried a stream', () => events() > 3);
  await over(p, 'sse');
  await advance('tried a WebSocket', () => p.sockets.length > 3);
  await over(p, 'ws');
});

await check('after a crash returns are spread over the window that the server gave', async (c) => { // cases/push 14
  const p = await tab(c, { share: false }, async (page) => {
    await page.clock.install();
    await page.addInitScript(() => {
      const Real = WebSocket;
      window.opened = 0;
      window.WebSocket = class extends Real { constructor(...a) { super(...a); window.opened++; } };
    });
  });
  await has(p, 'rank');
  await p.evaluate(() => { // as many as a ticket may have
    window.more = [1, 2, 3, 4, 5, 6, 7].map(() => usher.join('premiere', { share: false }));
    window.trouble = 0;
    window.live = 0;
    for (const l of [line, ...more]) l.on('link', (m) => { if (m.state === 'trouble') trouble++; if (m.state === 'ok') live++; });
  });
  await until(p, () => live === 8);
  await pause(p);
  await wish('kill');
  await wish('back');
  await until(p, () => trouble === 8);
  const opened = () => p.evaluate(() => window.opened);
  assert(await opened() === 8, 'back at once: ' + await opened());
  const steps = new Set();
  for (let ms = 100, n = 8; ms <= 2100; ms += 100) { // so few connections, so a window of 2 s
    await p.clock.runFor(100);
    if (await opened() > n) steps.add(ms);
    n = await opened();
  }
  assert(await opened() >= 16, `${await opened() - 8} came back within the window`);
  assert(steps.size >= 3, 'all at ' + [...steps]);
});

await check('no message of a closed line arrives', async (c) => {
  const p = await tab(c);
  await has(p, 'rank');
  await p.evaluate(() => { line.close(); got.length = 0; });
  await sleep(1500);
  assert(await p.evaluate(() => got.length) === 0, 'it went on');
});

await end();
