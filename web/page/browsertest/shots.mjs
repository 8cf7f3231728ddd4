// Takes a picture of every state in every language, colour scheme and width, and runs axe-core over them.
// node shots.mjs BASE OUT [FILTER]
import fs from 'node:fs';
import path from 'node:path';
import {createRequire} from 'node:module';
import {launch, report} from './browser.mjs';

const [base, out, filter] = process.argv.slice(2);
const axe = fs.readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const names = JSON.parse(process.env.USHER_SAMPLES);
const langs = process.env.USHER_LANGS.split(',');
// Languages differ in words alone, so one of them is judged whole and the others by their fullest states.
const judged = (name, lang) => lang === langs[0] || /^(waiting|prequeue|ended)$/.test(name);
fs.mkdirSync(out, {recursive: true});

const browser = await launch();
for (const width of [360, 1440]) {
  for (const theme of ['light', 'dark']) {
    for (const lang of langs) {
      const context = await browser.newContext({
        viewport: {width, height: width === 360 ? 740 : 900}, colorScheme: theme, locale: lang, reducedMotion: 'reduce',
        timezoneId: 'Asia/Seoul', bypassCSP: true, // axe-core is put into the page; the scenarios run under the CSP
      });
      const page = await context.newPage();
      for (const name of names) {
        if (filter && !name.startsWith(filter)) continue;
        const id = [name, lang, theme, width].join(' ');
        try {
          await page.goto(base + '/' + name + '?lang=' + lang);
          await page.screenshot({path: path.join(out, [name, lang, theme, width].join('-') + '.png'), fullPage: true});
          const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
          if (wide) throw new Error('the page scrolls sideways');
          if (!judged(name, lang)) {
            report(id);
            continue;
          }
          await page.addScriptTag({content: axe});
          const found = await page.evaluate(async () => {
            const r = await window.axe.run(document, {resultTypes: ['violations']});
            return r.violations.filter((v) => v.impact === 'serious' || v.impact === 'critical')
              .map((v) => v.id + ' (' + v.impact + '): ' + v.nodes.map((n) => n.html + ' ' + n.failureSummary).join(' | '));
          });
          if (found.length) throw new Error(found.join('\n'));
          report(id);
        } catch (e) {
          report(id, e);
        }
      }
      await context.close();
    }
  }
}
await browser.close();
