package sqs

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/ushergo/usher/relay"
)

// DeadLetters keeps a relay's dead letters in a queue of its own. It implements relay.DeadLetters as far as a queue can:
//
//   - The queue's own retention counts (set it to 14 days), so Expire does nothing; DeadBounds.Letters counts what SQS
//     believes to be there, and DeadBounds.Bytes does not count.
//   - List, Get and Drop look at what the queue shows, by receiving and giving back: at most a few thousand letters, in no
//     order that would last, so that a Seq is good for one call of List. A letter that somebody else has received just now
//     is not seen.
//   - A letter put twice (its answer was lost, or it was brought back in vain) is there twice; the newest one counts.
//   - Stats know no age.
type DeadLetters struct {
	client *api.Client
	queue  string
	fifo   bool
}

var _ relay.DeadLetters = (*DeadLetters)(nil)

// OpenDeadLetters makes a store of a queue. Nothing is connected to yet.
func OpenDeadLetters(ctx context.Context, o Options) (*DeadLetters, error) {
	s, err := Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return &DeadLetters{s.client, s.queue, s.fifo}, nil
}

// Put implements relay.DeadLetters.
func (d *DeadLetters) Put(ctx context.Context, l relay.Letter, b relay.DeadBounds) error {
	n, err := d.count(ctx)
	if err != nil {
		return err
	}
	if b = b.WithDefaults(); n >= b.Letters {
		return fmt.Errorf("%w: the queue holds %d of at most %d; bring them back or drop them: usher dlq", relay.ErrDeadFull, n, b.Letters)
	}
	var old []peeked
	if l.Redriven > 0 { // it is there; otherwise it is not, but after a lost answer
		if old, err = d.find(ctx, l.Relay, map[string]bool{l.Event.ID: true}, looked); err != nil {
			return err
		}
	}
	for _, o := range old {
		if o.letter.First.Before(l.First) {
			l.First = o.letter.First
		}
	}
	body, err := json.Marshal(l)
	if err != nil {
		return err
	}
	in := &api.SendMessageInput{QueueUrl: aws.String(d.queue), MessageBody: aws.String(string(body))}
	if d.fifo {
		in.MessageGroupId = aws.String(token(l.Event.Key))
		in.MessageDeduplicationId = aws.String(token(l.Relay + "/" + l.Event.ID + "/" + strconv.Itoa(l.Attempts)))
	}
	if _, err := d.client.SendMessage(ctx, in); err != nil {
		return err
	}
	return d.remove(ctx, old) // after: a crash between the two leaves both
}

func (d *DeadLetters) count(ctx context.Context) (int, error) {
	out, err := d.client.GetQueueAttributes(ctx, &api.GetQueueAttributesInput{QueueUrl: aws.String(d.queue), AttributeNames: []types.QueueAttributeName{
		types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
	}})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, v := range out.Attributes {
		k, _ := strconv.Atoi(v) // the service's own number
		n += k
	}
	return n, nil
}

// peeked is a message that was received and not given back yet.
type peeked struct {
	letter  relay.Letter
	receipt *string
}

// looked is how many messages are looked at in one call, and lookTime how long they are hidden from others meanwhile.
const (
	looked   = 2000
	lookTime = 30 // seconds
)

// find receives until it has seen what the queue shows, and keeps the letters of a relay that are wanted (nil: all), at most
// limit; all others are given back. What is returned is hidden for lookTime: give it back or remove it.
func (d *DeadLetters) find(ctx context.Context, of string, wanted map[string]bool, limit int) ([]peeked, error) {
	var found, others []peeked
	defer func() { d.giveBack(context.WithoutCancel(ctx), others) }()
	for seen := 0; seen < looked; {
		out, err := d.client.ReceiveMessage(ctx, &api.ReceiveMessageInput{
			QueueUrl: aws.String(d.queue), MaxNumberOfMessages: 10, VisibilityTimeout: lookTime,
		})
		if err != nil {
			others = append(others, found...)
			return nil, err
		}
		if len(out.Messages) == 0 {
			break
		}
		seen += len(out.Messages)
		for _, m := range out.Messages {
			p := peeked{receipt: m.ReceiptHandle}
			err := json.Unmarshal([]byte(aws.ToString(m.Body)), &p.letter)
			if err == nil && p.letter.Relay == of && (wanted == nil || wanted[p.letter.Event.ID]) && len(found) < limit {
				found = append(found, p)
			} else {
				others = append(others, p)
			}
		}
		if wanted == nil && len(found) >= limit {
			break
		}
	}
	return found, nil
}

func (d *DeadLetters) giveBack(ctx context.Context, ps []peeked) {
	for _, p := range ps { // what fails comes back by itself
		_, _ = d.client.ChangeMessageVisibility(ctx, &api.ChangeMessageVisibilityInput{
			QueueUrl: aws.String(d.queue), ReceiptHandle: p.receipt, VisibilityTimeout: 0,
		})
	}
}

func (d *DeadLetters) remove(ctx context.Context, ps []peeked) error {
	for _, p := range ps {
		if _, err := d.client.DeleteMessage(ctx, &api.DeleteMessageInput{QueueUrl: aws.String(d.queue), ReceiptHandle: p.receipt}); err != nil {
			return err
		}
	}
	return nil
}

// List implements relay.DeadLetters. One page is all that there is to see: behind any Seq there is nothing more.
func (d *DeadLetters) List(ctx context.Context, of string, after uint64, limit int) ([]relay.Letter, error) {
	if after > 0 {
		return nil, nil
	}
	found, err := d.find(ctx, of, nil, max(limit, looked))
	if err != nil {
		return nil, err
	}
	d.giveBack(ctx, found)
	newest := map[string]int{}
	var list []relay.Letter
	for _, p := range found {
		if at, ok := newest[p.letter.Event.ID]; ok {
			if p.letter.Attempts > list[at].Attempts {
				list[at] = p.letter
			}
			continue
		}
		newest[p.letter.Event.ID] = len(list)
		list = append(list, p.letter)
	}
	for i := range list {
		list[i].Seq = uint64(i + 1)
	}
	return list, nil
}

// Get implements relay.DeadLetters.
func (d *DeadLetters) Get(ctx context.Context, of, id string) (relay.Letter, error) {
	found, err := d.find(ctx, of, map[string]bool{id: true}, 10)
	if err != nil {
		return relay.Letter{}, err
	}
	d.giveBack(ctx, found)
	if len(found) == 0 {
		return relay.Letter{}, fmt.Errorf("%w: %s, among what the queue shows", relay.ErrNoLetter, id)
	}
	best := found[0].letter
	for _, p := range found[1:] {
		if p.letter.Attempts > best.Attempts {
			best = p.letter
		}
	}
	return best, nil
}

// Drop implements relay.DeadLetters.
func (d *DeadLetters) Drop(ctx context.Context, of string, ids ...string) (int, error) {
	wanted := map[string]bool{}
	for _, id := range ids {
		wanted[id] = true
	}
	found, err := d.find(ctx, of, wanted, looked)
	if err != nil {
		return 0, err
	}
	gone := map[string]bool{}
	for _, p := range found {
		gone[p.letter.Event.ID] = true
	}
	return len(gone), d.remove(ctx, found)
}

// Expire implements relay.DeadLetters: the queue's retention does it.
func (d *DeadLetters) Expire(context.Context, string, time.Time) (int, error) { return 0, nil }

// Stats implements relay.DeadLetters: of the whole queue, approximately.
func (d *DeadLetters) Stats(ctx context.Context, _ string) (relay.DeadStats, error) {
	n, err := d.count(ctx)
	return relay.DeadStats{Letters: n}, err
}
