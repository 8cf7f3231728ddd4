package matching

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"
)

// Handler serves the jobs over HTTP:
//
//	PUT  /jobs/{id}          {"title","places"}   makes a job, open
//	GET  /jobs/{id}
//	POST /jobs/{id}/accept   {"freelancer":7}     200, or 409 with code taken or cancelled, 404, 429 busy with Retry-After
//	POST /jobs/{id}/cancel
//	GET  /health/ready       writer and reader
//
// Who is asking is in the body: an example has no accounts.
func (s *Service) Handler(log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /jobs/{id}", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Title  string `json:"title"`
			Places int    `json:"places"`
		}
		id, ok := input(w, r, &in)
		if !ok {
			return
		}
		if in.Places < 1 || in.Places > 1_000_000 || len(in.Title) > 200 {
			say(w, 400, map[string]any{"code": "bad_request", "detail": "places must be 1 to 1000000, title at most 200 bytes"})
			return
		}
		s.reply(w, r, log, s.Put(r.Context(), Job{ID: id, Title: in.Title, Places: in.Places}), id)
	})
	mux.HandleFunc("GET /jobs/{id}", func(w http.ResponseWriter, r *http.Request) {
		if id, ok := input(w, r, nil); ok {
			s.reply(w, r, log, nil, id)
		}
	})
	mux.HandleFunc("POST /jobs/{id}/accept", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Freelancer int64 `json:"freelancer"`
		}
		id, ok := input(w, r, &in)
		if !ok {
			return
		}
		if in.Freelancer < 1 {
			say(w, 400, map[string]any{"code": "bad_request", "detail": "freelancer must be a positive number"})
			return
		}
		if err := s.Accept(r.Context(), id, in.Freelancer); err != nil {
			refuse(w, r, log, err)
			return
		}
		say(w, 200, map[string]any{"job": id, "freelancer": in.Freelancer, "accepted": true})
	})
	mux.HandleFunc("POST /jobs/{id}/cancel", func(w http.ResponseWriter, r *http.Request) {
		if id, ok := input(w, r, nil); ok {
			s.reply(w, r, log, s.Cancel(r.Context(), id), id)
		}
	})
	mux.HandleFunc("GET /health/ready", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		err := s.db.Ready(ctx)
		if err == nil && s.opts.Gate != nil {
			err = s.opts.Gate.Health()
		}
		if err != nil {
			log.Warn("not ready", "err", err)
			say(w, 503, map[string]any{"ready": false, "detail": err.Error()})
			return
		}
		say(w, 200, map[string]any{"ready": true})
	})
	return mux
}

// input reads the job's id and the body; it has answered where it returns false.
func input(w http.ResponseWriter, r *http.Request, to any) (int64, bool) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || id < 1 {
		say(w, 404, map[string]any{"code": "not_found", "detail": ErrNotFound.Error()})
		return 0, false
	}
	if to == nil {
		return id, true
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<10)).Decode(to); err != nil {
		say(w, 400, map[string]any{"code": "bad_request", "detail": "the body is not the JSON expected: " + err.Error()})
		return 0, false
	}
	return id, true
}

// reply shows the job, or says why not.
func (s *Service) reply(w http.ResponseWriter, r *http.Request, log *slog.Logger, err error, id int64) {
	var j Job
	if err == nil {
		j, err = s.Get(r.Context(), id)
	}
	if err != nil {
		refuse(w, r, log, err)
		return
	}
	say(w, 200, j)
}

func refuse(w http.ResponseWriter, r *http.Request, log *slog.Logger, err error) {
	status, code := 503, "unavailable"
	switch {
	case errors.Is(err, ErrTaken):
		status, code = 409, "taken"
	case errors.Is(err, ErrCancelled):
		status, code = 409, "cancelled"
	case errors.Is(err, ErrLate):
		status, code = 409, "late"
	case errors.Is(err, ErrNotFound):
		status, code = 404, "not_found"
	case errors.Is(err, ErrBusy):
		status, code = 429, "busy"
	default:
		if r.Context().Err() == nil {
			log.Error("request failed", "path", r.URL.Path, "err", err)
		}
		w.Header().Set("Retry-After", "1")
		say(w, status, map[string]any{"code": code, "detail": "the job could not be looked at now; asking again is safe"})
		return
	}
	if status == 429 {
		w.Header().Set("Retry-After", "1")
	}
	say(w, status, map[string]any{"code": code, "detail": err.Error()})
}

func say(w http.ResponseWriter, status int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(doc) // the client is gone: nobody to tell
}
