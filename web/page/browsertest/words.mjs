// words.js against the table that words.go is tested by: node words.mjs
import fs from 'node:fs';
import vm from 'node:vm';

const script = vm.createContext({Intl});
vm.runInContext(fs.readFileSync('../assets/words.js', 'utf8'), script);
for (const c of JSON.parse(fs.readFileSync('../testdata/words.json', 'utf8'))) {
  script.text = JSON.parse(fs.readFileSync('../assets/text/' + c.lang + '.json', 'utf8'));
  script.a = c.args;
  const got = vm.runInContext({eta: 'sayEta(text, a[0], a[1])', number: 'group(a[0])', countdown: 'sayCountdown(text, a[0] * 1000)'}[c.say], script);
  process.stdout.write(JSON.stringify({name: [c.say, c.lang, c.args].join(' '), error: got === c.want ? '' : got + ', want ' + c.want}) + '\n');
}
