// What the page asks for once; its news come by usher.js.
const CALL_MS = 10000;

function rand(low, high) { return low + Math.random() * (high - low); }

// Full jitter: anything up to the doubled step, capped at a minute.
function backoff(fails) { return rand(250, Math.min(60000, 1000 * Math.pow(2, fails))); }

// call resolves with {status, body, retryMs}; status 0 is a network that failed.
async function call(method, path, body) {
  const c = new AbortController();
  const timer = setTimeout(function () { c.abort(); }, CALL_MS);
  try {
    const init = {method: method, headers: {Accept: 'application/json'}, credentials: 'same-origin', cache: 'no-store', redirect: 'error', signal: c.signal};
    if (body !== undefined) {
      init.headers['Content-Type'] = 'application/json';
      init.body = JSON.stringify(body);
    }
    const r = await fetch(d.api + '/rooms/' + encodeURIComponent(d.room) + path, init);
    let doc = null;
    if (r.status !== 204) {
      try { doc = await r.json(); } catch (e) { doc = null; }
    }
    if (r.ok && r.status !== 204 && (doc === null || typeof doc !== 'object')) return {status: 0, body: {}, retryMs: 0};
    const after = parseInt(r.headers.get('Retry-After') || '0', 10);
    return {status: r.status, body: doc || {}, retryMs: after > 0 ? Math.min(after, 600) * 1000 : 0};
  } catch (e) {
    return {status: 0, body: {}, retryMs: 0};
  } finally {
    clearTimeout(timer);
  }
}
