package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
)

// answered is what a visitor was told before the lights went out.
type answered struct {
	TicketID string `json:"ticket_id"`
	Ticket   string `json:"ticket"`
	State    string `json:"state"`
	Seq      uint64 `json:"seq"`
	Pos      uint64 `json:"pos"`
}

// A process that is killed under load and started again knows everybody it
// answered, at the place it told them.
func TestKillLosesNobody(t *testing.T) {
	quiet(t)
	rounds, each := 5, 400
	if testing.Short() {
		rounds = 2
	}
	data := filepath.Join(t.TempDir(), "data")
	args := append(freeListeners(), "--origin", "http://127.0.0.1:1", "--active", "10", "--data", data)
	var known []answered
	for round := range rounds {
		p := startProcess(t, nil, args...).up()
		for _, v := range known {
			checkKnown(t, p, v)
		}
		known = append(known, enterUntilKilled(t, p, each*(round+1)/rounds+50)...)
	}
	p := startProcess(t, nil, args...).up()
	ids, seqs := map[string]bool{}, map[uint64]bool{}
	for _, v := range known {
		checkKnown(t, p, v)
		if ids[v.TicketID] || seqs[v.Seq] {
			t.Errorf("ticket %s or seq %d was given twice", v.TicketID, v.Seq)
		}
		ids[v.TicketID], seqs[v.Seq] = true, true
	}
	if len(known) < 50*rounds {
		t.Errorf("only %d were answered", len(known))
	}
	t.Logf("%d answered enters over %d kills, all known", len(known), rounds)
}

// enterUntilKilled kills the process after so many answers, while others are
// under way, and returns all answers that arrived.
func enterUntilKilled(t *testing.T, p *process, after int) []answered {
	t.Helper()
	var mu sync.Mutex
	var got []answered
	killed := make(chan struct{})
	kill := sync.OnceFunc(func() {
		close(killed) // first: who is cut off sees it at once
		_ = p.cmd.Process.Kill()
	})
	client := &http.Client{Timeout: deadline, Transport: &http.Transport{MaxIdleConnsPerHost: 32}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for {
				select {
				case <-killed:
					return
				default:
				}
				resp, err := client.Post(p.public+"/.usher/v1/rooms/main/enter", "application/json", nil)
				if err != nil {
					select {
					case <-killed:
					default:
						t.Errorf("before the kill: %v", err)
						kill()
					}
					return
				}
				var v answered
				err = json.NewDecoder(resp.Body).Decode(&v)
				resp.Body.Close()
				if err != nil { // cut in the middle: no answer
					continue
				}
				mu.Lock()
				got = append(got, v)
				n := len(got)
				mu.Unlock()
				if n == after {
					kill()
				}
			}
		})
	}
	wg.Wait()
	p.exit()
	return got
}

func checkKnown(t *testing.T, p *process, v answered) {
	t.Helper()
	now, status, err := statusOf(p, v.Ticket)
	if err != nil || status != http.StatusOK {
		t.Fatalf("ticket %s, seq %d, was answered and is lost: %d %v", v.TicketID, v.Seq, status, err)
	}
	if now.TicketID != v.TicketID || now.Seq != v.Seq || now.Pos != v.Pos || v.State == "admitted" && now.State != v.State {
		t.Fatalf("told %+v, now %+v", v, now)
	}
}

func statusOf(p *process, ticket string) (now answered, status int, err error) {
	req, err := http.NewRequest(http.MethodGet, p.public+"/.usher/v1/rooms/main/status", nil)
	if err != nil {
		return now, 0, err
	}
	req.Header.Set("Usher-Ticket", ticket)
	resp, err := (&http.Client{Timeout: deadline}).Do(req)
	if err != nil {
		return now, 0, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&now); err != nil {
		return now, resp.StatusCode, fmt.Errorf("status: %w", err)
	}
	return now, resp.StatusCode, nil
}
