// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// maxHostPorts bounds the host ports of one pod.
const maxHostPorts = 1000

// hostPorts validates the host ports of a request.
func hostPorts(r *cniframe.AddRequest) ([]model.HostPort, error) {
	const remedy = "correct the ports of the pod"
	if len(r.HostPorts) > maxHostPorts {
		return nil, refuse(CodeRefused, remedy, "pod %s/%s requests %d host ports, at most %d are allowed", r.PodNamespace, r.PodName, len(r.HostPorts), maxHostPorts)
	}
	var all []model.HostPort
	for _, p := range r.HostPorts {
		h := model.HostPort{Number: uint16(p.HostPort), Port: uint16(p.Port), Protocol: model.Protocol(p.Protocol)}
		if p.HostPort-1 > 65534 || p.Port-1 > 65534 || p.Protocol > 255 || !h.Protocol.HasPorts() {
			return nil, refuse(CodeRefused, remedy, "host port %d to port %d of protocol %d is not valid", p.HostPort, p.Port, p.Protocol)
		}
		if ip := p.HostIP; ip != "" {
			a, err := netip.ParseAddr(ip)
			if err != nil || a.Zone() != "" {
				return nil, refuse(CodeRefused, remedy, "host address %q of host port %d is not valid", shorten(ip), h.Number)
			}
			h.Address = a.Unmap()
		}
		for _, other := range all {
			if h.Overlaps(other) {
				return nil, refuse(CodeRefused, remedy, "the pod requests host port %s twice", h)
			}
		}
		all = append(all, h)
	}
	return all, nil
}

// PortRange is a range of port numbers of any protocol, both ends included.
type PortRange struct{ First, Last uint16 }

// ParsePortRange parses "6443" or "2379-2381".
func ParsePortRange(text string) (PortRange, error) {
	first, last, ranged := strings.Cut(text, "-")
	if !ranged {
		last = first
	}
	from, err1 := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	if err1 != nil || err2 != nil || from == 0 || to < from {
		return PortRange{}, fmt.Errorf("%q is not a port or range: use a number from 1 to 65535, or two as in 2379-2381", text)
	}
	return PortRange{uint16(from), uint16(to)}, nil
}

// checkHostPorts returns an error for host ports that this platform does not support, or that another pod
// or the node uses.
func (l *loop) checkHostPorts(a *addition) error {
	if len(a.hostPorts) == 0 {
		return nil
	}
	if !l.features.HostPorts {
		return refuse(CodeRefused, "use a Service of type NodePort, or remove the pod's hostPort", "host ports are not supported on %s (%s)", l.features.OS, l.features.Platform)
	}
	for _, e := range l.entries {
		if e.State == endpoint.Released {
			continue
		}
		for _, theirs := range e.HostPorts {
			for _, ours := range a.hostPorts {
				if ours.Overlaps(theirs) {
					return refuse(CodeTryAgain, "delete one of the pods", "host port %s of pod %s is in use by pod %s", ours, a.pod(), e.Pod())
				}
			}
		}
	}
	return l.checkNodePorts(a)
}

// checkNodePorts returns an error for host ports that would take over connections to the node itself: to
// its kubelet, its API server or its SSH server.
func (l *loop) checkNodePorts(a *addition) error {
	for _, h := range a.hostPorts {
		for _, r := range l.cfg.ReservedHostPorts {
			if r.First <= h.Number && h.Number <= r.Last {
				return refuse(CodeRefused, "give the pod another hostPort, or remove this one from --reserved-host-ports", "host port %s of pod %s is reserved for node %s", h, a.pod(), l.cfg.NodeName)
			}
		}
	}
	if lister, ok := l.backend.(dataplane.SocketLister); ok {
		sockets, err := lister.Listening()
		if err != nil {
			return blame(CodeDataPath, err, "check the host ports of pod %s", a.pod())
		}
		for _, h := range a.hostPorts {
			if i := slices.IndexFunc(sockets, h.TakenBy); i >= 0 {
				return refuse(CodeTryAgain, "stop that process, give the pod another hostPort, or limit it to another address by hostIP",
					"host port %s of pod %s: a process of node %s listens on %s", h, a.pod(), l.cfg.NodeName, sockets[i])
			}
		}
	}
	return l.checkServicePorts(a)
}

// checkServicePorts returns an error for host ports that could take connections of a Service, such as those of a NodePort.
func (l *loop) checkServicePorts(a *addition) error {
	lister, ok := l.backend.(dataplane.ServicePortLister)
	if !ok {
		return nil
	}
	ctx, cancel := l.opContext()
	defer cancel()
	ports, err := lister.ServicePorts(ctx)
	if err != nil {
		return dataPathError(err, "check the host ports of pod %s", a.pod())
	}
	for _, h := range a.hostPorts {
		if i := slices.IndexFunc(ports, h.Overlaps); i >= 0 {
			return refuse(CodeTryAgain, "give the pod another hostPort, or limit it to another address by hostIP",
				"host port %s of pod %s: a Service has %s on node %s", h, a.pod(), ports[i], l.cfg.NodeName)
		}
	}
	return nil
}
