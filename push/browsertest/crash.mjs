// A single-page app and the waiting page in a real Chromium, while usher is killed and comes back.
import { base, check, end, wish, until, assert } from './lib.mjs';

await check('an app outlives three crashes with its place, and gets in', async (c) => {
  const p = await c.newPage();
  await p.goto(base + '/spa/index.html?api=' + (process.argv[3] || '/v1'));
  await until(p, () => { const e = document.getElementById('place'); return e && /^\d+$/.test(e.textContent); });
  const place = await p.textContent('#place');
  await p.evaluate(() => { window.mark = 1; });
  const cookie = (await c.cookies())[0].value;
  for (let i = 0; i < 3; i++) {
    await wish('kill');
    await until(p, () => document.getElementById('app').dataset.link !== 'ok');
    await wish('back');
    await until(p, () => document.getElementById('app').dataset.link === 'ok');
    assert(await p.textContent('#place') === place, 'place ' + await p.textContent('#place') + ', was ' + place);
  }
  assert(await p.evaluate(() => window.mark) === 1, 'it was loaded again');
  assert((await c.cookies())[0].value === cookie, 'another ticket');
  await wish('free');
  await p.waitForSelector('#shop');
});

await end();
