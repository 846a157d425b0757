// SPDX-License-Identifier: Apache-2.0

package connectivity_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/connectivity"
	"github.com/isthmus-net/isthmus/common/model"
)

func TestChoose(t *testing.T) {
	images := map[model.OS]string{model.Windows: "probe:win"}
	node := func(name string, system model.OS, image, unfit string) connectivity.Candidate {
		return connectivity.Candidate{Node: connectivity.Node{Name: name, OS: system, Image: image}, Unfit: unfit}
	}
	all := []connectivity.Candidate{node("w2", model.Windows, "", ""), node("l3", model.Linux, "agent:1", ""), node("l1", model.Linux, "agent:1", ""), node("w1", model.Windows, "", ""),
		node("l0", model.Linux, "agent:1", "it is not ready"), node("l2", model.Linux, "", ""), node("x", "plan9", "", "")}
	for _, c := range []struct {
		name    string
		choice  connectivity.Choice
		want    string
		remarks string
		err     string
	}{
		{"both systems, in turn", connectivity.Choice{Most: 2, Images: images}, "l1=agent:1 w1=probe:win", "node l0 takes no part: it is not ready; node x takes no part: its operating system is \"plan9\"; 2 of 5 nodes take part", ""},
		{"more of one system", connectivity.Choice{Most: 4, Images: map[model.OS]string{model.Windows: "p", model.Linux: "q"}}, "l1=q l2=q w1=p w2=p", "4 of 5 nodes", ""},
		{"one system", connectivity.Choice{Most: 9, OS: model.Windows, Images: images}, "w1=probe:win w2=probe:win", "", ""},
		{"named", connectivity.Choice{Most: 9, Names: []string{"w2", "l3", "w2"}, Images: images}, "l3=agent:1 w2=probe:win", "", ""},
		{"named, unknown", connectivity.Choice{Most: 9, Names: []string{"l9"}}, "", "", `no node "l9"`},
		{"named, not ready", connectivity.Choice{Most: 9, Names: []string{"l0"}}, "", "", "node l0 cannot take part: it is not ready"},
		{"named, other system", connectivity.Choice{Most: 9, Names: []string{"l1"}, OS: model.Windows}, "", "", "node l1 runs linux, not windows"},
		{"named, too many", connectivity.Choice{Most: 1, Names: []string{"l1", "l3"}}, "", "", "2 nodes are more than --max-nodes 1"},
		{"no image", connectivity.Choice{Most: 9, OS: model.Linux}, "", "", "node l2 (linux): no image"},
		{"none", connectivity.Choice{Most: 9, OS: "plan8"}, "", "", "no node can take part"},
	} {
		chosen, remarks, err := connectivity.Choose(all, c.choice)
		var got []string
		for _, n := range chosen {
			got = append(got, fmt.Sprintf("%s=%s", n.Name, n.Image))
		}
		said := strings.Join(remarks, "; ")
		if strings.Join(got, " ") != c.want || !strings.Contains(said, c.remarks) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %q, %v", c.name, got, said, err)
		}
		if strings.HasSuffix(c.err, "no image") && !errors.Is(err, connectivity.ErrNoImage) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
