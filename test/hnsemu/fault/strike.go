// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// Row is something that HNS has been seen to do.
type Row struct {
	// Fault and Answer are what happens and what Isthmus does, as docs/windows.md
	// has them.
	Fault, Answer string
	// Ways bring it about. None: Elsewhere says why, or what shows the answer.
	Ways      []Way
	Elsewhere string
}

// Moment is when a Way has something to work on.
type Moment uint8

// The moments.
const (
	BeforeAdd   Moment = iota // at any time; what is new meets it
	BeforeDel                 // the Target's pod is attached and goes next
	WhileItRuns               // the Target's pod is attached and stays
	BeforeStart               // of the agent
)

// Way brings a fault about.
type Way struct {
	Name string
	When Moment
	// Mode is "overlay" or "l2bridge" if only such networks meet it.
	Mode   string
	Faults []Fault
	// Do changes what HNS holds, or what kind of HNS it is.
	Do func(Target) error
	// Says is a part of the error that an ADD (or the start) which meets it must
	// give; empty if it must succeed all the same.
	Says string
}

// Target is what is struck.
type Target struct {
	HNS     *hnstest.Fake
	Faults  *Faults
	Version hns.Version // to go back to
	// Address is the one that the next pod is given, if that is known.
	Address netip.Addr
	// Endpoint and Namespace are of an attached pod: a name and a GUID.
	Endpoint, Namespace string
}

// Strike brings the fault about.
func (t Target) Strike(w Way) error {
	if w.Do != nil {
		if err := w.Do(t); err != nil {
			return fmt.Errorf("strike %q: %w", w.Name, err)
		}
	}
	for _, f := range w.Faults {
		t.Faults.Set(f)
	}
	return nil
}

// Calm ends all faults of calls and of kind. What HNS has lost stays lost.
func (t Target) Calm() {
	t.Faults.Clear()
	t.HNS.SetQuirks(hnstest.Quirks{})
	t.HNS.SetVersion(t.Version)
	t.HNS.Blackout(0, "")
}

// FindWay returns the way of a name.
func FindWay(name string) (Way, bool) {
	for _, r := range Catalogue() {
		for _, w := range r.Ways {
			if w.Name == name {
				return w, true
			}
		}
	}
	return Way{}, false
}

// squat makes an endpoint that has the next pod's address on the first network
// that has room for it.
func (t Target) squat(e hns.Endpoint) error {
	list, err := t.HNS.Networks(context.Background())
	if err != nil {
		return err
	}
	for _, n := range list {
		for _, s := range n.Subnets() {
			if p, err := netip.ParsePrefix(s.IPAddressPrefix); err != nil || !p.Contains(t.Address) {
				continue
			}
			e.HostComputeNetwork, e.SchemaVersion = n.ID, hns.Schema2
			e.IPConfigurations = []hns.IPConfig{{IPAddress: t.Address.String()}}
			_, err := t.HNS.CreateEndpoint(context.Background(), e)
			return err
		}
	}
	return fmt.Errorf("no network has room for %s", t.Address)
}

// setState changes the state of the Target's endpoint.
func (t Target) setState(s hns.State) error {
	list, err := t.HNS.AllEndpoints(context.Background())
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.Name == t.Endpoint {
			return t.HNS.SetState(e.ID, s)
		}
	}
	return fmt.Errorf("there is no endpoint %q", t.Endpoint)
}
