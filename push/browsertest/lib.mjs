// What the scripts share. Each line of output is one check, or a wish ({Do}) that the test fulfils and answers.
import { chromium } from 'playwright-core';
import { createInterface } from 'node:readline';

export const [base] = process.argv.slice(2);
export const out = (name, error = '') => console.log(JSON.stringify({ Name: name, Error: error && String(error.stack || error) }));
export const sleep = (ms) => new Promise((r) => setTimeout(r, ms));
export function assert(ok, text) { if (!ok) throw new Error(text); }

// Each step has WAIT, each check CHECK: more than a slow machine needs, and less than the test's own limit, so that what
// hangs is named.
const WAIT = 90000;
const CHECK = 180000;

// within is a deadline for what might never end, as when a renderer is lost.
export function within(promise, what, ms = WAIT) {
  let timer;
  const late = new Promise((_, fail) => { timer = setTimeout(() => fail(new Error('not within ' + ms / 1000 + ' s: ' + what)), ms); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

const done = [];
const waits = [];
let lines = null;
export async function wish(what) {
  if (!lines) {
    lines = createInterface({ input: process.stdin });
    lines.on('line', (l) => { const w = waits.shift(); if (w) w(l); else done.push(l); });
  }
  console.log(JSON.stringify({ Do: what }));
  return done.shift() || within(new Promise((r) => waits.push(r)), 'the wish "' + what + '"');
}

let browser = null;
let now = 'nothing yet';
export async function launch() {
  browser = await chromium.launch({
    executablePath: process.env.USHER_CHROMIUM, timeout: 180000, handleSIGTERM: false,
    args: ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
  return browser;
}
process.on('SIGTERM', async () => { // the test has waited long enough
  console.error('ended in: ' + now);
  if (browser) await within(browser.close(), 'closing', 10000).catch(() => {});
  process.exit(1);
});

export async function check(name, f) {
  if (process.env.USHER_ONLY && !name.includes(process.env.USHER_ONLY)) return;
  now = name;
  let context = null;
  try {
    browser = browser || await launch();
    context = await within(browser.newContext(), 'a browser context');
    context.setDefaultTimeout(WAIT);
    await within(f(context), 'the check', CHECK);
    out(name);
  } catch (e) {
    const seen = await Promise.all((context ? context.pages() : []).map((p) => within(p.evaluate(() => location.pathname + ' ' + document.body.innerText.slice(0, 200) +
      ' ' + JSON.stringify((window.got || []).filter((m) => m.type !== 'stats').slice(-12))), 'the page', 10000).catch((x) => x.message)));
    out(name, e.stack + '\nseen: ' + seen.join('\n'));
  }
  if (context) await within(context.close(), 'closing', 20000).catch(() => {});
  await wish('all');
}
export async function end() {
  if (browser) await within(browser.close(), 'closing', 20000).catch(() => {});
  process.exit(0);
}

// tab opens a page that follows a ticket of its browser; events gather in window.got, sockets in page.sockets.
export async function tab(context, options = {}, before) {
  const page = await context.newPage();
  page.sockets = [];
  page.on('websocket', (s) => {
    const seen = { sent: [], got: [] };
    page.sockets.push(seen);
    s.on('framesent', (f) => seen.sent.push(String(f.payload)));
    s.on('framereceived', (f) => seen.got.push(String(f.payload)));
  });
  if (before) await before(page);
  await page.goto(base + '/blank');
  await page.evaluate(async (o) => {
    await fetch('/v1/rooms/premiere/enter', { method: 'POST' });
    window.got = [];
    window.line = usher.join('premiere', o);
    window.line.on('*', (m) => window.got.push(m));
  }, options);
  return page;
}
export const until = (page, f, arg) => page.waitForFunction(f, arg, { timeout: WAIT, polling: 50 });
export const over = (page, name) => until(page, (n) => (window.got.filter((m) => m.type === 'transport').pop() || {}).name === n, name);
export const has = (page, type) => until(page, (t) => window.got.some((m) => m.type === t), type);
export const count = (page, type) => page.evaluate((t) => window.got.filter((m) => m.type === t).length, type);
export const more = (page, type, than) => until(page, ([t, n]) => window.got.filter((m) => m.type === t).length > n, [type, than]);

// eventually polls what the test's side knows.
export async function eventually(what, f) {
  for (const end = Date.now() + WAIT; ; await sleep(50)) {
    const v = await within(f(), what);
    if (v) return v;
    if (Date.now() > end) throw new Error('never: ' + what);
  }
}
export const conns = async () => JSON.parse(await wish('conns')).conns;
export const connsAre = (n) => eventually(n + ' connections', async () => await conns() === n);

// A page that can be told that nobody looks at it.
export const hideable = (page) => page.addInitScript(() => {
  window.hiddenNow = false;
  Object.defineProperty(Document.prototype, 'hidden', { configurable: true, get: () => window.hiddenNow });
});
export const hide = (page, on) => page.evaluate((v) => { window.hiddenNow = v; document.dispatchEvent(new Event('visibilitychange')); }, on);
export const cached = (page, on) => page.evaluate((v) => window.dispatchEvent(new PageTransitionEvent(v ? 'pagehide' : 'pageshow', { persisted: true })), on);

// pause stops a page's clock (page.clock.install()), a few seconds from now: not so far that it takes it for sleep.
export async function pause(page) {
  for (let i = 0; ; i++) {
    try { return await page.clock.pauseAt(await page.evaluate(() => Date.now() + 3000)); } catch (e) {
      if (i > 20 || !/past/.test(e.message)) throw e; // the machine was slow, and it is later already
    }
  }
}
