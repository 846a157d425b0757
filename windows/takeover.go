// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// Mismatch is a field of HNS because of which an agent does not use a network as it is. The agent refuses to start with
// the same Mismatches that a plan of a takeover prints.
type Mismatch struct {
	// Object is as in `hns network "cbr0"`.
	Object string `json:"object"`
	Field  string `json:"field"`
	Have   string `json:"have"`
	Want   string `json:"want"`
	Remedy string `json:"remedy"`
}

// String returns "object has field value, want value: remedy".
func (m Mismatch) String() string {
	return fmt.Sprintf("%s has %s %s, want %s: %s", m.Object, m.Field, m.Have, m.Want, m.Remedy)
}

// refusal is the error of an agent; nil without a Mismatch.
func refusal(all []Mismatch) error {
	if len(all) == 0 {
		return nil
	}
	var texts []string
	for _, m := range all {
		texts = append(texts, m.String())
	}
	return errors.New(strings.Join(texts, "; "))
}

// VersionMismatches returns what this version of HNS lacks.
func (c Config) VersionMismatches(v hns.Version) (all []Mismatch) {
	differs := func(want, remedy string) {
		all = append(all, Mismatch{Object: "hns", Field: "version", Have: v.String(), Want: want, Remedy: remedy})
	}
	if !v.Supports(hns.Schema2API) {
		differs("9.2 or later", "it is too old: install the updates of this Windows release")
	}
	for _, p := range c.PodCIDRs {
		if p.Addr().Is6() && !v.Supports(hns.DualStack) {
			differs("11.10 or later for IPv6", fmt.Sprintf("remove pod cidr %s", p))
		}
	}
	return all
}

// NetworkMismatches compares the network of the Config's name with the Config. An agent never deletes the network: that
// would delete everything on it and disturb the host's own traffic.
func (c Config) NetworkMismatches(n *hns.Network) (all []Mismatch) {
	differs := func(field, have, want string) {
		all = append(all, Mismatch{Object: fmt.Sprintf("hns network %q", n.Name), Field: field, Have: orNone(have), Want: want,
			Remedy: "delete it (Remove-HnsNetwork) while no pods run, or choose another name"})
	}
	want := c.wantedNetwork()
	if n.Name != c.Network { // HNS may not tell cases apart, and the names of endpoints end with that of the network
		differs("name", n.Name, c.Network)
	}
	if !strings.EqualFold(string(n.Type), string(want.Type)) {
		differs("type", string(n.Type), string(want.Type))
	}
	have := make(map[string]hns.Subnet)
	for _, s := range n.Subnets() {
		have[hns.NormalAddresses(s.IPAddressPrefix)] = s
	}
	other := func(p netip.Prefix) bool { _, ok := have[p.String()]; return !ok }
	if len(have) != len(c.PodCIDRs) || slices.ContainsFunc(c.PodCIDRs, other) {
		differs("subnets", strings.Join(subnetTexts(n), " "), strings.Join(subnetTexts(&want), " "))
		return all
	}
	for _, p := range c.PodCIDRs {
		s := have[p.String()]
		// HNS assigns this address to no endpoint. On an overlay network it is the next hop of pods.
		if have := s.Gateway(); have != "" && !sameAddress(have, gateway(p)) {
			differs("gateway", have, gateway(p).String())
		}
		if vni := s.VNI(); c.Mode == Overlay && strings.EqualFold(string(n.Type), string(hns.Overlay)) && vni != c.VNI {
			differs("vni", strconv.FormatUint(uint64(vni), 10), strconv.FormatUint(uint64(c.VNI), 10))
		}
	}
	return all
}

// sameAddress compares an address of HNS, which may spell it differently.
func sameAddress(text string, want netip.Addr) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && a == want
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

func subnetTexts(n *hns.Network) []string {
	var texts []string
	for _, s := range n.Subnets() {
		texts = append(texts, s.IPAddressPrefix)
	}
	return texts
}

// HostMismatches compares the host's endpoint, if the list has one, with the addresses that pods of an L2Bridge network
// use as next hop. One with others was made by another component. An HNS that lists no addresses is believed.
func (c Config) HostMismatches(list []hns.Endpoint) (all []Mismatch) {
	host := findNamed(list, c.HostEndpoint())
	if c.Mode != L2Bridge || host == nil {
		return nil
	}
	have := addressTexts(host)
	for _, p := range c.PodCIDRs {
		if want := hostAddress(p).String(); len(have) > 0 && !slices.Contains(have, want) {
			all = append(all, Mismatch{Object: fmt.Sprintf("endpoint %q of the host on hns network %q", host.Name, c.Network), Field: "addresses",
				Have: strings.Join(have, " "), Want: want, Remedy: "pods use it as next hop: drain the node and delete the endpoint (Remove-HnsEndpoint)"})
		}
	}
	return all
}

// Foreign returns the endpoints of pods on the network that an agent with this Config did not make, so that they have no
// policy. The host's endpoint and remote ones are not those of pods.
func (c Config) Foreign(list []hns.Endpoint) (pods []hns.Endpoint) {
	for _, e := range list {
		if _, ours := c.parseEndpointName(e.Name); !ours && !e.Remote() && e.Name != c.HostEndpoint() {
			pods = append(pods, e)
		}
	}
	return pods
}

// Found is a network of HNS with the endpoints on it.
type Found struct {
	Version   hns.Version
	Network   hns.Network
	Endpoints []hns.Endpoint
}

// Inspect reads the network that choose returns, and changes nothing. Each call to HNS ends within the deadline; 0 is
// the default of hns.Guard. Errors of choose are returned as they are.
func Inspect(ctx context.Context, client hns.Client, deadline time.Duration, choose func([]hns.Network) (hns.Network, error)) (f Found, err error) {
	client = hns.Guard(client, hns.GuardConfig{Deadline: deadline})
	if f.Version, err = client.Version(ctx); err != nil {
		return f, fmt.Errorf("read the version of hns: %w", remedied(err))
	}
	networks, err := listed(func() ([]hns.Network, error) { return client.Networks(ctx) })
	if err != nil {
		return f, fmt.Errorf("list hns networks: %w", remedied(err))
	}
	if f.Network, err = choose(networks); err != nil {
		return f, err
	}
	f.Endpoints, err = listed(func() ([]hns.Endpoint, error) { return client.Endpoints(ctx, f.Network.ID) })
	if err != nil {
		return f, fmt.Errorf("list endpoints of network %q: %w", f.Network.Name, remedied(err))
	}
	return f, nil
}
