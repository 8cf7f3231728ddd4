package cinema

import (
	"context"
	"time"
)

const (
	premiereSlug = "the-last-tide"
	ticketPrice  = 15_000 // won
)

func houseFilms() []film {
	return []film{
		{Slug: premiereSlug, Premiere: true, Minutes: 128, Age: 12, TitleEn: "The Last Tide", TitleKo: "마지막 밀물",
			LineEn: "A lighthouse keeper has one night to bring forty boats home.",
			LineKo: "등대지기에게 남은 하룻밤, 마흔 척의 배를 집으로 데려와야 한다."},
		{Slug: "nine-minutes-to-busan", Minutes: 104, Age: 15, TitleEn: "Nine Minutes to Busan", TitleKo: "부산까지 9분",
			LineEn: "The train will not stop. Neither will she.", LineKo: "열차는 멈추지 않는다. 그녀도 멈추지 않는다."},
		{Slug: "paper-lantern", Minutes: 97, Age: 0, TitleEn: "Paper Lantern", TitleKo: "종이등",
			LineEn: "A small light looks for the hand that folded it.", LineKo: "작은 불빛 하나가 저를 접어 준 손을 찾아간다."},
		{Slug: "a-field-guide-to-snow", Minutes: 112, Age: 12, TitleEn: "A Field Guide to Snow", TitleKo: "눈 도감",
			LineEn: "Two rival meteorologists, one mountain, no forecast.", LineKo: "앙숙인 두 기상학자, 하나의 산, 빗나간 예보."},
	}
}

// seed adds the films, and an evening of showings for each film that has none
// ahead, so that a database opened again next week still sells seats.
func (s *store) seed(ctx context.Context, now time.Time) error {
	tx, err := s.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for i, f := range houseFilms() {
		if _, err := tx.ExecContext(ctx, `INSERT INTO films (ord, `+filmCols+`) VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT (slug) DO NOTHING`,
			i, f.Slug, f.Premiere, f.Minutes, f.Age, f.TitleEn, f.TitleKo, f.LineEn, f.LineKo); err != nil {
			return err
		}
		var ahead int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM showings WHERE film = ? AND starts > ?`, f.Slug, now.UnixMilli()).Scan(&ahead); err != nil {
			return err
		}
		if ahead > 0 {
			continue
		}
		// Tomorrow evening: far enough that no showing begins while someone tries the site.
		y, m, d := now.AddDate(0, 0, 1).Date()
		for n, clock := range [][2]int{{18, 0}, {20, 30}, {23, 0}} {
			starts := time.Date(y, m, d, clock[0], clock[1]+5*i, 0, 0, now.Location())
			if _, err := tx.ExecContext(ctx, `INSERT INTO showings (film, hall, starts, price) VALUES (?,?,?,?)`,
				f.Slug, 1+(i*3+n)%6, starts.UnixMilli(), ticketPrice); err != nil {
				return err
			}
		}
	}
	return tx.Commit()
}

func (s *store) addShowing(ctx context.Context, slug string, now time.Time) (int64, error) {
	var id int64
	err := s.QueryRowContext(ctx, `INSERT INTO showings (film, hall, starts, price)
		SELECT film, 1 + count(*) % 6, max(?, max(starts)) + 1800000, ? FROM showings WHERE film = ? GROUP BY film RETURNING id`,
		now.UnixMilli(), ticketPrice, slug).Scan(&id)
	return id, noRows(err)
}
