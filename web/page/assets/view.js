// What is on the screen. Elements are found by data-usher, each may be missing (an operator's template) or there more
// than once; what a state shows and hides is style.css's affair, by body[data-state].
const SAY_EVERY_MS = 45000;

function createView(d) {
  const text = d.text;
  const root = document.querySelector('[data-usher="page"]') || document.body;
  let saidAt = 0;
  let sayTimer = 0;
  let pending = '';
  let alarm = '';
  let flasher = 0;
  let title = document.title;

  function all(name) { return Array.prototype.slice.call(document.querySelectorAll('[data-usher="' + name + '"]')); }
  function set(name, value) {
    all(name).forEach(function (el) { if (el.textContent !== value) el.textContent = value; });
  }
  function show(name, on) { all(name).forEach(function (el) { el.hidden = !on; }); }
  function words(key, reason) { return text[key + '.' + reason] || text[key] || ''; }

  function clock(s) {
    set('countdown', s);
    all('countdown').forEach(function (el) { el.toggleAttribute('data-long', s.length > 8); });
  }

  function setTitle(s) {
    title = s;
    if (!flasher) document.title = s;
  }

  function flash(other) {
    let odd = false;
    unflash();
    flasher = setInterval(function () {
      odd = !odd;
      document.title = odd ? other : title;
    }, 1000);
    document.title = other;
  }

  function unflash() {
    clearInterval(flasher);
    flasher = 0;
    document.title = title;
  }

  // say tells a screen reader. Ordinary news is held back, so that a falling place does not talk without end, and the
  // newest wins; what is urgent is said now, together with what else is.
  function say(s, urgent) {
    if (urgent) {
      alarm = alarm ? alarm + ' ' + s : s;
      pending = '';
    } else {
      if (alarm) return;
      pending = s;
    }
    clearTimeout(sayTimer);
    sayTimer = setTimeout(function () {
      saidAt = Date.now();
      set('say', alarm || pending);
      alarm = pending = '';
    }, urgent ? 50 : Math.max(0, saidAt + SAY_EVERY_MS - Date.now()));
  }

  function render(m) {
    const changed = root.getAttribute('data-state') !== m.state;
    root.setAttribute('data-state', m.state);
    root.setAttribute('data-reason', m.reason || '');
    const lead = fill(words(m.state + '.lead', m.reason), {time: m.time, grace: d.grace, claim: d.claim});
    const heading = words(m.state + '.heading', m.reason);
    set('heading', heading);
    set('lead', lead);
    set('button', text[m.state + '.button'] || '');
    show('button', !!text[m.state + '.button']);

    const placed = m.place > 0;
    const place = placed ? group(m.place) : '';
    show('placebox', placed);
    if (placed) {
      all('place').forEach(function (el) {
        if (el.textContent === place) return;
        if (el.textContent) {
          el.classList.remove('fell');
          void el.offsetWidth; // starts the animation again
          el.classList.add('fell');
        }
        el.textContent = place;
        el.setAttribute('data-digits', place.length);
      });
      show('way', true);
      const percent = Math.max(2, Math.min(100, m.done * 100));
      all('bar').forEach(function (el) {
        el.style.setProperty('--done', percent.toFixed(2) + '%');
        el.setAttribute('aria-valuenow', Math.round(percent));
        el.setAttribute('aria-valuetext', text['label.place'] + ' ' + place);
      });
      set('from', m.first > 0 ? fill(text['bar.start'], {place: group(m.first)}) : '');
    }
    const behind = m.behind >= 0;
    const waiting = m.waiting >= 0;
    show('behindbox', behind);
    show('waitingbox', waiting);
    if (behind) set('behind', fill(text.people, {n: group(m.behind)}));
    if (waiting) set('waiting', fill(text.people, {n: group(m.waiting)}));
    const eta = m.eta ? sayEta(text, m.eta.low_s, m.eta.high_s) : text['eta.unknown'];
    set('eta', eta);
    set('message', m.message || '');
    show('messagebox', !!m.message);
    set('ticket', m.ticket || '');
    show('ticketbox', !!m.ticket);
    show('countbox', !!m.countdown);
    set('countlabel', text['label.countdown.' + m.state] || text['label.countdown']);
    clock(m.countdown || '');
    const key = m.state === 'waiting' && !placed ? 'waiting.title.unknown' : m.state + '.title';
    setTitle(fill(text[key], {place: place, countdown: m.countdown || '', name: d.name}));
    if (changed) say(heading + '. ' + lead, true);
    return {place: place, eta: eta};
  }

  return {
    all: all,
    render: render,
    say: say,
    flash: flash,
    unflash: unflash,
    show: show,
    tick: function (m) { // once a second, without the rest
      clock(m.countdown);
      setTitle(fill(text[m.state + '.title'], {countdown: m.countdown, name: d.name}));
    },
    notice: function (key) {
      set('notice', key ? text[key] : '');
      show('notice', !!key);
      if (key) say(text[key], true);
    },
    link: function (kind) {
      all('live').forEach(function (el) { el.setAttribute('data-link', kind); });
      const s = fill(text['live.' + kind], {grace: d.grace});
      const before = all('livetext')[0];
      if (before && before.textContent !== s && kind !== 'ok') say(s, true);
      set('livetext', s);
    },
    focusHeading: function () {
      const h = all('heading')[0];
      if (h && h.focus) h.focus();
    },
  };
}

// An optional chime, drawn with WebAudio so that there is no file. Browsers let a page sound only after a gesture:
// switching it on is one, and after a reload the next click or key is.
function createSound(view) {
  const Audio = window.AudioContext || window.webkitAudioContext;
  const boxes = view.all('sound');
  let ctx = null;
  if (!Audio) {
    boxes.forEach(function (b) { if (b.closest('label')) b.closest('label').hidden = true; });
    return function () {};
  }
  function ready() {
    if (!ctx) ctx = new Audio();
    if (ctx.state === 'suspended') ctx.resume();
  }
  function note(freq, at, long, loud) {
    const o = ctx.createOscillator();
    const g = ctx.createGain();
    o.frequency.value = freq;
    g.gain.setValueAtTime(0, ctx.currentTime + at);
    g.gain.linearRampToValueAtTime(loud, ctx.currentTime + at + 0.02);
    g.gain.exponentialRampToValueAtTime(0.0001, ctx.currentTime + at + long);
    o.connect(g);
    g.connect(ctx.destination);
    o.start(ctx.currentTime + at);
    o.stop(ctx.currentTime + at + long);
  }
  function on() { return boxes.some(function (b) { return b.checked; }); }
  boxes.forEach(function (b) {
    b.checked = keep.get('usher-sound') === '1';
    b.addEventListener('change', function () {
      boxes.forEach(function (o) { o.checked = b.checked; });
      keep.set('usher-sound', b.checked ? '1' : '');
      if (!b.checked) return;
      ready();
      note(880, 0, 0.25, 0.08);
    });
  });
  ['pointerdown', 'keydown'].forEach(function (kind) {
    document.addEventListener(kind, function () { if (on()) ready(); }, {passive: true});
  });
  return function chime() {
    if (!on()) return;
    ready();
    for (let i = 0; i < 3; i++) {
      note(659, i * 1.1, 0.5, 0.2);
      note(880, i * 1.1 + 0.16, 0.5, 0.2);
      note(1319, i * 1.1 + 0.32, 0.7, 0.2);
    }
  };
}
