-- Lets through only visitors whom usher has let in. See ../README.md for the rules.
--
--   access_by_lua_block { require("admission").require("premiere") }
--
-- It verifies here, without asking usher: the signature by libcrypto, which nginx has loaded anyway, called through
-- LuaJIT's FFI (nginx's Lua has no Ed25519 of its own). The keys come through the location /usher-keys and lie in the
-- shared dictionary "usher", for all workers.

local ffi = require "ffi"
local cjson = require "cjson.safe"
local base64 = require "ngx.base64"

local LEEWAY = 60 -- seconds
local MAX_TOKEN = 4096
local FETCH_EVERY = 60 -- no two fetches start within this
local REFRESH_AFTER = 300 -- a new key is published ten minutes before it signs
local FETCH_TIMEOUT = 6 -- a little more than the timeouts of /usher-keys
local MAX_JWKS = 256 * 1024

ffi.cdef [[
  void *EVP_PKEY_new_raw_public_key(int type, void *engine, const char *key, size_t len);
  void EVP_PKEY_free(void *pkey);
  void *EVP_MD_CTX_new(void);
  void EVP_MD_CTX_free(void *ctx);
  int EVP_DigestVerifyInit(void *ctx, void *pctx, const void *type, void *engine, void *pkey);
  int EVP_DigestVerify(void *ctx, const char *sig, size_t siglen, const char *text, size_t textlen);
  void ERR_clear_error(void);
]]
local C = ffi.C
local EVP_PKEY_ED25519 = 1087

local shared = ngx.shared.usher or error('admission: nginx.conf lacks "lua_shared_dict usher 1m;"')

local function refuse(status, code, title, detail, retry_after)
  ngx.status = status
  ngx.header["Content-Type"] = "application/problem+json"
  ngx.header["Cache-Control"] = "no-store"
  if retry_after then ngx.header["Retry-After"] = retry_after end
  if status == 401 then
    ngx.header["WWW-Authenticate"] = 'Bearer realm="usher"' .. (code == "token_missing" and "" or ', error="invalid_token"')
  end
  ngx.print(cjson.encode { type = "about:blank", title = title, status = status, code = code, detail = detail })
  return ngx.exit(ngx.HTTP_OK) -- the answer is given: end the request, not this phase alone
end

local function malformed()
  return refuse(401, "token_malformed", "Not a valid admission token", "What was sent is not an admission token of usher.")
end

local function unknown_key()
  return refuse(401, "unknown_key", "Not a valid admission token", "The token names a signing key that usher does not publish.")
end

-- The key set as this worker last read it from the shared dictionary: key bytes by name.
local seen_text, seen_keys

local function keys()
  local text = shared:get("jwks")
  if text ~= seen_text then
    local found = {}
    for _, k in ipairs(text and cjson.decode(text).keys or {}) do
      local raw = k.kty == "OKP" and k.crv == "Ed25519" and type(k.x) == "string" and base64.decode_base64url(k.x)
      if raw and #raw == 32 and type(k.kid) == "string" then found[k.kid] = raw end
    end
    seen_text, seen_keys = text, found
  end
  return seen_keys or {}
end

local function get()
  local answer = ngx.location.capture("/usher-keys")
  if answer.status ~= 200 or answer.truncated then return nil, "usher answered " .. answer.status end
  if #answer.body > MAX_JWKS then return nil, "the answer is too long" end
  local doc = cjson.decode(answer.body)
  if type(doc) ~= "table" or type(doc.keys) ~= "table" then return nil, "the answer is not a JSON Web Key Set" end
  for _, k in ipairs(doc.keys) do
    if type(k) ~= "table" then return nil, "the answer is not a JSON Web Key Set" end
  end
  if #doc.keys == 0 then return nil, "the answer holds no key" end
  return answer.body
end

-- Fetches the keys if that is due; otherwise waits for the fetch under way, if there is one and wait is true. Adding
-- to the dictionary succeeds for one request of all workers, so the minute holds whatever the traffic.
local function fetch(wait)
  if shared:add("tried", ngx.now(), FETCH_EVERY) then
    shared:set("flight", true, FETCH_TIMEOUT)
    local text, err = get()
    if text then
      shared:set("jwks", text)
      shared:set("fresh", true, REFRESH_AFTER)
      shared:delete("failed")
    else
      shared:set("failed", true)
      ngx.log(ngx.ERR, "admission: fetching the keys failed: ", err)
    end
    shared:delete("flight")
    return
  end
  while wait and shared:get("flight") do
    ngx.sleep(0.02)
  end
