// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// TestCallMetrics counts calls that succeed, fail, are repeated and get no answer.
func TestCallMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := windows.NewCallMetrics()
		n := &node{t: t, fake: hnstest.NewFake(hns.Server2022), config: bridgeConfig()}
		n.config.Observe, n.config.CallDeadline = m.Observe, 200*time.Millisecond
		faults := new(fault.Faults)
		backend, err := windows.New(ctx, n.config, &fault.Client{Fake: n.fake, Faults: faults}, discard)
		if err != nil {
			t.Fatal(err)
		}
		n.backend = backend
		n.add(n.spec("c1", "10.0.1.5"))
		faults.Set(fault.Fault{Op: "Create.endpoint", Times: 1, Code: hns.CodeUnspecified}) // repeated
		n.add(n.spec("c2", "10.0.1.6"))
		faults.Set(fault.Fault{Op: "Create.endpoint", Times: 1, Code: hns.CodeAccessDenied})
		faults.Set(fault.Fault{Op: "Create.endpoint", Times: 1, Hang: true})
		for _, name := range []string{"c3", "c4"} {
			if _, err := backend.AddEndpoint(ctx, n.spec(name, "10.0.1.7")); err == nil {
				t.Errorf("%s was attached", name)
			}
		}
		faults.Clear()
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(m)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		counted := make(map[string]float64)
		times := 0
		for _, f := range families {
			for _, metric := range f.GetMetric() {
				name := f.GetName()
				for _, l := range metric.GetLabel() {
					name += " " + l.GetValue()
				}
				if f.GetName() == "isthmus_hns_call_errors_total" {
					counted[name] = metric.GetCounter().GetValue()
				} else if name == "isthmus_hns_call_duration_seconds CreateEndpoint" {
					times = int(metric.GetHistogram().GetSampleCount())
				}
			}
		}
		// The host's endpoint, c1, c2 twice, c3, c4.
		if want := map[string]float64{"isthmus_hns_call_errors_total 0x80004005 CreateEndpoint": 1, "isthmus_hns_call_errors_total 0x80070005 CreateEndpoint": 1,
			"isthmus_hns_call_errors_total 0x800705b4 CreateEndpoint": 1}; !maps.Equal(counted, want) || times != 6 {
			t.Errorf("errors %v, want %v; %d calls timed", counted, want, times)
		}
	})
}
