// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/common/model"
)

// flow reads the ends, the protocol and the port.
func (o *explainOptions) flow(s *model.Snapshot) (model.Flow, error) {
	var f model.Flow
	protocol, err := model.ParseProtocol(o.protocol)
	if err != nil {
		return f, usageError{fmt.Errorf("--protocol: %w", err)}
	}
	from, err := addresses(s, o.from)
	if err != nil {
		return f, fmt.Errorf("--from: %w", err)
	}
	to, err := addresses(s, o.to)
	if err != nil {
		return f, fmt.Errorf("--to: %w", err)
	}
	f.Protocol = protocol
	f.Src, f.Dst, err = sameFamily(from, to, protocol)
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
	for _, service := range o.services {
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
			a, service.Namespace, service.Name, shorten(pods, 5))
	}
	return nil
}

// addresses returns the addresses of an end.
func addresses(s *model.Snapshot, text string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(strings.TrimPrefix(text, "ip:")); err == nil {
		if a.Zone() != "" {
			return nil, usageError{fmt.Errorf("address %s: remove the zone", text)}
		}
		return []netip.Addr{a.Unmap()}, nil
	}
	name, only, one := strings.Cut(text, "@")
	namespace, pod, ok := strings.Cut(name, "/")
	if !ok || namespace == "" || pod == "" {
		return nil, usageError{fmt.Errorf("%q: give namespace/pod, namespace/pod@IP or an IP address", text)}
	}
	p, ok := s.Pods.Get(model.PodID{Namespace: namespace, Name: pod})
	if !ok {
		return nil, fmt.Errorf("no pod %s%s", name, similarPods(s, namespace, pod))
	}
	ips := p.IPs
	if n, ok := s.Nodes.Get(p.Node); ok && p.HostNetwork && len(ips) == 0 {
		ips = n.Addresses
	}
	if one {
		a, err := netip.ParseAddr(only)
		if err != nil || !slices.Contains(ips, a) {
			return nil, fmt.Errorf("pod %s does not have the address %q, it has %v", name, only, ips)
		}
		return []netip.Addr{a}, nil
	}
	if len(ips) == 0 {
		return nil, fmt.Errorf("pod %s has no address yet", name)
	}
	return ips, nil
}

// similarPods suggests names: a workload generates the names of its pods.
func similarPods(s *model.Snapshot, namespace, pod string) string {
	var same, all []string
	for id := range s.Pods.All() {
		if id.Namespace != namespace {
			continue
		}
		all = append(all, id.Name)
		if strings.HasPrefix(id.Name, pod) {
			same = append(same, id.Name)
		}
	}
	if len(same) == 0 {
		same = all
	}
	slices.Sort(same)
	if len(same) == 0 {
		return fmt.Sprintf(": namespace %s has no pods", namespace)
	}
	return fmt.Sprintf(": namespace %s has %s", namespace, shorten(same, 5))
}

// sameFamily returns the first two addresses of one family that the protocol can use.
func sameFamily(from, to []netip.Addr, protocol model.Protocol) (src, dst netip.Addr, err error) {
	for _, a := range from {
		for _, b := range to {
			wrong := protocol == model.ICMP && a.Is6() || protocol == model.ICMPv6 && a.Is4()
			if a.Is4() == b.Is4() && !wrong {
				return a, b, nil
			}
		}
	}
	return src, dst, fmt.Errorf("the ends have no addresses of one family for %s: %v and %v", protocol, from, to)
}

// readPort reads a number, or a port name of the destination.
func readPort(text string, p model.Protocol, to *model.Pod) (uint16, error) {
	if !p.HasPorts() {
		if text != "" {
			return 0, usageError{fmt.Errorf("--port %q: %s has no ports", text, p)}
		}
		return 0, nil
	}
	if text == "" {
		return 0, usageError{errors.New("--port: give the destination port")}
	}
	if n, err := strconv.ParseUint(text, 10, 16); err == nil {
		return uint16(n), nil
	}
	if to == nil {
		return 0, usageError{fmt.Errorf("--port %q: give a number from 0 to 65535; only pods have named ports", text)}
	}
	if found := to.Resolve(text, p); len(found) > 0 {
		return found[0].Port, nil
	}
	return 0, usageError{fmt.Errorf("--port %q: pod %s has no %s port of that name: give a number from 0 to 65535", text, to.PodID, p)}
}

func registerOutput(c *cobra.Command, p *string, forms ...string) {
	c.Flags().StringVarP(p, "output", "o", forms[0], strings.Join(forms, ", "))
}

func checkOutput(output string, forms ...string) error {
	if !slices.Contains(forms, output) {
		return usageError{fmt.Errorf("--output %q: give one of %s", output, strings.Join(forms, ", "))}
	}
	return nil
}
