package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	_ "modernc.org/sqlite" // the driver
)

// Seat is one seat of a show.
type Seat struct {
	Row  int  `json:"row"`
	No   int  `json:"no"`
	Sold bool `json:"sold"`
}

// Map is what a visitor sees: all seats of one show. Free is counted so that a page need not.
type Map struct {
	Show  string `json:"show"`
	Free  int    `json:"free"`
	Seats []Seat `json:"seats"`
}

var (
	errNoShow = errors.New("no such show")
	errNoSeat = errors.New("no such seat")
	errSold   = errors.New("the seat is sold")
)

// box is the box office: the database, and the only truth about seats.
type box struct{ db *sql.DB }

func openBox(path string) (*box, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(wal)")
	if err != nil {
		return nil, err
	}
	_, err = db.Exec(`create table if not exists seat (
		show text not null, row integer not null, no integer not null, sold integer not null default 0,
		primary key (show, row, no)) strict, without rowid`)
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &box{db}, nil
}

// add puts a show on, if it is not yet.
func (b *box) add(ctx context.Context, show string, rows, seats int) error {
	_, err := b.db.ExecContext(ctx, `with recursive
		r(n) as (select 1 union all select n+1 from r where n < ?), s(n) as (select 1 union all select n+1 from s where n < ?)
		insert or ignore into seat (show, row, no) select ?, r.n, s.n from r, s`, rows, seats, show)
	return err
}

// seats is the one query behind every seat map.
func (b *box) seats(ctx context.Context, show string) (*Map, error) {
	rows, err := b.db.QueryContext(ctx, `select row, no, sold from seat where show = ? order by row, no`, show)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	m := &Map{Show: show}
	for rows.Next() {
		var s Seat
		if err := rows.Scan(&s.Row, &s.No, &s.Sold); err != nil {
			return nil, err
		}
		if !s.Sold {
			m.Free++
		}
		m.Seats = append(m.Seats, s)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(m.Seats) == 0 {
		return nil, errNoShow
	}
	return m, nil
}

// sell marks a seat as sold. Of any number of buyers one wins.
func (b *box) sell(ctx context.Context, show string, row, no int) error {
	res, err := b.db.ExecContext(ctx, `update seat set sold = 1 where show = ? and row = ? and no = ? and sold = 0`, show, row, no)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	var one int
	err = b.db.QueryRowContext(ctx, `select 1 from seat where show = ? and row = ? and no = ?`, show, row, no).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return errNoSeat
	}
	if err != nil {
		return err
	}
	return errSold
}
