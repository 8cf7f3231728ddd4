// Shows every state in every language, colour scheme and width, and runs axe-core over them; takes pictures if told where to.
// node shots.mjs BASE OUT [FILTER]
import fs from 'node:fs';
import path from 'node:path';
import {createRequire} from 'node:module';
import {launch, context, report, within, during, close, finish} from './browser.mjs';

const [base, out, filter] = process.argv.slice(2); // no OUT, no pictures
const axe = fs.readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const names = JSON.parse(process.env.USHER_SAMPLES).filter((n) => !filter || n.startsWith(filter));
const langs = process.env.USHER_LANGS.split(',');
// Languages differ in words alone, so one of them is judged whole and the others by their fullest states; widths differ in
// no colour, so each theme is judged at one of them. All are looked at for what does not fit.
const judged = (name, lang, theme, width) => (lang === langs[0] || /^(waiting|prequeue|ended)$/.test(name)) && (width === 360) === (theme === 'dark');
if (out) fs.mkdirSync(out, {recursive: true});

const browser = await launch();

async function state(page, name, lang, theme, width) {
  await page.setViewportSize({width, height: width === 360 ? 740 : 900});
  await page.emulateMedia({colorScheme: theme});
  if (out) await page.screenshot({path: path.join(out, [name, lang, theme, width].join('-') + '.png'), fullPage: true});
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  if (wide) throw new Error('the page scrolls sideways');
  if (!judged(name, lang, theme, width)) return;
  const found = await page.evaluate(async () => {
    const r = await window.axe.run(document, {resultTypes: ['violations']});
    return r.violations.filter((v) => v.impact === 'serious' || v.impact === 'critical')
      .map((v) => v.id + ' (' + v.impact + '): ' + v.nodes.map((n) => n.html + ' ' + n.failureSummary).join(' | '));
  });
  if (found.length) throw new Error(found.join('\n'));
}

// look shows a state in all its looks.
async function look(page, name, lang) {
  const looks = [[360, 'light'], [360, 'dark'], [1440, 'light'], [1440, 'dark']];
  const id = (width, theme) => [name, lang, theme, width].join(' ');
  try {
    await page.goto(base + '/' + name + '?lang=' + lang);
    await page.addScriptTag({content: axe});
  } catch (e) {
    return looks.forEach(([width, theme]) => report(id(width, theme), e));
  }
  for (const [width, theme] of looks) {
    try {
      await during(id(width, theme), () => within('it', state(page, name, lang, theme, width)));
      report(id(width, theme));
    } catch (e) {
      report(id(width, theme), e);
    }
  }
}

const queue = langs.flatMap((lang) => names.map((name) => [name, lang]));
async function worker() {
  for (let next = queue.shift(); next; next = queue.shift()) {
    const [name, lang] = next;
    let c;
    try {
      c = await context(browser, {
        locale: lang, reducedMotion: 'reduce', timezoneId: 'Asia/Seoul', bypassCSP: true, // axe-core is put into the page; the scenarios run under the CSP
      });
      await look(await within('a page', c.newPage()), name, lang);
    } catch (e) {
      report(name + ' ' + lang, e);
    }
    if (c) await close(c);
  }
}
await Promise.all([worker(), worker()]);
await finish();
