// usher.js in a real Chromium. Each line of output is one check, or a wish ({Do}) that the test fulfils.
import { chromium } from 'playwright-core';
import { createInterface } from 'node:readline';

const [base] = process.argv.slice(2);
const out = (name, error = '') => console.log(JSON.stringify({ Name: name, Error: error && String(error.stack || error) }));
const lines = createInterface({ input: process.stdin });
const done = [];
const waits = [];
lines.on('line', (l) => { const w = waits.shift(); if (w) w(l); else done.push(l); });
const wish = async (what) => { console.log(JSON.stringify({ Do: what })); return done.shift() || new Promise((r) => waits.push(r)); };
const sleep = (ms) => new Promise((r) => setTimeout(r, ms));
function assert(ok, text) { if (!ok) throw new Error(text); }

const browser = await chromium.launch({ executablePath: process.env.USHER_CHROMIUM, args: ['--no-sandbox'] });
async function check(name, f) {
  if (process.env.USHER_ONLY && !name.includes(process.env.USHER_ONLY)) return;
  const context = await browser.newContext();
  try { await f(context); out(name); } catch (e) {
    const seen = await Promise.all(context.pages().map((p) => p.evaluate(() => JSON.stringify((window.got || []).filter((m) => m.type !== 'stats').slice(-12))).catch(() => '')));
    out(name, e + '\nseen: ' + seen.join('\n'));
  }
  await context.close();
  await wish('all');
}

// tab opens a page that follows a ticket of its browser; events gather in window.got.
async function tab(context, options = {}) {
  const page = await context.newPage();
  await page.goto(base + '/blank');
  await page.evaluate(async (o) => {
    await fetch('/v1/rooms/premiere/enter', { method: 'POST' });
    window.got = [];
    window.line = usher.join('premiere', o);
    window.line.on('*', (m) => window.got.push(m));
  }, options);
  return page;
}
const until = (page, f, arg) => page.waitForFunction(f, arg, { timeout: 45000, polling: 50 });
const over = (page, name) => until(page, (n) => (window.got.filter((m) => m.type === 'transport').pop() || {}).name === n, name);
const has = (page, type) => until(page, (t) => window.got.some((m) => m.type === t), type);

await check('a page is told its place over a WebSocket', async (c) => {
  const p = await tab(c);
  await over(p, 'ws');
  await has(p, 'rank');
  await has(p, 'stats');
});

await check('two tabs share one connection, and the second leads when the first goes', async (c) => {
  const a = await tab(c);
  await has(a, 'rank');
  const b = await tab(c);
  await has(b, 'rank'); // from the first
  assert(await a.evaluate(() => line.leads) && !await b.evaluate(() => line.leads), 'leaders');
  assert(JSON.parse(await wish('conns')).conns === 1, 'more than one connection');
  const ranks = await b.evaluate(() => got.filter((m) => m.type === 'rank').length);
  await a.close();
  await until(b, () => line.leads && got.filter((m) => m.type === 'transport').pop().name === 'ws');
  await until(b, (n) => got.filter((m) => m.type === 'rank').length > n, ranks); // by its own connection
});

await check('without WebSockets it is an event stream, without that a poll; and the winner is remembered', async (c) => {
  await wish('no ws');
  const p = await tab(c);
  await over(p, 'sse');
  await has(p, 'rank');
  await p.reload();
  const start = Date.now();
  await p.evaluate(() => { window.got = []; window.line = usher.join('premiere', {}); line.on('*', (m) => got.push(m)); });
  await over(p, 'sse');
  await has(p, 'rank');
  assert(await p.evaluate(() => !got.some((m) => m.type === 'link' && m.state === 'trouble')), 'it tried the WebSocket again');
  await wish('no sse');
  await p.evaluate(() => line.close());
  await p.evaluate(() => { sessionStorage.clear(); window.got = []; window.line = usher.join('premiere', {}); line.on('*', (m) => got.push(m)); });
  await over(p, 'poll');
  await has(p, 'rank');
  await wish('all');
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

await check('no message of a closed line arrives', async (c) => {
  const p = await tab(c);
  await has(p, 'rank');
  await p.evaluate(() => { line.close(); got.length = 0; });
  await sleep(1500);
  assert(await p.evaluate(() => got.length) === 0, 'it went on');
});

await check('an app outlives three crashes with its place, and gets in', async (c) => {
  const p = await c.newPage();
  await p.goto(base + '/spa/index.html');
  await p.waitForSelector('#place');
  await until(p, () => /^\d+$/.test(document.getElementById('place').textContent));
  await p.evaluate(() => { window.mark = 1; });
  const cookie = (await c.cookies())[0].value;
  for (let i = 0; i < 3; i++) {
    await wish('kill');
    await until(p, () => document.getElementById('app').dataset.link !== 'ok');
    await wish('back');
    await until(p, () => document.getElementById('app').dataset.link === 'ok');
  }
  assert(await p.evaluate(() => window.mark) === 1, 'it was loaded again');
  assert((await c.cookies())[0].value === cookie, 'another ticket');
  await wish('free');
  await p.waitForSelector('#shop', { timeout: 60000 });
});

await check('the waiting page outlives three crashes with its place, and goes on', async (c) => {
  await wish('narrow');
  const p = await c.newPage();
  await p.goto(base + '/wait/premiere?next=/blank');
  await p.evaluate(() => { window.mark = 1; });
  const cookie = (await c.cookies())[0].value;
  for (let i = 0; i < 3; i++) {
    await wish('kill');
    await sleep(1000);
    await wish('back');
    await sleep(1500);
  }
  assert(await p.evaluate(() => window.mark) === 1, 'it was loaded again');
  assert((await c.cookies())[0].value === cookie, 'another ticket');
  assert(p.url().includes('/wait/premiere'), 'it did not wait');
  await wish('free');
  await p.waitForURL('**/blank', { timeout: 60000 });
});

await browser.close();
process.exit(0);
