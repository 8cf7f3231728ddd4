package stomp_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/ushergo/usher/push/stomp"
)

func all(t *testing.T, v stomp.Version, chunks ...string) (frames []stomp.Frame, err error) {
	t.Helper()
	d := stomp.Decoder{Version: v}
	for _, c := range chunks {
		d.Feed([]byte(c))
		for {
			f, ok, err := d.Next()
			if err != nil {
				return frames, err
			}
			if !ok {
				break
			}
			frames = append(frames, f)
		}
	}
	return frames, nil
}

func TestFrames(t *testing.T) { // cases/push 17
	for _, c := range []struct {
		name string
		v    stomp.Version
		in   []string
		want string // command, then each header, then the body, joined by |; frames by ;
	}{
		{"plain", stomp.V12, []string{"SEND\na:b\n\nhi\x00"}, "SEND|a=b|hi"},
		{"two in one", stomp.V12, []string{"A\n\n\x00B\n\n\x00"}, "A|;B|"},
		{"halves", stomp.V12, []string{"SE", "ND\na:", "b\n", "\nh", "i\x00\n"}, "SEND|a=b|hi"},
		{"line feeds", stomp.V12, []string{"\n", "\n\r\n\nA\n\n\x00\n\n", "\n"}, "A|"},
		{"CR LF in 1.2", stomp.V12, []string{"A\r\nx:y\r\n\r\nz\x00"}, "A|x=y|z"},
		{"escapes in 1.2", stomp.V12, []string{`A` + "\n" + `a\cb:\\n\n\r` + "\n\n\x00"}, "A|a:b=\\n\n\r|"},
		{"escapes in 1.1", stomp.V11, []string{`A` + "\n" + `a\cb:\\\n` + "\n\n\x00"}, "A|a:b=\\\n|"},
		{"no escapes in 1.0", stomp.V10, []string{`A` + "\n" + `a:\c\x` + "\n\n\x00"}, `A|a=\c\x|`},
		{"CONNECT is not escaped", stomp.V12, []string{`CONNECT` + "\n" + `a:\c\x` + "\n\n\x00"}, `CONNECT|a=\c\x|`},
		{"nothing is trimmed", stomp.V12, []string{"A\n a : b \n\n\x00"}, "A| a = b |"},
		{"colons in values", stomp.V12, []string{"A\na:b:c\n\n\x00"}, "A|a=b:c|"},
		{"content-length", stomp.V12, []string{"A\ncontent-length:3\n\na\x00b\x00"}, "A|content-length=3|a\x00b"},
		{"content-length counts bytes", stomp.V12, []string{"A\ncontent-length:3\n\n€\x00"}, "A|content-length=3|€"},
		{"content-length in halves", stomp.V12, []string{"A\ncontent-length:3\n\na\x00", "b\x00"}, "A|content-length=3|a\x00b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			frames, err := all(t, c.v, c.in...)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range frames {
				parts := []string{f.Command}
				for _, h := range f.Headers {
					parts = append(parts, h.Name+"="+h.Value)
				}
				got = append(got, strings.Join(append(parts, string(f.Body)), "|"))
			}
			if g := strings.Join(got, ";"); g != c.want {
				t.Errorf("%q, want %q", g, c.want)
			}
		})
	}
}

func TestFirstHeaderCounts(t *testing.T) {
	frames, err := all(t, stomp.V12, "A\nx:1\nx:2\n\n\x00")
	if err != nil || frames[0].Value("x") != "1" {
		t.Error(frames, err)
	}
}

func TestBrokenFrames(t *testing.T) { // cases/push 17
	for _, c := range []struct {
		name string
		v    stomp.Version
		in   string
		big  bool
	}{
		{"unknown escape", stomp.V12, `A` + "\n" + `a:\t` + "\n\n\x00", false},
		{"escape of 1.2 in 1.1", stomp.V11, `A` + "\n" + `a:\r` + "\n\n\x00", false},
		{"backslash at the end", stomp.V12, `A` + "\n" + `a:b\` + "\n\n\x00", false},
		{"header without colon", stomp.V12, "A\nab\n\n\x00", false},
		{"header without name", stomp.V12, "A\n:b\n\n\x00", false},
		{"lower case", stomp.V12, "send\n\n\x00", false},
		{"CR LF in 1.1", stomp.V11, "A\r\n\r\n\x00", false},
		{"NUL in the head", stomp.V12, "A\na:\x00b\n\n\x00", false},
		{"no NUL after content-length", stomp.V12, "A\ncontent-length:1\n\nabc\x00", false},
		{"negative content-length", stomp.V12, "A\ncontent-length:-1\n\n\x00", false},
		{"huge content-length", stomp.V12, "A\ncontent-length:1099511627776\n\n", false},
		{"large content-length", stomp.V12, "A\ncontent-length:1000000\n\n", true},
		{"long line", stomp.V12, "A\na:" + strings.Repeat("x", 2000), true},
		{"many headers", stomp.V12, "A\n" + strings.Repeat("a:b\n", 33) + "\n\x00", true},
		{"endless body", stomp.V12, "A\n\n" + strings.Repeat("x", 17<<10), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			frames, err := all(t, c.v, c.in)
			if err == nil {
				t.Fatalf("%v", frames)
			}
			if errors.Is(err, stomp.ErrTooBig) != c.big {
				t.Error(err)
			}
		})
	}
}

// However a stream is cut, the same frames come out; and what we write, we read.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte("CONNECT\naccept-version:1.2\n\n\x00\nSUBSCRIBE\nid:a\\cb\n\n\x00"), uint8(3), uint8(2))
	f.Add([]byte("A\ncontent-length:2\n\n\x00\x00\x00\r\n"), uint8(1), uint8(1))
	f.Fuzz(func(t *testing.T, in []byte, cut, version uint8) {
		v := stomp.Version(version % 3)
		whole, err1 := all(t, v, string(in))
		var parts []string
		for step := int(cut) + 1; len(in) > 0; {
			k := min(step, len(in))
			parts = append(parts, string(in[:k]))
			in = in[k:]
		}
		pieces, err2 := all(t, v, parts...)
		// Frames before an error are the same; where it is noticed may differ only by the limits.
		n := min(len(whole), len(pieces))
		if (err1 == nil) != (err2 == nil) && !errors.Is(err1, stomp.ErrTooBig) && !errors.Is(err2, stomp.ErrTooBig) {
			t.Fatalf("whole: %v, in pieces: %v", err1, err2)
		}
		for i := range n {
			a, b := whole[i].Append(nil, v), pieces[i].Append(nil, v)
			if !bytes.Equal(a, b) {
				t.Fatalf("%q and %q", a, b)
			}
			if h := whole[i].Command; h == "CONNECT" || h == "STOMP" || h == "CONNECTED" || bytes.IndexByte(whole[i].Body, 0) >= 0 {
				continue
			}
			again, err := all(t, v, string(a))
			if err != nil && !errors.Is(err, stomp.ErrTooBig) { // escapes make it longer
				t.Fatalf("%q: %v", a, err)
			}
			if err == nil && (len(again) != 1 || !bytes.Equal(again[0].Body, whole[i].Body) || len(again[0].Headers) != len(whole[i].Headers)) {
				t.Fatalf("%q came back as %v", a, again)
			}
		}
	})
}
