// The checks of stomp-checks.mjs in a page of a real Chromium.
import { launch, end, within } from './lib.mjs';
import { say, free, out } from './stomp-side.mjs';

const base = process.argv[2];
const browser = await launch();
const page = await within(browser.newPage(), 'a page');
page.setDefaultTimeout(90000);
for (const [name, f] of Object.entries({ say, free, out })) await page.exposeFunction(name, f);
await page.goto(base + '/blank');
await page.addScriptTag({ url: '/stomp/stomp.umd.js' });
await page.evaluate(async (base) => {
  const { checks } = await import('/stomp-checks.mjs');
  await checks({ Client: StompJs.Client, base, out, say, free });
}, base);
await end();
