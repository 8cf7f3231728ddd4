// What the scripts share: a Chromium that reaches nothing but the loopback, and a report of one JSON line a check,
// which browser_test.go turns into subtests.
import {chromium} from 'playwright-core';

export function launch(more) {
  return chromium.launch({
    ...more,
    executablePath: process.env.USHER_CHROMIUM || '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-sync', '--autoplay-policy=user-gesture-required'],
  });
}

export function report(name, error, note) {
  process.stdout.write(JSON.stringify({name, error: error ? String(error.stack || error) : '', note: note || ''}) + '\n');
}

// until polls a condition with a deadline; nothing here waits by the clock alone.
export async function until(what, f, ms = 60000) {
  const end = Date.now() + ms;
  let last;
  for (;;) {
    try {
      last = await f();
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
