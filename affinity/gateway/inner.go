package gateway

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ushergo/usher/affinity"
)

// What a gateway tells an instance, and what that answers. None of it is let in from outside.
const (
	headerInstance = "Usher-Owner-Instance" // who is meant
	headerEpoch    = "Usher-Owner-Epoch"    // 0: any start of it
	headerGen      = "Usher-Session-Gen"    // 0: nobody owns the key, build
	headerKey      = "Usher-Session-Key"    // base64url
	headerHop      = "Usher-Hop"            // when it was said, and its signature

	// HeaderNotOwner is answered with status 421 by who was asked and is not the owner; its value is the generation that
	// was asked for.
	HeaderNotOwner = "Usher-Not-Owner"
	// HeaderInstance is on the answers to probes: "{instance} {epoch}".
	HeaderInstance = "Usher-Instance"
)

// call is what is said about one request.
type call struct {
	owner affinity.Identity
	gen   uint64
	key   string
}

func (c call) sign(secret []byte, when string) string {
	m := hmac.New(sha256.New, secret)
	fmt.Fprintf(m, "%s\n%d\n%d\n%s\n%s", c.owner.Instance, c.owner.Epoch, c.gen, when, c.key)
	return hex.EncodeToString(m.Sum(nil))
}

func (c call) write(h http.Header, secret []byte) {
	when := strconv.FormatInt(time.Now().Unix(), 10)
	h.Set(headerInstance, c.owner.Instance)
	h.Set(headerEpoch, strconv.FormatUint(c.owner.Epoch, 10))
	h.Set(headerGen, strconv.FormatUint(c.gen, 10))
	h.Set(headerKey, base64.RawURLEncoding.EncodeToString([]byte(c.key)))
	h.Set(headerHop, when+"."+c.sign(secret, when))
}

// signedFor is how long a signature counts, in both directions: machines' clocks differ.
const signedFor = 5 * time.Minute

// readCall reads what a gateway said. false: nobody did who knows the secret.
func readCall(h http.Header, secret []byte) (call, bool) {
	var c call
	when, sum, _ := strings.Cut(h.Get(headerHop), ".")
	if sum == "" {
		return c, false
	}
	key, err1 := base64.RawURLEncoding.DecodeString(h.Get(headerKey))
	epoch, err2 := strconv.ParseUint(h.Get(headerEpoch), 10, 64)
	gen, err3 := strconv.ParseUint(h.Get(headerGen), 10, 64)
	sec, err4 := strconv.ParseInt(when, 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		return c, false
	}
	c = call{affinity.Identity{Instance: h.Get(headerInstance), Epoch: epoch}, gen, string(key)}
	return c, hmac.Equal([]byte(sum), []byte(c.sign(secret, when))) && time.Since(time.Unix(sec, 0)).Abs() < signedFor
}

// strip takes out what only gateways and owners say, in any spelling that a server may take for it.
func strip(h http.Header) {
	for name := range h {
		if len(name) < 6 {
			continue
		}
		n := strings.ReplaceAll(strings.ToLower(name), "_", "-")
		switch n {
		case "usher-owner-instance", "usher-owner-epoch", "usher-session-gen", "usher-session-key", "usher-hop",
			"usher-not-owner", "usher-session":
			delete(h, name)
		}
	}
}
