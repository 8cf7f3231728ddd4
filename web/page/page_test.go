package page_test

import (
	"os"
	"testing"

	"github.com/ushergo/usher/web/page"
)

func TestBuiltinRenders(t *testing.T) {
	p, err := page.New("")
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Render(os.Stdout, page.State{Room: "premiere", View: page.View{State: page.Waiting}})
}
