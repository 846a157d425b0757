// SPDX-License-Identifier: Apache-2.0

package query

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/model"
)

// flow reads the ends, the protocol and the port.
func (o *explainOptions) flow(s *model.Snapshot) (model.Flow, error) {
	var f model.Flow
	protocol, err := model.ParseProtocol(o.protocol)
	if err != nil {
		return f, cli.Usagef("--protocol: %w", err)
	}
	from, err := cluster.Addresses(s, o.from)
	if err != nil {
		return f, fmt.Errorf("--from: %w", err)
	}
	to, err := cluster.Addresses(s, o.to)
	if err != nil {
		return f, fmt.Errorf("--to: %w", err)
	}
	f.Protocol = protocol
	f.Src, f.Dst, err = cluster.SameFamily(from, to, protocol)
	if err != nil {
		return f, fmt.Errorf("%s -> %s: %w", o.from, o.to, err)
	}
	if err := o.notOfService(s, f.Dst); err != nil {
		return f, fmt.Errorf("--to: %w", err)
	}
	f.Port, err = readPort(o.port, protocol, s.Owners().Pods[f.Dst])
	return f, err
}

// notOfService returns an error if an address is one of a Service: policy never sees it, but
// the pods behind it.
func (o *explainOptions) notOfService(s *model.Snapshot, a netip.Addr) error {
	for _, service := range o.Services {
		if !slices.Contains(service.Addresses, a) || s.Owners().Pods[a] != nil || s.Owners().Nodes[a] != nil {
			continue
		}
		var pods []string
		for id, p := range s.Pods.All() {
			if id.Namespace == service.Namespace && service.Pods.Matches(p.Labels) {
				pods = append(pods, id.String())
			}
		}
		slices.Sort(pods)
		if len(pods) == 0 {
			return fmt.Errorf("%s is an address of Service %s/%s, whose pods are not known: policies apply to the pods, not to the Service",
				a, service.Namespace, service.Name)
		}
		return fmt.Errorf("%s is an address of Service %s/%s: policies apply to its pods, ask about one of them and its target port: %s",
			a, service.Namespace, service.Name, cli.Shorten(pods, 5))
	}
	return nil
}

// readPort reads a number, or a port name of the destination.
func readPort(text string, p model.Protocol, to *model.Pod) (uint16, error) {
	if !p.HasPorts() {
		if text != "" {
			return 0, cli.Usagef("--port %q: %s has no ports", text, p)
		}
		return 0, nil
	}
	if text == "" {
		return 0, cli.Usagef("--port: give the destination port")
	}
	if n, err := strconv.ParseUint(text, 10, 16); err == nil {
		return uint16(n), nil
	}
	if to == nil {
		return 0, cli.Usagef("--port %q: give a number from 0 to 65535; only pods have named ports", text)
	}
	if found := to.Resolve(text, p); len(found) > 0 {
		return found[0].Port, nil
	}
	return 0, cli.Usagef("--port %q: pod %s has no %s port of that name: give a number from 0 to 65535", text, to.PodID, p)
}
