module github.com/ushergo/usher/examples/browsers

go 1.26.0

replace github.com/ushergo/usher => ../..

require (
	github.com/chromedp/chromedp v0.23.1
	github.com/redis/rueidis v1.0.79
	github.com/ushergo/usher v0.0.0
)

require (
	github.com/chromedp/cdproto v0.160.1 // indirect
	github.com/go-jose/go-jose/v4 v4.1.9 // indirect
	github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
	golang.org/x/sys v0.50.0 // indirect
)
