package affinitymetrics_test

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/affinitymetrics"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/engine/memory"
)

func TestFigures(t *testing.T) {
	d := memory.NewDirectory(nil)
	o, err := affinity.Open(d, affinity.Options[string]{
		Space: "s", Instance: "a", Addr: "127.0.0.1:1",
		Build: func(_ context.Context, key string, _ uint64) (string, error) {
			if key == "bad" {
				return "", errors.New("no")
			}
			return key, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	g, err := gateway.New(gateway.Options{Space: "s", Directory: d, Key: gateway.Key{Query: "k"}})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(affinitymetrics.Owner("s", o), affinitymetrics.Gateway("r", g.Stats))
	use := func(key string) {
		_ = o.Use(t.Context(), key, func(context.Context, affinity.Session[string]) error { return nil })
	}
	use("1")
	use("2")
	use("bad")
	o.Retire("2", affinity.ErrIdle)
	families, err := reg.Gather() // the registry is pedantic: every figure is as it was described
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetName() + "=" + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"usher_affinity_builds_total result=failed space=s": 1,
		"usher_affinity_builds_total result=ok space=s":     2,
		"usher_affinity_sessions space=s":                   1,
		"usher_affinity_directory_up space=s":               1,
		"usher_affinity_ended_total reason=idle space=s":    1,
		"usher_affinity_ended_total reason=forced space=s":  0,
		"usher_keylock_granted_total space=s":               3,
		"usher_keylock_forced_total space=s":                0,
		"usher_keylock_refused_total reason=full space=s":   0,
		"usher_route_requests_total route=r":                0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
	if s := o.Stats(); s.Ended["idle"] != 1 {
		t.Errorf("%+v", s)
	}
}
