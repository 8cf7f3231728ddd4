package dynamodb

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ushergo/usher/lease"
)

type item = map[string]types.AttributeValue

const (
	layout  = "1"
	nobody  = "-"
	floorPk = "#floor" // no id begins so
	making  = "new"    // desired_state of a row whose fence is not known yet
	index   = "desired_state-lease_owner"
)

func str(v string) types.AttributeValue { return &types.AttributeValueMemberS{Value: v} }

func num[T uint64 | int](n T) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: fmt.Sprint(n)}
}

func yes(b bool) types.AttributeValue { return &types.AttributeValueMemberBOOL{Value: b} }

func key(pk string) item { return item{"Pk": str(pk)} }

// reader reads attributes, and remembers the first that is not as it should be.
type reader struct {
	it  item
	err error
}

func (r *reader) bad(name string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: attribute %s of a row is missing or of another type; use another table", lease.ErrForeign, name)
	}
}

func (r *reader) str(name string) string {
	v, ok := r.it[name].(*types.AttributeValueMemberS)
	if !ok {
		r.bad(name)
		return ""
	}
	return v.Value
}

func (r *reader) num(name string) uint64 {
	v, ok := r.it[name].(*types.AttributeValueMemberN)
	if !ok {
		r.bad(name)
		return 0
	}
	n, err := strconv.ParseUint(v.Value, 10, 64)
	if err != nil {
		r.bad(name)
	}
	return n
}

func (r *reader) yes(name string) bool {
	v, ok := r.it[name].(*types.AttributeValueMemberBOOL)
	if !ok {
		r.bad(name)
		return false
	}
	return v.Value
}

func (r *reader) layout(table string) {
	v, ok := r.it["v"].(*types.AttributeValueMemberN)
	if !ok || v.Value != layout {
		pk, _ := r.it["Pk"].(*types.AttributeValueMemberS)
		name := "?"
		if pk != nil {
			name = pk.Value
		}
		r.err = fmt.Errorf("%w: row %s of table %s is not of layout %s; use the version of usher that wrote it, or another table", lease.ErrForeign, name, table, layout)
	}
}

func owner(o lease.Owner) types.AttributeValue {
	if o == (lease.Owner{}) {
		return str(nobody)
	}
	return str(o.String())
}

// owner reads lease_owner.
func (r *reader) owner() lease.Owner {
	s := r.str("lease_owner")
	if s == nobody || r.err != nil {
		return lease.Owner{}
	}
	name, gen, ok := strings.Cut(s, "#")
	n, err := strconv.ParseUint(gen, 10, 64)
	if !ok || err != nil {
		r.bad("lease_owner")
	}
	return lease.Owner{Worker: name, Generation: n}
}

// resource reads a row. made is false for one that is still being made.
func (s *Leases) resource(it item) (row lease.Row, made bool, err error) {
	r := &reader{it: it}
	r.layout(s.table)
	row = lease.Row{ID: r.str("Pk"), Desired: lease.Desired(r.str("desired_state")), Rev: r.num("rev"), Owner: r.owner(), Fence: r.num("fence"), Cursor: r.str("last_seq")}
	if u, ok := it["ws_url"].(*types.AttributeValueMemberS); ok {
		row.URL = u.Value
	}
	if b, ok := it["spec"].(*types.AttributeValueMemberB); ok {
		row.Spec = b.Value
	}
	return row, row.Desired != making, r.err
}

// brief reads a row of the index.
func brief(it item) (lease.Brief, error) {
	r := &reader{it: it}
	b := lease.Brief{ID: r.str("Pk"), Owner: r.owner(), Fence: r.num("fence"), Rev: r.num("rev")}
	return b, r.err
}

// worker reads a worker's row.
func (s *Leases) worker(it item) (w lease.WorkerRow, token string, err error) {
	r := &reader{it: it}
	r.layout(s.workers)
	w = lease.WorkerRow{
		Owner: lease.Owner{Worker: r.str("Pk"), Generation: r.num("generation")},
		Beat:  r.num("beat"), Held: int(r.num("held")), Cap: int(r.num("cap")), Leaving: r.yes("leaving"), Dead: r.yes("dead"),
		Info: strings.TrimPrefix(r.str("info"), "-"),
	}
	return w, r.str("token"), r.err
}
