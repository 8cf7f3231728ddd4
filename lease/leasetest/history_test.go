package leasetest

import (
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/ushergo/usher/lease"
)

// TestJoinTwice: the answer to a join is lost, others see its generation and end it, and the engine's own second attempt joins
// again. That is no fault of a store, so the history has to have a second join in it, whose answer nobody heard.
func TestJoinTwice(t *testing.T) {
	ops := []porcupine.Operation{
		{ClientId: 1, Input: input{op: "join", text: "mine"}, Call: 0, Return: 100, Output: output{ok: true, fence: 9}},
		{ClientId: 2, Input: input{op: "join", text: "other"}, Call: 10, Return: 20, Output: output{fence: 7}},
		{ClientId: 2, Input: input{op: "leave", fence: 7}, Call: 30, Return: 40, Output: output{ok: true}},
	}
	if porcupine.CheckOperations(workerModel(), ops) {
		t.Error("the model knows of a generation that nobody joined as")
	}
	join := ops[0]
	if !again(join.Input.(input), join.Output.(output)) {
		t.Fatal("a join is thought never to be asked again")
	}
	join.ClientId, join.Output = 1000, output{lost: true}
	if !porcupine.CheckOperations(workerModel(), append(ops, join)) {
		t.Error("the model refuses a join that was done twice")
	}
}

// TestModelsRefuse shows that the models can say no.
func TestModelsRefuse(t *testing.T) {
	a, b := lease.Owner{Worker: "a", Generation: 1}, lease.Owner{Worker: "b", Generation: 1}
	op := func(n int64, in input, out output) porcupine.Operation {
		return porcupine.Operation{ClientId: int(n), Input: in, Call: 10 * n, Return: 10*n + 1, Output: out}
	}
	put := op(1, input{op: "put"}, output{ok: true, exists: true})
	take := op(2, input{op: "take", me: a}, output{ok: true, exists: true, owner: a, fence: 1})
	for name, last := range map[string]porcupine.Operation{
		"two owners of one fence":   op(3, input{op: "take", me: b}, output{ok: true, exists: true, owner: b, fence: 1}),
		"a fence that went back":    op(3, input{op: "get"}, output{exists: true, owner: a, fence: 0}),
		"a zombie moved the cursor": op(3, input{op: "flush", me: b, fence: 1}, output{ok: true}),
	} {
		if porcupine.CheckOperations(rowModel(), []porcupine.Operation{put, take, last}) {
			t.Errorf("the model accepts %s", name)
		}
	}
	if !porcupine.CheckOperations(rowModel(), []porcupine.Operation{put, take}) {
		t.Error("the model refuses a take")
	}
	join := op(1, input{op: "join", text: "t"}, output{ok: true, fence: 7})
	dead := op(2, input{op: "mark", fence: 7}, output{ok: true})
	if porcupine.CheckOperations(workerModel(), []porcupine.Operation{join, dead, op(3, input{op: "beat", fence: 7, beat: 1}, output{ok: true})}) {
		t.Error("the model lets the dead beat")
	}
}
