package token

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Store keeps the text of a key set where several processes find it: a folder (Open), or a shared store. What it
// keeps is secret. Errors name it by its String method, if it has one.
type Store interface {
	// Load gives the stored text, "" when nothing was stored yet.
	Load(ctx context.Context) (string, error)
	// Swap stores next if what is stored now is prev ("" for nothing), in one atomic step, and says whether it did.
	Swap(ctx context.Context, prev, next string) (bool, error)
}

// Keys signs, seals and verifies. Make it by Open, OpenStore or FromEnv.
type Keys struct {
	store Store // nil: from text, read-only
	clock func() time.Time
	mu    sync.Mutex // held while reloading or rotating, never on the way of a visitor
	live  atomic.Pointer[ring]
}

// ring is a key set made ready for use. It never changes; Reload and Rotate replace it.
type ring struct {
	text    string
	set     *set
	sign    []*signKey
	seal    []*macKey
	request *macKey
}

// Option changes how keys are opened.
type Option func(*Keys)

// Clock makes the keys read the time from now instead of time.Now. It decides which key is in use.
func Clock(now func() time.Time) Option { return func(k *Keys) { k.clock = now } }

// Open opens the key folder dir. When there is none it is made, with mode 0700 and fresh keys in a file of mode
// 0600; processes that open it at once agree on the same keys. It returns a *PermissionError when other users can
// read the folder or the file, and a *FormatError (wrapped) when the file is damaged; neither is ever overwritten.
func Open(dir string, opts ...Option) (*Keys, error) {
	store, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	return OpenStore(context.Background(), store, opts...)
}

// OpenStore opens the keys in store, and makes them when there are none. Processes that do so at once agree.
func OpenStore(ctx context.Context, store Store, opts ...Option) (*Keys, error) {
	k := newKeys(store, opts)
	for {
		text, err := store.Load(ctx)
		if err != nil {
			return nil, err
		}
		if text == "" {
			text = newSet(random32, k.clock()).text()
			ok, err := store.Swap(ctx, "", text)
			if err != nil {
				return nil, err
			}
			if !ok { // somebody else was first: theirs count
				continue
			}
		}
		if err := k.use(text); err != nil {
			return nil, fmt.Errorf("%w (%s)", err, k.where())
		}
		return k, nil
	}
}

// FromEnv reads keys from the text that Export gave: the value of USHER_KEYS. They cannot be rotated in place.
func FromEnv(text string, opts ...Option) (*Keys, error) {
	k := newKeys(nil, opts)
	if err := k.use(text); err != nil {
		return nil, fmt.Errorf("%w (USHER_KEYS)", err)
	}
	return k, nil
}

func newKeys(store Store, opts []Option) *Keys {
	k := &Keys{store: store, clock: time.Now}
	for _, o := range opts {
		o(k)
	}
	return k
}

// Export gives all keys as one line of text, for USHER_KEYS. It is as secret as the keys are.
func (k *Keys) Export() string { return k.live.Load().set.text() }

// NewID gives a fresh ticket id.
func (k *Keys) NewID() ID {
	var id ID
	_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the process instead
	return id
}

