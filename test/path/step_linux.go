// SPDX-License-Identifier: Apache-2.0

package path

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

// Step is one thing that happens on the node. One of Pod, Remove, Age, Track, Forget, Restart,
// Upgrade, Adopt, Form and Packet is set.
type Step struct {
	// Pod attaches a pod, or gives one that is there another policy.
	Pod *PodStep `json:"pod,omitempty"`
	// Remove names a pod that goes.
	Remove string `json:"remove,omitempty"`
	// Age lets that many seconds pass.
	Age int `json:"age,omitempty"`
	// Restart reloads the programs over the maps, and reads what is in them.
	Restart bool `json:"restart,omitempty"`
	// Upgrade has the agent of a newer version begin, or end, to take an older layout over:
	// "marks" or "none" says whether the older programs leave marks, "done" ends it.
	Upgrade string `json:"upgrade,omitempty"`
	// Adopt has all flows come from the layout of that version, 1 to 3.
	Adopt int `json:"adopt,omitempty"`
	// Form says which programs decide in the stack from now on: "hook", those for the hooks
	// of netfilter, or "filter", those for rules, which are there at first.
	Form string `json:"form,omitempty"`
	// Forget has connection tracking forget all flows.
	Forget bool `json:"forget,omitempty"`
	// Track has connection tracking know the flow of Packet, which is not sent.
	Track bool `json:"track,omitempty"`

	// At is where a packet comes from: the name of a pod, "uplink", "tunnel" or
	// "host", or "wire" for frames by the uplink that the kernel's stack does not see.
	At     string            `json:"at,omitempty"`
	Packet *reference.Packet `json:"packet,omitempty"`
	// Backend has the stack translate the destination to it, if nothing else translates
	// the packet. Fresh has it forget what it translated before. Masquerade is the port
	// of the node that takes the place of the source; 0 leaves that. With Gateway it is a port
	// of the node's address in the range of its pods.
	Backend    netip.AddrPort `json:"backend,omitzero"`
	Fresh      bool           `json:"fresh,omitempty"`
	Masquerade uint16         `json:"masquerade,omitempty"`
	Gateway    bool           `json:"gateway,omitempty"`
	// IPVS has the kernel's virtual server translate to Backend.
	IPVS bool `json:"ipvs,omitempty"`
	// Defragment has the stack put a fragmented datagram together, as connection tracking does.
	Defragment bool `json:"defragment,omitempty"`
	// Copied has a rule of the administrator (TEE, nft dup) send a copy of the packet before it
	// is translated: a copy passes LOCAL_OUT only. Raised has such a rule set the hop limit of a
	// forwarded packet to 255.
	Copied bool `json:"copied,omitempty"`
	Raised bool `json:"raised,omitempty"`
	// Mark replaces the mark that the program of the pod left: "none", or "old", that
	// of the packet before the last one with a record.
	Mark string `json:"mark,omitempty"`
}

// PodStep is a pod and its policy.
type PodStep struct {
	Name string `json:"name"` // a to f
	// Address is the number of its addresses, of both families.
	Address int              `json:"address"`
	Limited bool             `json:"limited,omitempty"`
	Policy  reference.Policy `json:"policy"`
}

// Text writes steps down, one in a line.
func Text(steps []Step) string {
	var b bytes.Buffer
	for _, s := range steps {
		line, err := json.Marshal(s)
		if err != nil {
			panic(err) // steps are plain values
		}
		b.Write(append(line, '\n'))
	}
	return b.String()
}

// Parse reads what Text writes. Lines that begin with # are left out.
func Parse(text []byte) (steps []Step, err error) {
	for n, line := range bytes.Split(text, []byte("\n")) {
		if line = bytes.TrimSpace(line); len(line) == 0 || line[0] == '#' {
			continue
		}
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		var s Step
		if err := d.Decode(&s); err != nil {
			return nil, fmt.Errorf("read step in line %d: %w", n+1, err)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

func (s *Step) age() time.Duration { return time.Duration(s.Age) * time.Second }
