// Express middleware that lets through only visitors whom usher has let in. See ../README.md for the rules.
//
//   app.use("/checkout", requireAdmission({ room: "premiere", jwks: "https://tickets.example/.well-known/jwks.json" }));
//   … req.admission = { room, ticketId, expires }

import { createLocalJWKSet, decodeProtectedHeader, errors, jwtVerify } from "jose";

const LEEWAY_S = 60;
const MAX_TOKEN = 4096;
const FETCH_EVERY_MS = 60_000; // no two fetches start within this
const REFRESH_AFTER_MS = 300_000; // a new key is published ten minutes before it signs
const FETCH_TIMEOUT_MS = 5_000;
const MAX_JWKS = 256 << 10;

class Refusal extends Error {
  constructor(status, code, title, detail, retryAfter) {
    super(code);
    Object.assign(this, { status, code, title, detail, retryAfter });
  }
}

/** The keys of usher: fetched seldom, by one request at a time, and kept while usher is away. */
class Keys {
  #url;
  #known = null; // { ids, getKey, at }
  #flight = null;
  #tried = -Infinity;
  #failed = null;

  constructor(url) {
    this.#url = new URL(url);
  }

  /** Resolves to a key getter for jose. Rejects when nothing can be said about a key of this name. */
  async forKey(kid) {
    if (this.#known?.ids.has(kid)) {
      if (performance.now() - this.#known.at >= REFRESH_AFTER_MS) this.#fetch(); // in the background
      return this.#known.getKey;
    }
    await this.#fetch();
    if (this.#known?.ids.has(kid)) return this.#known.getKey;
    if (this.#failed || !this.#known) {
      const wait = Math.ceil((this.#tried + FETCH_EVERY_MS - performance.now()) / 1000);
      throw new Refusal(503, "keys_unavailable", "Admissions cannot be checked at the moment",
        "The signing keys of the waiting room could not be fetched, so the token cannot be judged yet. The server's log says why.",
        Math.max(wait, 1));
    }
    return this.#known.getKey;
  }

  #fetch() {
    const now = performance.now(); // not Date.now: a clock that is set back must not stop fetching
    if (this.#flight || now - this.#tried < FETCH_EVERY_MS) return this.#flight;
    this.#tried = now;
    this.#flight = this.#get()
      .then((jwks) => {
        this.#known = { ids: new Set(jwks.keys.map((k) => k.kid)), getKey: createLocalJWKSet(jwks), at: performance.now() };
        this.#failed = null;
      })
      .catch((err) => {
        this.#failed = err;
        console.error(`admission: fetching ${this.#url} failed: ${err.cause?.message ?? err.message}`);
      })
      .finally(() => (this.#flight = null));
    return this.#flight;
  }

  async #get() {
    const answer = await fetch(this.#url, {
      redirect: "error", // keys come from the address given and from nowhere else
      headers: { accept: "application/json" },
      signal: AbortSignal.timeout(FETCH_TIMEOUT_MS),
    });
    if (answer.status !== 200) throw new Error(`usher answered ${answer.status}`);
    let text = "";
    const decoder = new TextDecoder();
    for await (const chunk of answer.body) {
      text += decoder.decode(chunk, { stream: true });
      if (text.length > MAX_JWKS) throw new Error("the answer is too long");
    }
    const keys = JSON.parse(text).keys?.filter((k) => k.kty === "OKP" && k.crv === "Ed25519" && k.kid);
    if (!keys?.length) throw new Error("the answer holds no Ed25519 key");
    return { keys };
  }
}

/** Judges a token. Resolves to its claims; rejects with a Refusal. */
async function judge(token, room, keys) {
  const bad = (detail) => new Refusal(401, "token_malformed", "Not a valid admission token", detail);
  if (!token) {
    throw new Refusal(401, "token_missing", "No admission token",
      `This needs an admission to room ${room}: enter the room first, and send the token in X-Usher-Token.`);
  }
  if (token.length > MAX_TOKEN) throw bad("What was sent is not an admission token of usher.");
  let head;
  try {
    head = decodeProtectedHeader(token);
  } catch {
    throw bad("What was sent is not an admission token of usher.");
  }
  if (head.alg !== "EdDSA") {
    throw new Refusal(401, "wrong_algorithm", "Not a valid admission token", "The token is not signed with EdDSA, which is all that is accepted.");
  }
  if (head.typ !== "usher-admission+jwt" || head.jwk) throw bad("What was sent is not an admission token of usher.");
  if (typeof head.kid !== "string") throw new Refusal(401, "unknown_key", "Not a valid admission token", "The token names no signing key.");

  const getKey = await keys.forKey(head.kid);
  let claims;
  try {
    ({ payload: claims } = await jwtVerify(token, getKey, {
      algorithms: ["EdDSA"],
      // Time is judged below, so that the answer can say by how much it is off.
      currentDate: new Date(0),
      clockTolerance: Number.MAX_SAFE_INTEGER,
      requiredClaims: ["sub", "aud", "exp", "nbf", "iat"],
    }));
  } catch (err) {
    if (err instanceof errors.JWKSNoMatchingKey) {
      throw new Refusal(401, "unknown_key", "Not a valid admission token", "The token names a signing key that usher does not publish.");
    }
    if (err instanceof errors.JWSSignatureVerificationFailed) {
      throw new Refusal(401, "bad_signature", "Not a valid admission token", "The token's signature is wrong: it was changed, or signed by somebody else.");
    }
    if (err instanceof errors.JWTClaimValidationFailed && err.claim === "aud") {
      throw new Refusal(403, "wrong_room", "Admitted to another room", `The token is not for room ${room}.`);
    }
    throw bad("What was sent is not an admission token of usher.");
  }

  // One audience exactly: a token for several rooms would be an admission nobody counted.
  const aud = Array.isArray(claims.aud) && claims.aud.length === 1 ? claims.aud[0] : claims.aud;
  if (aud !== room) throw new Refusal(403, "wrong_room", "Admitted to another room", `The token is not for room ${room}.`);
  if (typeof claims.sub !== "string" || claims.sub === "" || typeof claims.iat !== "number") throw bad("The token lacks sub or iat.");

  const now = Date.now() / 1000;
  const ahead = Math.max(claims.nbf, claims.iat) - now;
  if (ahead > LEEWAY_S) {
    throw new Refusal(401, "token_not_yet", "The clocks differ",
      `The token begins ${Math.round(ahead)}s from now by this server's clock: the clocks of this server and of usher differ by at least that much, ` +
      `and ${LEEWAY_S}s is forgiven. Set both by NTP.`);
  }
  const past = now - claims.exp;
  if (past >= LEEWAY_S) {
    throw new Refusal(401, "token_expired", "The admission has ended",
      `The token expired ${Math.round(past)}s ago by this server's clock, and ${LEEWAY_S}s is forgiven. Renew it, or enter again.`);
  }
  return claims;
}

function tokenOf(req) {
  const own = req.headers["x-usher-token"]; // several are joined by commas, which no token contains
  if (own) return own;
  return /^bearer +(\S+)\s*$/i.exec(req.headers.authorization ?? "")?.[1] ?? "";
}

/** Middleware for one room. Both options are required; a wrong address throws at once. */
export function requireAdmission({ room, jwks }) {
  if (!room) throw new Error("requireAdmission: room is missing");
  const keys = new Keys(jwks);
  return async function admission(req, res, next) {
    let claims;
    try {
      claims = await judge(tokenOf(req), room, keys);
    } catch (why) {
      if (!(why instanceof Refusal)) return next(why);
      res.status(why.status).set({ "Content-Type": "application/problem+json", "Cache-Control": "no-store" });
      if (why.retryAfter) res.set("Retry-After", String(why.retryAfter));
      if (why.status === 401) {
        res.set("WWW-Authenticate", 'Bearer realm="usher"' + (why.code === "token_missing" ? "" : ', error="invalid_token"'));
      }
      return res.end(JSON.stringify({ type: "about:blank", title: why.title, status: why.status, code: why.code, detail: why.detail }));
    }
    req.admission = { room, ticketId: claims.sub, expires: claims.exp };
    req.headers["x-usher-room"] = room; // whatever the client sent
    req.headers["x-usher-ticket-id"] = claims.sub;
    next();
  };
}