// Rotate publishes a new signing key and a new sealing key at now, to be used from now + Lead, and retires the
// present ones without cutting anybody off (see the package comment). Other processes see it at their next
// Reload. While a rotation is under way another call changes nothing and reports the first. ErrReadOnly for keys
// from text.
func (k *Keys) Rotate(now time.Time) (RotateReport, error) {
	if k.store == nil {
		return RotateReport{}, ErrReadOnly
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	ctx := context.Background()
	for {
		prev, err := k.store.Load(ctx)
		if err != nil {
			return RotateReport{}, err
		}
		if prev == "" {
			return RotateReport{}, k.gone()
		}
		old, err := parseSet(prev)
		if err != nil {
			return RotateReport{}, fmt.Errorf("%w (%s)", err, k.where())
		}
		next, report, err := old.rotate(random32, now)
		if err != nil {
			return RotateReport{}, err
		}
		if report.Already {
			return report, k.use(prev)
		}
		text := next.text()
		ok, err := k.store.Swap(ctx, prev, text)
		if err != nil {
			return RotateReport{}, err
		}
		if ok {
			return report, k.use(text)
		}
	}
}

// RotateText does to the text of USHER_KEYS what Rotate does to stored keys, and returns the text to give to
// every node before report.SignsAt.
func RotateText(text string, now time.Time) (next string, report RotateReport, err error) {
	s, err := parseSet(text)
	if err != nil {
		return "", RotateReport{}, err
	}
	if s, report, err = s.rotate(random32, now); err != nil {
		return "", RotateReport{}, err
	}
	return s.text(), report, nil
}

// Reload takes over what another process stored, for instance a rotation. On any error the keys in use stay. It
// reads about a kilobyte when nothing changed. Keys from text have nothing to reload.
func (k *Keys) Reload() error {
	if k.store == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	text, err := k.store.Load(context.Background())
	if err != nil {
		return err
	}
	if text == "" {
		return k.gone()
	}
	if text == k.live.Load().text {
		return nil
	}
	if err := k.use(text); err != nil {
		return fmt.Errorf("%w (%s)", err, k.where())
	}
	return nil
}

// Watch reloads each interval until ctx ends, and hands every failure to report (nil: to nobody). The interval
// must be well under Lead; a minute is fine. It blocks: run it in a goroutine.
func (k *Keys) Watch(ctx context.Context, interval time.Duration, report func(error)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := k.Reload(); err != nil && report != nil {
			report(err)
		}
	}
}

func (k *Keys) gone() error {
	return fmt.Errorf("token: the keys are gone from %s; this process goes on with those it holds: put them back from a "+
		"backup or from the output of usher keys export", k.where())
}

// where names the store in errors. Only a store that says how may be printed: others could show what they hold.
func (k *Keys) where() string {
	if s, ok := k.store.(fmt.Stringer); ok {
		return s.String()
	}
	return "the key store"
}

// KeyInfo describes one key without its secret.
type KeyInfo struct {
	Kind  string    `json:"kind"` // sign | seal | request
	ID    string    `json:"id"`
	State string    `json:"state"` // next | current | retired
	From  time.Time `json:"from"`
	Until time.Time `json:"until,omitzero"` // when a retired key stops being accepted
}

// List describes the keys, oldest first within their kind.
func (k *Keys) List() []KeyInfo {
	s, now := k.live.Load().set, k.clock()
	var all []KeyInfo
	add := func(kind string, keys []stored) {
		cur := current(keys, now)
		for i, key := range keys {
			if key.retiredBy(now) {
				continue
			}
			info := KeyInfo{Kind: kind, ID: key.ID, State: "current", From: time.Unix(key.From, 0).UTC()}
			if key.Until != 0 {
				info.Until = time.Unix(key.Until, 0).UTC()
			}
			switch {
			case i < cur:
				info.State = "retired"
			case i > cur:
				info.State = "next"
			}
			all = append(all, info)
		}
	}
	add("sign", s.Sign)
	add("seal", s.Seal)
	add("request", []stored{s.Request})
	return all
}

// use makes text the keys in use.
func (k *Keys) use(text string) error {
	s, err := parseSet(text)
	if err != nil {
		return err
	}
	r := &ring{text: text, set: s, request: newMAC(s.Request)}
	for _, key := range s.Sign {
		sk, err := newSigner(key)
		if err != nil {
			return errors.New("token: a signing key was refused by the JOSE library") // err may quote the key
		}
		r.sign = append(r.sign, sk)
	}
	for _, key := range s.Seal {
		r.seal = append(r.seal, newMAC(key))
	}
	k.live.Store(r)
	return nil
}

func random32() []byte {
	b := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(b)
	return b
}
