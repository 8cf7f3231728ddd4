package main

import (
	"context"

	"github.com/ushergo/usher/engine/memory/journal"
)

type own struct{ *journal.Journal }

func openOwn(dir string) (store, error) {
	j, err := journal.Open(dir, journal.Options{})
	if err != nil {
		return nil, err
	}
	return own{j}, nil
}

func (o own) append(rec []byte) error {
	pos, err := o.Append(rec)
	if err != nil {
		return err
	}
	return o.Sync(context.Background(), pos)
}

func (o own) close() error { return o.Close() }
