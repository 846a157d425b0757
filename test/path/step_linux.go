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

// Step is one event on the node. One of Pod, Remove, Age, Track, Forget, Skip, Restart, Upgrade, Adopt, Form and Packet
// is set.
type Step struct {
	// Pod attaches a pod, or replaces the policy of an attached one.
	Pod *PodStep `json:"pod,omitempty"`
	// Remove names the pod to remove.
	Remove string `json:"remove,omitempty"`
	// Age advances the clock by that many seconds.
	Age int `json:"age,omitempty"`
	// Restart reloads the programs over the maps, and reads their content.
	Restart bool `json:"restart,omitempty"`
	// Upgrade begins or ends the migration from an older layout: it begins with "marks" or "none", which state
	// whether the older programs set marks, and ends with "done".
	Upgrade string `json:"upgrade,omitempty"`
	// Adopt replaces all flows with flows of that layout version, 1 to 3.
	Adopt int `json:"adopt,omitempty"`
	// Form selects the programs that decide in the stack from this step on: "hook" for netfilter hooks, or
	// "filter" for nftables rules, which is the default.
	Form string `json:"form,omitempty"`
	// Skip lets other packets write records, so that the next record takes the place of the last one.
	Skip bool `json:"skip,omitempty"`
	// Forget removes all flows from connection tracking.
	Forget bool `json:"forget,omitempty"`
	// Track adds the flow of Packet to connection tracking. The packet is not sent.
	Track bool `json:"track,omitempty"`

	// At is the origin of a packet: the name of a pod, "uplink", "tunnel" or "host", or "wire" for frames of the
	// uplink that XDP decides.
	At     string            `json:"at,omitempty"`
	Packet *reference.Packet `json:"packet,omitempty"`
	// Backend makes the stack translate the destination to it, if nothing else translates the packet. Fresh
	// removes earlier translations. Masquerade is the port of the node that replaces the source; 0 keeps the
	// source. With Gateway it is a port of the node's address in the range of its pods.
	Backend    netip.AddrPort `json:"backend,omitzero"`
	Fresh      bool           `json:"fresh,omitempty"`
	Masquerade uint16         `json:"masquerade,omitempty"`
	Gateway    bool           `json:"gateway,omitempty"`
	// IPVS makes the kernel's virtual server translate to Backend.
	IPVS bool `json:"ipvs,omitempty"`
	// Defragment makes the stack reassemble a fragmented datagram, as connection tracking does.
	Defragment bool `json:"defragment,omitempty"`
	// Copied makes a rule of the administrator (TEE, nft dup) send a copy of the packet before translation: a
	// copy passes LOCAL_OUT only. Raised makes such a rule set the hop limit of a forwarded packet to 255.
	Copied bool `json:"copied,omitempty"`
	Raised bool `json:"raised,omitempty"`
	// Mark replaces the mark that from_pod set: "none", or "old", the mark of the packet before the last one with
	// a record.
	Mark string `json:"mark,omitempty"`
	// Unhinted removes the hints of all flows before the packet, so that the programs ask the index.
	Unhinted bool `json:"unhinted,omitempty"`
}

// PodStep is a pod and its policy.
type PodStep struct {
	Name string `json:"name"` // a to f
	// Address is the index of its addresses, of both families.
	Address int              `json:"address"`
	Limited bool             `json:"limited,omitempty"`
	Policy  reference.Policy `json:"policy"`
}

// Text returns the steps as text, one per line.
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

// Parse reads the text of Text. It ignores lines that begin with #.
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
