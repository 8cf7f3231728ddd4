package main

import (
	"database/sql"
	"path/filepath"

	_ "modernc.org/sqlite"
)

type sqlite struct {
	*gatherer
	db     *sql.DB
	insert *sql.Stmt
}

func openSQLite(dir string) (store, error) {
	db, err := sql.Open("sqlite", filepath.Join(dir, "log.db")+
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.Exec(`CREATE TABLE log (n INTEGER PRIMARY KEY, rec BLOB NOT NULL)`); err != nil {
		return nil, err
	}
	insert, err := db.Prepare(`INSERT INTO log (rec) VALUES (?)`)
	if err != nil {
		return nil, err
	}
	s := &sqlite{db: db, insert: insert}
	s.gatherer = gather(func(recs [][]byte) error {
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		defer tx.Rollback()
		stmt := tx.Stmt(insert)
		for _, rec := range recs {
			if _, err := stmt.Exec(rec); err != nil {
				return err
			}
		}
		return tx.Commit()
	})
	return s, nil
}

func (s *sqlite) close() error {
	s.stop()
	return s.db.Close()
}
