package flight

// list is a first-in first-out list through the flights themselves, so that putting one in allocates nothing and
// taking one out from anywhere is cheap.
type list[K comparable, V any] struct {
	head, tail *flight[K, V]
	n          int
}

func (l *list[K, V]) push(f *flight[K, V]) {
	if l.tail == nil {
		l.head = f
	} else {
		f.prev = l.tail
		l.tail.next = f
	}
	l.tail = f
	l.n++
}

func (l *list[K, V]) remove(f *flight[K, V]) {
	if f.prev == nil {
		l.head = f.next
	} else {
		f.prev.next = f.next
	}
	if f.next == nil {
		l.tail = f.prev
	} else {
		f.next.prev = f.prev
	}
	if f.prev != nil { // each pointer written costs
		f.prev = nil
	}
	if f.next != nil {
		f.next = nil
	}
	l.n--
}
