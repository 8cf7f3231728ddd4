package flight

// Key is a ready-made key for a Group whose answers belong to somebody. What separates one answer from another is a
// field, never a prefix: tenant "a:b" with name "c" is not tenant "a" with name "b:c". Empty Tenant and Principal mean
// that the answer is the same for everybody; leave them empty only when it is.
type Key struct {
	Tenant    string // whose data
	Principal string // who asks, when the answer depends on that
	Space     string // which kind of thing
	Name      string // which one
}
