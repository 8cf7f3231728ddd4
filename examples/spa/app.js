// A single-page app that waits in line without leaving its page. It asks usher for a place, follows it with usher.js,
// and goes on when it is admitted. See README.md for where usher.js and the API are.
const app = document.getElementById('app');
const room = new URLSearchParams(location.search).get('room') || 'premiere';
const api = new URLSearchParams(location.search).get('api') || '/v1';
const show = (...parts) => app.replaceChildren(...parts.map((p) => {
  const e = document.createElement('p');
  e.textContent = p.text || p;
  if (p.id) e.id = p.id;
  return e;
}));

async function call(method, path) {
  const r = await fetch(`${api}/rooms/${room}/${path}`, {method, cache: 'no-store'});
  const body = r.status === 204 ? {} : await r.json();
  if (!r.ok) throw Object.assign(new Error(body.detail || r.statusText), {status: r.status});
  return body;
}

async function start() {
  let visit;
  try {
    visit = await call('POST', 'enter');
  } catch (e) {
    show(`Not now: ${e.message}`);
    setTimeout(start, 5000 + Math.random() * 5000);
    return;
  }
  if (visit.state === 'admitted') return enterShop();

  const line = usher.join(room, {api});
  let best = Infinity; // a place never rises on the screen
  let notice = '';
  const draw = () => show({id: 'place', text: best < Infinity ? String(best) : '…'}, notice || 'people up to your turn. You can leave this tab in the background.');
  line
    .on('rank', (m) => { if (m.place) best = Math.min(best, m.place); draw(); })
    .on('stats', (m) => { notice = m.message; draw(); })
    .on('link', (m) => { app.dataset.link = m.state; })
    .on('transport', (m) => { app.dataset.transport = m.name; })
    .on('admission', () => { document.title = 'Your turn!'; enterShop(line); })
    .on('timeout', (m) => show(`Your place has ended (${m.reason}).`))
    .on('lost', start);
  window.line = line;
}

// The admission is used by its first claim; renew keeps the session while the shop is open.
async function enterShop(line) {
  try {
    const visit = await call('POST', 'claim');
    show({id: 'shop', text: 'Welcome in. Choose your seats.'});
    const renew = () => call('POST', 'renew').then((v) => setTimeout(renew, v.admission.renew_after_ms), () => setTimeout(renew, 5000));
    setTimeout(renew, visit.admission.renew_after_ms);
  } catch (e) {
    // 429 and 5xx say "not now"; anything else that has a status says that there is nothing to claim.
    if (e.status && e.status !== 429 && e.status < 500) return show(`Your turn has passed: ${e.message}`);
    setTimeout(() => enterShop(line), 1000 + Math.random() * 2000);
  }
}

start();
