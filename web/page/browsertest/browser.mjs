// What the scripts share: a Chromium that reaches nothing but the loopback, and a report of one JSON line a check,
// which browser_test.go turns into subtests.
import {chromium} from 'playwright-core';

// STEP is what one step may take, and more than a slow machine needs.
export const STEP = 90000;

const browsers = [];
const running = new Set(); // what is going on, said when the test ends us

export async function launch(more) {
  const browser = await chromium.launch({
    ...more,
    executablePath: process.env.USHER_CHROMIUM || '/usr/bin/chromium', timeout: 180000, handleSIGTERM: false,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-sync', '--autoplay-policy=user-gesture-required'],
  });
  browsers.push(browser);
  return browser;
}

// context is a new one of browser's, in which no step waits for ever.
export async function context(browser, options) {
  const c = await within('a browser context', browser.newContext(options));
  c.setDefaultTimeout(STEP);
  return c;
}

// within is a deadline for what might never end, as when a renderer is lost.
export function within(what, promise, ms = STEP) {
  let timer;
  const late = new Promise((_, fail) => { timer = setTimeout(() => fail(new Error(what + ' took over ' + ms / 1000 + ' s')), ms); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

// during notes what is going on.
export async function during(name, f) {
  running.add(name);
  try { return await f(); } finally { running.delete(name); }
}

export async function finish() {
  for (const b of browsers) await close(b);
  process.exit(0);
}

export const close = (x) => within('closing', x.close(), 20000).catch(() => {});

process.on('SIGTERM', async () => { // the test has waited long enough
  console.error('ended in: ' + [...running].join('; '));
  await within('closing', Promise.all(browsers.map((b) => b.close())), 10000).catch(() => {});
  process.exit(1);
});

export function report(name, error, note) {
  process.stdout.write(JSON.stringify({name, error: error ? String(error.stack || error) : '', note: note || ''}) + '\n');
}

// until polls a condition with a deadline; nothing here waits by the clock alone.
export async function until(what, f, ms = STEP) {
  const end = Date.now() + ms;
  let last;
  for (;;) {
    try {
      last = await within('asking', (async () => f())(), ms);
      if (last) return last;
    } catch (e) {
      last = e;
    }
    if (Date.now() > end) throw new Error('waited in vain for: ' + what + ' (last: ' + (last && last.message || last) + ')');
    await new Promise((r) => setTimeout(r, 40));
  }
}

export function check(ok, what) {
  if (!ok) throw new Error(what);
}
