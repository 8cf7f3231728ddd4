package relay

// bySeq is a heap of items, the oldest first.
type bySeq []*item

func (h bySeq) Len() int           { return len(h) }
func (h bySeq) Less(i, j int) bool { return h[i].seq < h[j].seq }
func (h bySeq) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *bySeq) Push(x any)        { *h = append(*h, x.(*item)) }
func (h *bySeq) Pop() any          { return popItem((*[]*item)(h)) }

// byTime is a heap of items, the one that is due first first.
type byTime []*item

func (h byTime) Len() int           { return len(h) }
func (h byTime) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h byTime) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byTime) Push(x any)        { *h = append(*h, x.(*item)) }
func (h *byTime) Pop() any          { return popItem((*[]*item)(h)) }

func popItem(h *[]*item) *item {
	n := len(*h) - 1
	it := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return it
}
