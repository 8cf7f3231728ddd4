// A service whose sessions live in the memory of one process, as with a headless browser or a live connection for each
// account. It needs no library: one header says to the sidecar when a session is here, and when it is gone.
'use strict';
const http = require('node:http');

const sessions = new Map(); // account → { since, views, fence }

const server = http.createServer(async (req, res) => {
  const url = new URL(req.url, 'http://app');
  const account = req.headers['x-account'];
  const answer = (status, doc, headers = {}) => {
    res.writeHead(status, { 'content-type': 'application/json', ...headers });
    res.end(JSON.stringify(doc) + '\n');
  };

  // The sidecar says that a session must end here: it was lost, was idle, or a request hung in it.
  if (url.pathname === '/usher/close' && req.method === 'POST') {
    let body = '';
    for await (const part of req) body += part;
    const { key, reason } = JSON.parse(body);
    sessions.delete(key);
    console.error(`closed ${key}: ${reason}`);
    return answer(200, {});
  }
  if (url.pathname === '/') return answer(200, { pid: process.pid, sessions: sessions.size });
  if (!account) return answer(400, { error: 'X-Account is missing' });

  if (url.pathname === '/login') {
    // Only one login of an account runs at a time, in all instances together: the sidecar has claimed it.
    if (!sessions.has(account)) {
      await new Promise((done) => setTimeout(done, 50)); // a login takes its time
      sessions.set(account, { since: Date.now(), views: 0, fence: req.headers['usher-fence'] });
      console.error(`logged in ${account}`);
    }
    return answer(200, { account, pid: process.pid, fence: sessions.get(account).fence },
      { 'Usher-Session': `open; key=${encodeURIComponent(account)}` });
  }
  const session = sessions.get(account);
  if (!session) return answer(401, { error: 'log in first' });
  if (url.pathname === '/logout') {
    sessions.delete(account);
    return answer(200, {}, { 'Usher-Session': `close; key=${encodeURIComponent(account)}` });
  }
  // One request of an account at a time: this would lose views otherwise.
  const views = session.views;
  await new Promise((done) => setTimeout(done, 2));
  session.views = views + 1;
  return answer(200, { account, pid: process.pid, views: session.views });
});

server.listen(Number(process.env.PORT || 3000), '127.0.0.1', () => console.log(`listening ${server.address().port}`));
if (process.env.END_WITH_STDIN) process.stdin.on('end', () => process.exit(0)).resume(); // for the test: it ends with its parent
