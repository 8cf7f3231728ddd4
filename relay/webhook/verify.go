package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

func sign(secret, stamp, id string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(stamp + "." + id + "."))
	mac.Write(body)
	return hex.EncodeToString(mac.Sum(nil))
}

// ErrSignature is Verify's: the request is not one of ours, or too old.
var ErrSignature = errors.New("webhook: not signed by us")

// Verify is for receivers: it checks the signature of a request by any of the secrets (the new and the old one while they
// change), and that it was sent at most tolerance ago or ahead, by now.
func Verify(h http.Header, body []byte, now time.Time, tolerance time.Duration, secrets ...string) error {
	stamp := h.Get("Usher-Timestamp")
	at, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: no Usher-Timestamp", ErrSignature)
	}
	if off := now.Sub(time.Unix(at, 0)).Abs(); off > tolerance {
		return fmt.Errorf("%w: sent %v from now", ErrSignature, off.Round(time.Second))
	}
	given, ok := strings.CutPrefix(h.Get("Usher-Signature"), "v1=")
	if !ok {
		return fmt.Errorf("%w: no Usher-Signature of version 1", ErrSignature)
	}
	for _, secret := range secrets {
		if hmac.Equal([]byte(given), []byte(sign(secret, stamp, h.Get("Usher-Event-Id"), body))) {
			return nil
		}
	}
	return fmt.Errorf("%w: the signature is wrong", ErrSignature)
}
