// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// Row is a failure that HNS has shown.
type Row struct {
	// Fault describes the failure and Answer the reaction of Isthmus, in the words of
	// docs/windows.md.
	Fault, Answer string
	// Ways cause the failure. Without any, Elsewhere explains why, or names the test of the answer.
	Ways      []Way
	Elsewhere string
}

// Moment is the time at which a Way takes effect.
type Moment uint8

// The moments.
const (
	BeforeAdd   Moment = iota // at any time; affects later objects
	BeforeDel                 // the Target's pod is attached and will be deleted
	WhileItRuns               // the Target's pod is attached and stays attached
	BeforeStart               // before the start of the agent
)

// Way is a trigger: one action that causes a failure.
type Way struct {
	Name string
	When Moment
	// Mode is "overlay" or "l2bridge" if the failure is specific to such networks.
	Mode   string
	Faults []Fault
	// Do changes the objects of HNS, or its behaviour.
	Do func(Target) error
	// Says is a part of the expected error of the affected ADD or start; empty if it must succeed.
	Says string
}

// Target is the emulated HNS, and the pod that a Way affects.
type Target struct {
	HNS     *hnstest.Fake
	Faults  *Faults
	Version hns.Version // which Calm restores
	// Address is the next pod's address, if known.
	Address netip.Addr
	// Endpoint is the name of the attached pod's endpoint, Namespace the GUID of its namespace.
	Endpoint, Namespace string
}

// Strike causes the failure.
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

// Calm clears all faults, and restores the version and behaviour of HNS. It does not restore lost
// objects.
func (t Target) Calm() {
	t.Faults.Clear()
	t.HNS.SetQuirks(hnstest.Quirks{})
	t.HNS.SetVersion(t.Version)
	t.HNS.Blackout(0, "")
}

// FindWay returns the Way with a name.
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

// squat makes an endpoint with the next pod's address, on the first network that contains the
// address.
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
