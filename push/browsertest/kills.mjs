// The waiting page in a real Chromium, in front of a usher process that is killed (SIGKILL) three times.
import { base, check, end, wish, until, assert, eventually } from './lib.mjs';

const text = (p, name) => p.textContent('[data-usher="' + name + '"]');

await check('the waiting page outlives three kills with its place, is not loaded again, and goes on', async (c) => {
  const p = await c.newPage();
  let loads = 0;
  p.on('request', (r) => { if (r.isNavigationRequest()) loads++; });
  await p.goto(base + '/wait/premiere?next=/health/live');
  await p.evaluate(() => { window.mark = 1; });
  const cookie = (await c.cookies())[0].value;
  const place = await text(p, 'place');
  assert(place === '3', 'two are ahead of her: ' + place);
  for (let i = 0; i < 3; i++) {
    await wish('kill');
    await until(p, () => document.querySelector('[data-usher="live"]').dataset.link !== 'ok');
    assert(await text(p, 'place') === place, 'the place is shown on');
    await wish('back');
    await until(p, () => document.querySelector('[data-usher="live"]').dataset.link === 'ok');
    assert(await text(p, 'place') === place, 'place ' + await text(p, 'place'));
  }
  await wish('one'); // ahead of her leaves: the news flow again
  await eventually('place 2', async () => await text(p, 'place') === '2');
  assert(await p.evaluate(() => window.mark) === 1 && loads === 1, 'it was loaded again');
  assert((await c.cookies()).find((k) => k.name.startsWith('usher-')).value === cookie, 'another ticket');
  await wish('free');
  await p.waitForURL('**/health/live');
});

await end();
