package dynamodb

import (
	"maps"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// Count is what one method of the store has cost: what is paid for on demand.
type Count struct {
	Requests   int     // to DynamoDB, retries of the SDK not counted
	ReadUnits  float64 // of 4 KB read consistently, as DynamoDB said
	WriteUnits float64 // of 1 KB written, as it said; 1 for a refused condition, which it does not say
}

// Counts is what each method has cost so far.
func (s *Leases) Counts() map[string]Count {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.count)
}

// spent notes a request of method op. writes: -1 it was a read; else the units when c does not say.
func (s *Leases) spent(op string, c *types.ConsumedCapacity, writes float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.count[op]
	n.Requests++
	units := max(writes, 0)
	if c != nil {
		units = aws.ToFloat64(c.CapacityUnits)
	}
	if writes < 0 {
		n.ReadUnits += units
	} else {
		n.WriteUnits += units
	}
	s.count[op] = n
}

func (s *Leases) spentAll(op string, cs []types.ConsumedCapacity) {
	if len(cs) == 0 {
		s.spent(op, nil, -1)
	}
	for i := range cs {
		s.spent(op, &cs[i], -1)
	}
}
