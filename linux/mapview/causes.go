// SPDX-License-Identifier: Apache-2.0

package mapview

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// Cause is the cause of a verdict, and the number that counts its flows.
type Cause struct {
	Number uint32 `json:"number"`
	Text   string `json:"text"`
	// Ports are those that the cause is for, or empty if it is the only one.
	Ports string `json:"ports,omitempty"`
}

// Text of numbers without a cause.
const notCounted = "not counted separately"

// causes describes the causes in an entry of verdicts or table_causes.
func (m *Maps) causes(word uint32, classes [][]string) []Cause {
	if word&bpfobj.CausesByPort == 0 {
		return []Cause{{Number: word, Text: m.cause(word)}}
	}
	ports := make(map[uint32][]string)
	var order []uint32
	note := func(n uint32, text ...string) {
		if !slices.Contains(order, n) {
			order = append(order, n)
		}
		ports[n] = append(ports[n], text...)
	}
	for class, ranges := range classes {
		if class != int(model.OtherPorts) && len(ranges) > 0 {
			note(m.CauseOfClass(word, uint32(class)), ranges...)
		}
	}
	note(m.CauseOfClass(word, uint32(model.OtherPorts)), "all others")
	all := make([]Cause, len(order))
	for i, n := range order {
		all[i] = Cause{Number: n, Text: m.cause(n), Ports: strings.Join(ports[n], ", ")}
	}
	return all
}

// cause describes what a number stands for.
func (m *Maps) cause(n uint32) string {
	if e, ok := m.Entries.Causes[n]; ok {
		return policymap.DecodeCause(e).Cause.String()
	}
	if d := policymap.FixedCause(n); d.Cause != nil {
		return d.Cause.String()
	}
	if n < bpfobj.CauseFirst {
		return notCounted
	}
	return fmt.Sprintf("number %d is not in the map causes", n)
}
