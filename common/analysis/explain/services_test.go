// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/model"
)

// A client outside the cluster may come with the address of a node, through a Service that
// leads to the pod. Nothing else gets the note.
func TestHiddenClients(t *testing.T) {
	api := model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{"api"}})
	hides := model.Service{Namespace: "shop", Name: "front", Pods: api, External: "NodePort"}
	keeps, inside, other := hides, hides, hides
	keeps.KeepsClients, inside.External, other.Namespace = true, "", "bank"
	for _, c := range []struct {
		name     string
		src, dst string
		service  model.Service
		noted    bool
	}{
		{"client outside", "192.0.2.7", "10.0.1.2", hides, true},
		{"Service keeps clients", "192.0.2.7", "10.0.1.2", keeps, false},
		{"Service is for the cluster only", "192.0.2.7", "10.0.1.2", inside, false},
		{"Service of another namespace", "192.0.2.7", "10.0.1.2", other, false},
		{"pod without policy", "192.0.2.7", "10.0.2.2", hides, false},
		{"client is a pod", "10.0.2.2", "10.0.1.2", hides, false},
	} {
		f := model.Flow{Src: netip.MustParseAddr(c.src), Dst: netip.MustParseAddr(c.dst), Protocol: model.TCP, Port: 80}
		var notes []string
		for _, side := range explain.Flow(webToAPI(), f, []*model.Service{&c.service}, nil).Sides {
			notes = append(notes, side.Notes...)
		}
		if noted := len(notes) == 1 && strings.Contains(notes[0], "shop/front (NodePort)") && strings.Contains(notes[0], c.src); noted != c.noted || len(notes) > 1 {
			t.Errorf("%s: notes are %q", c.name, notes)
		}
	}
}
