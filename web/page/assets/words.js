// Wording, without any state: the twin of words.go. Both are tested by testdata/words.json.
function fill(s, values) {
  return String(s || '').replace(/\{([a-z_]+)\}/g, function (whole, key) {
    return values && values[key] !== undefined ? String(values[key]) : whole;
  });
}

function group(n) {
  return String(n).replace(/\B(?=(\d{3})+(?!\d))/g, ',');
}

function sayEta(text, lowS, highS) {
  const low = Math.max(Math.min(lowS, highS), 0);
  const high = Math.max(lowS, highS, 0);
  if (high <= 60) return text['eta.moment'];
  let lo = Math.floor(low / 60);
  let hi = Math.ceil(high / 60);
  const minutes = hi <= 90;
  if (!minutes) {
    const step = hi > 300 ? 60 : 10;
    lo = Math.floor(lo / step) * step;
    hi = Math.ceil(hi / step) * step;
  }
  const say = minutes ? sayMinutes : sayHours;
  if (lo === 0) return fill(text['eta.upto'], {b: say(text, hi)});
  if (lo === hi) return fill(text['eta.one'], {a: say(text, hi)});
  if (minutes) return fill(text['eta.range_minutes'], {a: lo, b: hi});
  return fill(text['eta.range'], {a: say(text, lo), b: say(text, hi)});
}

function sayMinutes(text, n) { return fill(text['eta.minutes'], {m: n}); }

function sayHours(text, n) {
  const h = Math.floor(n / 60);
  const m = n % 60;
  if (h === 0) return sayMinutes(text, n);
  if (m === 0) return fill(text['eta.hours'], {h: h});
  return fill(text['eta.hours_minutes'], {h: h, m: m});
}

function sayCountdown(text, ms) {
  const s = Math.max(Math.floor(ms / 1000), 0);
  const two = function (n) { return (n < 10 ? '0' : '') + n; };
  const days = Math.floor(s / 86400);
  const clock = two(Math.floor(s % 86400 / 3600)) + ':' + two(Math.floor(s % 3600 / 60)) + ':' + two(s % 60);
  return days > 0 ? fill(text['countdown.days'], {n: group(days)}) + ' ' + clock : clock;
}

// A moment in the visitor's own time zone, with its day only where that is not today.
function sayTime(lang, when, now) {
  const form = {hour: 'numeric', minute: '2-digit'};
  if (when.toDateString() !== now.toDateString()) {
    form.month = 'long';
    form.day = 'numeric';
  }
  try {
    return new Intl.DateTimeFormat(lang, form).format(when);
  } catch (e) {
    return when.toLocaleString();
  }
}
