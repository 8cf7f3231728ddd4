package cinema

import (
	"net/http"
	"strconv"
	"strings"
)

// language picks Korean or English by the q-values of Accept-Language; English
// when neither is named or both are equal and it comes first.
func language(r *http.Request) string {
	best, lang := 0.0, "en"
	for part := range strings.SplitSeq(r.Header.Get("Accept-Language"), ",") {
		tag, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		q := 1.0
		if v, ok := strings.CutPrefix(strings.TrimSpace(params), "q="); ok {
			f, err := strconv.ParseFloat(v, 64)
			if err != nil {
				continue
			}
			q = f
		}
		primary, _, _ := strings.Cut(strings.ToLower(tag), "-")
		if (primary == "ko" || primary == "en") && q > best {
			best, lang = q, primary
		}
	}
	return lang
}

// texts is every word on the pages. A test checks that both languages have each.
var texts = map[string]map[string]string{
	"house":          {"en": "Lumen Cinema", "ko": "루멘 극장"},
	"skip":           {"en": "Skip to content", "ko": "본문으로 건너뛰기"},
	"nav.films":      {"en": "Films", "ko": "상영작"},
	"nav.bookings":   {"en": "My bookings", "ko": "예매 내역"},
	"inside":         {"en": "%d people inside", "ko": "지금 %d명이 둘러보고 있습니다"},
	"inside.one":     {"en": "You have the house to yourself", "ko": "지금은 혼자 둘러보고 계십니다"},
	"foot":           {"en": "An example site. Nothing here costs money.", "ko": "예제 사이트입니다. 실제로 결제되지 않습니다."},
	"title.home":     {"en": "Now showing", "ko": "현재 상영작"},
	"title.film":     {"en": "Showings", "ko": "상영 시간표"},
	"title.seats":    {"en": "Choose a seat", "ko": "좌석 선택"},
	"title.pay":      {"en": "Check and pay", "ko": "확인 및 결제"},
	"title.thanks":   {"en": "Booked", "ko": "예매 완료"},
	"title.bookings": {"en": "My bookings", "ko": "예매 내역"},
	"title.sorry":    {"en": "Sorry", "ko": "죄송합니다"},

	"premiere":     {"en": "Premiere", "ko": "프리미어"},
	"home.get":     {"en": "Get tickets", "ko": "예매하기"},
	"home.also":    {"en": "Also showing", "ko": "함께 상영 중"},
	"age.all":      {"en": "All ages", "ko": "전체 관람가"},
	"age.from":     {"en": "%d and over", "ko": "%d세 이상"},
	"minutes":      {"en": "%d min", "ko": "%d분"},
	"hall":         {"en": "Screen %d", "ko": "%d관"},
	"left":         {"en": "%d seats left", "ko": "%d석 남음"},
	"left.one":     {"en": "Last seat", "ko": "마지막 1석"},
	"soldout":      {"en": "Sold out", "ko": "매진"},
	"soldout.all":  {"en": "Every showing is sold out. Seats that are not paid for come back after a few minutes.", "ko": "모든 회차가 매진되었습니다. 결제되지 않은 좌석은 몇 분 뒤 다시 나옵니다."},
	"soldout.more": {"en": "and %d more showings that are sold out", "ko": "그 밖에 매진된 회차 %d개"},
	"none":         {"en": "No showings at the moment.", "ko": "지금은 상영 회차가 없습니다."},
	"showings.h":   {"en": "Choose a showing", "ko": "회차 선택"},

	"seat.h":       {"en": "Choose your seat", "ko": "좌석을 선택하세요"},
	"seat.screen":  {"en": "Screen", "ko": "스크린"},
	"seat.name":    {"en": "Row %s, seat %d", "ko": "%s열 %d번"},
	"seat.isgone":  {"en": "taken", "ko": "선택 불가"},
	"seat.free":    {"en": "free", "ko": "선택 가능"},
	"seat.yours":   {"en": "yours", "ko": "내 선택"},
	"seat.go":      {"en": "Reserve this seat", "ko": "이 좌석 잡기"},
	"seat.choose":  {"en": "Choose a seat first.", "ko": "먼저 좌석을 선택하세요."},
	"seat.taken":   {"en": "Someone was quicker: seat %s has just been taken. Choose another.", "ko": "%s 좌석은 방금 다른 분이 먼저 잡았습니다. 다른 좌석을 선택하세요."},
	"seat.ranout":  {"en": "Your reservation of seat %s ran out before it was paid. Nothing was charged.", "ko": "결제 전에 %s 좌석의 예약 시간이 끝났습니다. 결제되지 않았습니다."},
	"seat.soldout": {"en": "The last seat of this showing has just gone.", "ko": "이 회차의 마지막 좌석이 방금 나갔습니다."},
	"seat.begun":   {"en": "This showing has begun; it is no longer on sale.", "ko": "이미 시작된 회차라 예매할 수 없습니다."},
	"seat.other":   {"en": "See other showings", "ko": "다른 회차 보기"},

	"pay.h":     {"en": "Check your ticket", "ko": "예매 내용 확인"},
	"pay.held":  {"en": "Seat %s is kept for you for %d more minutes.", "ko": "%s 좌석을 앞으로 %d분 동안 잡아 두었습니다."},
	"pay.one":   {"en": "Seat %s is kept for you for less than a minute.", "ko": "%s 좌석의 예약 시간이 1분도 남지 않았습니다."},
	"pay.go":    {"en": "Pay %s", "ko": "%s 결제하기"},
	"pay.back":  {"en": "Give the seat back", "ko": "좌석 취소"},
	"pay.total": {"en": "Total", "ko": "합계"},

	"f.film":    {"en": "Film", "ko": "영화"},
	"f.when":    {"en": "When", "ko": "일시"},
	"f.where":   {"en": "Where", "ko": "상영관"},
	"f.seat":    {"en": "Seat", "ko": "좌석"},
	"f.code":    {"en": "Booking", "ko": "예매 번호"},
	"f.ticket":  {"en": "Waiting-room ticket", "ko": "대기실 번호표"},
	"thanks.h":  {"en": "The seat is yours", "ko": "예매가 끝났습니다"},
	"thanks.p":  {"en": "Enjoy the film. You will find this ticket under My bookings, without waiting again.", "ko": "즐거운 관람 되세요. 이 예매는 다시 기다리지 않고 예매 내역에서 볼 수 있습니다."},
	"books.h":   {"en": "My bookings", "ko": "예매 내역"},
	"books.no":  {"en": "Nothing booked from this browser yet.", "ko": "이 브라우저로 예매한 내역이 없습니다."},
	"books.to":  {"en": "See what is on", "ko": "상영작 보기"},
	"err.none":  {"en": "There is no such page.", "ko": "찾으시는 페이지가 없습니다."},
	"err.form":  {"en": "That form was not complete. Go back and try again.", "ko": "양식이 올바르지 않습니다. 뒤로 가서 다시 시도하세요."},
	"err.busy":  {"en": "Too many people are at the box office at once. Nothing was booked; try again in a few seconds.", "ko": "지금 매표소에 사람이 너무 많습니다. 예매되지 않았으니 몇 초 뒤 다시 시도하세요."},
	"err.ours":  {"en": "Something went wrong on our side.", "ko": "저희 쪽에서 문제가 생겼습니다."},
	"err.cross": {"en": "That request came from another site, so it was refused.", "ko": "다른 사이트에서 온 요청이라 거절했습니다."},
}
