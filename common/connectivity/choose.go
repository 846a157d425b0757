// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// Candidate is a node of the cluster.
type Candidate struct {
	Node
	// Unfit says why the node cannot run pods now; empty if it can.
	Unfit string
}

// Choice says which nodes take part.
type Choice struct {
	// Names are nodes that must take part; if there are some, no others do.
	Names []string
	// OS limits the nodes to one system; empty for both.
	OS model.OS
	// Most bounds the number of nodes.
	Most int
	// Images are the images of pods for nodes whose Image is empty, or that override it.
	Images map[model.OS]string
}

// ErrNoImage is in the chain of errors of Choose if the image of a node's pods is not known.
var ErrNoImage = errors.New("no image")

// Choose returns the nodes that take part, and remarks about those that do not. Both systems take part if possible.
func Choose(all []Candidate, c Choice) (chosen []Node, remarks []string, err error) {
	byName := make(map[string]Candidate, len(all))
	for _, n := range all {
		byName[n.Name] = n
	}
	if len(c.Names) > 0 {
		for _, name := range slices.Compact(slices.Sorted(slices.Values(c.Names))) {
			n, known := byName[name]
			switch {
			case !known:
				return nil, nil, fmt.Errorf("the cluster has no node %q that the selector matches", name)
			case n.Unfit != "":
				return nil, nil, fmt.Errorf("node %s cannot take part: %s", name, n.Unfit)
			case c.OS != "" && n.OS != c.OS:
				return nil, nil, fmt.Errorf("node %s runs %s, not %s", name, n.OS, c.OS)
			}
			chosen = append(chosen, n.Node)
		}
	} else {
		chosen, remarks = pick(all, c)
	}
	if len(chosen) > c.Most {
		return nil, remarks, fmt.Errorf("%d nodes are more than --max-nodes %d", len(chosen), c.Most)
	}
	if len(chosen) == 0 {
		return nil, remarks, errors.New("no node can take part: " + cmp.Or(strings.Join(remarks, "; "), "the cluster has none that is selected"))
	}
	for i := range chosen {
		n := &chosen[i]
		n.Image = cmp.Or(c.Images[n.OS], n.Image)
		if n.Image == "" {
			return nil, remarks, fmt.Errorf("node %s (%s): %w for the pods there", n.Name, n.OS, ErrNoImage)
		}
	}
	return chosen, remarks, nil
}

// pick takes nodes of both systems in turn, by name.
func pick(all []Candidate, c Choice) (chosen []Node, remarks []string) {
	bySystem := make(map[model.OS][]Node)
	for _, n := range slices.SortedFunc(slices.Values(all), func(a, b Candidate) int { return strings.Compare(a.Name, b.Name) }) {
		switch {
		case c.OS != "" && n.OS != c.OS:
		case n.OS != model.Linux && n.OS != model.Windows:
			remarks = append(remarks, fmt.Sprintf("node %s takes no part: its operating system is %q", n.Name, n.OS))
		case n.Unfit != "":
			remarks = append(remarks, fmt.Sprintf("node %s takes no part: %s", n.Name, n.Unfit))
		default:
			bySystem[n.OS] = append(bySystem[n.OS], n.Node)
		}
	}
	total := len(bySystem[model.Linux]) + len(bySystem[model.Windows])
	for i := 0; len(chosen) < min(c.Most, total); i++ {
		for _, system := range []model.OS{model.Linux, model.Windows} {
			if i < len(bySystem[system]) && len(chosen) < c.Most {
				chosen = append(chosen, bySystem[system][i])
			}
		}
	}
	slices.SortFunc(chosen, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	if len(chosen) < total {
		remarks = append(remarks, fmt.Sprintf("%d of %d nodes take part: name others with --node, or raise --max-nodes", len(chosen), total))
	}
	return chosen, remarks
}