end

local function key_for(kid)
  local key = keys()[kid]
  if key then
    if not shared:get("fresh") then fetch(false) end
    return key
  end
  fetch(true)
  key = keys()[kid]
  if key then return key end
  if shared:get("failed") or not shared:get("jwks") then
    local left = math.ceil((shared:get("tried") or ngx.now()) + FETCH_EVERY - ngx.now())
    return refuse(503, "keys_unavailable", "Admissions cannot be checked at the moment",
      "The signing keys of the waiting room could not be fetched, so the token cannot be judged yet. The server's log says why.",
      math.max(left, 1))
  end
  return unknown_key()
end

local function signed_by(key, signature, text)
  local pkey = C.EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nil, key, #key)
  if pkey == nil then return false end
  local ctx = C.EVP_MD_CTX_new()
  local good = ctx ~= nil
    and C.EVP_DigestVerifyInit(ctx, nil, nil, nil, pkey) == 1
    and C.EVP_DigestVerify(ctx, signature, #signature, text, #text) == 1
  C.EVP_MD_CTX_free(ctx)
  C.EVP_PKEY_free(pkey)
  C.ERR_clear_error() -- nginx would log a failed check as an error of the connection
  return good
end

local function token_of()
  local own = ngx.req.get_headers()["x-usher-token"]
  if type(own) == "table" then return malformed() end
  if own and own ~= "" then return own end
  return (ngx.var.http_authorization or ""):match("^[Bb][Ee][Aa][Rr][Ee][Rr] +(%S+)%s*$")
end

local function part(text)
  local raw = text and base64.decode_base64url(text)
  local value = raw and cjson.decode(raw)
  return type(value) == "table" and value or nil
end

local M = {}

--- Refuses the request unless it carries a good admission to room. Returns the token's claims.
function M.require(room)
  local token = token_of()
  if not token then
    return refuse(401, "token_missing", "No admission token",
      "This needs an admission to room " .. room .. ": enter the room first, and send the token in X-Usher-Token.")
  end
  if #token > MAX_TOKEN then return malformed() end
  local head_text, body_text, signature_text = token:match("^([%w_-]+)%.([%w_-]+)%.([%w_-]*)$")
  local head = part(head_text)
  if not head then return malformed() end
  if head.alg ~= "EdDSA" then
    return refuse(401, "wrong_algorithm", "Not a valid admission token",
      "The token is not signed with EdDSA, which is all that is accepted.")
  end
  if head.typ ~= "usher-admission+jwt" or head.jwk or head.crit then return malformed() end
  if type(head.kid) ~= "string" then return unknown_key() end

  local key = key_for(head.kid)
  local signature = base64.decode_base64url(signature_text) or ""
  if #signature ~= 64 or not signed_by(key, signature, head_text .. "." .. body_text) then
    return refuse(401, "bad_signature", "Not a valid admission token",
      "The token's signature is wrong: it was changed, or signed by somebody else.")
  end

  local c = part(body_text)
  if not c or type(c.sub) ~= "string" or c.sub == "" or c.sub:find("[^%w_-]")
    or type(c.exp) ~= "number" or type(c.nbf) ~= "number" or type(c.iat) ~= "number" then
    return malformed()
  end
  -- One audience exactly: a token for several rooms would be an admission nobody counted.
  local aud = c.aud
  if type(aud) == "table" and #aud == 1 then aud = aud[1] end
  if aud ~= room then
    return refuse(403, "wrong_room", "Admitted to another room", "The token is not for room " .. room .. ".")
  end
  local now = ngx.time()
  local ahead = math.max(c.nbf, c.iat) - now
  if ahead > LEEWAY then
    return refuse(401, "token_not_yet", "The clocks differ", string.format(
      "The token begins %ds from now by this server's clock: the clocks of this server and of usher differ by at least "
      .. "that much, and %ds is forgiven. Set both by NTP.", ahead, LEEWAY))
  end
  if now - c.exp >= LEEWAY then
    return refuse(401, "token_expired", "The admission has ended", string.format(
      "The token expired %ds ago by this server's clock, and %ds is forgiven. Renew it, or enter again.", now - c.exp, LEEWAY))
  end

  ngx.req.set_header("X-Usher-Room", room) -- whatever the client sent
  ngx.req.set_header("X-Usher-Ticket-Id", c.sub)
  return c
end

return M
