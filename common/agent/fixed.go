// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/ipam"
	"github.com/isthmus-net/isthmus/common/model"
)

// fixedIPs parses the addresses that the pod of an ADD requests by annotation.
func (l *loop) fixedIPs(a *addition) ([]netip.Addr, error) {
	pod, ok := l.snapshot.Pods.Get(a.pod())
	if !ok || pod.FixedIPs == "" {
		return nil, nil
	}
	var all []netip.Addr
	for text := range strings.SplitSeq(pod.FixedIPs, ",") {
		ip, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil || ip.Zone() != "" || ip.Is4In6() {
			return nil, refuse(CodeRefused, `use one address per family, separated by a comma, like "10.0.1.9,fd00::9"`,
				"annotation %s of pod %s: %q is not an address", model.AnnotationAddresses, a.pod(), shorten(strings.TrimSpace(text)))
		}
		if ip.Is6() && !l.features.IPv6 {
			return nil, refuse(CodeRefused, "remove the address", "annotation %s of pod %s: pods cannot have the IPv6 address %s on %s (%s)",
				model.AnnotationAddresses, a.pod(), ip, l.features.OS, l.features.Platform)
		}
		all = append(all, ip)
	}
	return all, l.allowed(a, all)
}

// allowed returns an error for addresses that the pod's namespace does not allow. Firewalls trust
// addresses, so the right to create pods must not include a free choice of address.
func (l *loop) allowed(a *addition, ips []netip.Addr) error {
	namespace := a.pod().Namespace
	text := l.snapshot.Namespace(namespace).AllowedIPs
	ranges, err := parseRanges(text)
	if err != nil {
		return refuse(CodeRefused, `use addresses and ranges without host bits, separated by commas, like "10.0.1.8/29,fd00::9"`,
			"annotation %s of namespace %s, required by pod %s: %s", model.AnnotationAllowedAddresses, namespace, a.pod(), err)
	}
	for _, ip := range ips {
		if !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			return refuse(CodeRefused, fmt.Sprintf("have the administrator of the namespace annotate it with %s=%s, or remove the pod's annotation", model.AnnotationAllowedAddresses, netip.PrefixFrom(ip, ip.BitLen())),
				"annotation %s of pod %s: namespace %s does not allow its pods the address %s", model.AnnotationAddresses, a.pod(), namespace, ip)
		}
	}
	return nil
}

// parseRanges parses comma-separated addresses and ranges.
func parseRanges(text string) (all []netip.Prefix, err error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		p, err := netip.ParsePrefix(part)
		if ip, ipErr := netip.ParseAddr(part); ipErr == nil && ip.Zone() == "" {
			p, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		if err != nil || p != p.Masked() || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is not an address or a range", shorten(part))
		}
		all = append(all, p)
	}
	return all, nil
}

// recall ends the quarantine of addresses that the same pod had in an earlier sandbox. Peers cannot confuse
// the pod with another one.
func (l *loop) recall(a *addition, ips []netip.Addr) {
	l.quarantined(ips, func(e *entry, ip netip.Addr) {
		if e.Pod() == a.pod() && e.UID != "" && e.UID == a.req.PodUID {
			l.addresses.allocator.Recall(ip)
		}
	})
}

// quarantineAgain returns unused addresses to the quarantine that their tombstones record.
func (l *loop) quarantineAgain(ips []netip.Addr) {
	l.quarantined(ips, func(e *entry, ip netip.Addr) {
		if _, used := l.addresses.allocator.Owner(ip); !used {
			l.addresses.allocator.Release(ip, e.ReleasedAt)
		}
	})
}

// quarantined calls f for each tombstone and address that matches ips.
func (l *loop) quarantined(ips []netip.Addr, f func(*entry, netip.Addr)) {
	if len(ips) == 0 {
		return
	}
	for _, e := range l.entries {
		if e.State != endpoint.Released {
			continue
		}
		for _, ip := range e.IPs {
			if slices.Contains(ips, ip) {
				f(e, ip)
			}
		}
	}
}

// whyNoAddress returns the error for an ADD without an address, with cause and remedy.
func (l *loop) whyNoAddress(a *addition, err error) error {
	var full *ipam.ExhaustedError
	var taken *ipam.TakenError
	var unusable *ipam.UnusableError
	asked := fmt.Sprintf("annotation %s of pod %s on node %s", model.AnnotationAddresses, a.pod(), l.cfg.NodeName)
	switch {
	case errors.As(err, &full):
		return blame(CodeAddresses, err, "node %s has no free address for pod %s", l.cfg.NodeName, a.pod())
	case errors.As(err, &unusable):
		return refuse(CodeRefused, "correct the annotation, or let the pod run on the node that has the range", "%s: %s", asked, err)
	case errors.As(err, &taken) && taken.Owner == "":
		return refuse(CodeTryAgain, "the runtime will try again", "%s: %s", asked, err)
	case errors.As(err, &taken):
		whose := taken.Owner
		if e := l.entries[model.EndpointID(taken.Owner)]; e != nil {
			whose = fmt.Sprintf("pod %s (container %s)", e.Pod(), e.ContainerID)
		}
		return refuse(CodeTryAgain, "delete that pod, or request another address", "%s: address %s is in use by %s", asked, taken.Addr, whose)
	}
	return blame(CodeInternal, err, "allocate address for %s", a.id)
}
