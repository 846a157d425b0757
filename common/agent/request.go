// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// attachmentID validates the key of an attachment by the rules of the CNI specification, section 2.
func attachmentID(a cniframe.Attachment) (model.EndpointID, error) {
	id, name := a.ContainerID, a.IfName
	// "Must start with an alphanumeric character, optionally followed by any
	// combination of one or more alphanumeric characters, underscore (_), dot
	// (.) or hyphen (-)" (CNI_CONTAINERID).
	if !validName(id, 1024) {
		return "", refuse(CodeEnv, "use letters, digits, '_', '.' and '-', beginning with a letter or digit", "CNI_CONTAINERID %q is not valid", shorten(id))
	}
	// "Must not be empty, must not be longer than 15 characters, must not be .
	// or .., must not contain /, : or whitespace" (CNI_IFNAME).
	if name == "" || len(name) > 15 || name == "." || name == ".." || strings.ContainsFunc(name, notInIfName) {
		return "", refuse(CodeEnv, "use 1 to 15 characters without '/', ':' and spaces", "CNI_IFNAME %q is not valid", shorten(name))
	}
	return model.MakeEndpointID(id, name), nil
}

// maxHints bounds the interfaces that a request may name.
const maxHints = 16

// kind is the kind of the endpoints that the agent attaches.
func (l *loop) kind() endpoint.Kind {
	if l.cfg.PolicyOnly {
		return endpoint.Foreign
	}
	return endpoint.Own
}

// checkMode compares an ADD with the mode of the agent. It returns the addresses of the interface that
// another CNI plugin made, or nil if the agent makes it.
func (a *Agent) checkMode(r *cniframe.AddRequest) (first, further []netip.Addr, err error) {
	if err := a.sameMode(r.Foreign); err != nil || r.Foreign == nil {
		return nil, nil, err
	}
	for _, f := range []struct {
		name string
		set  bool
	}{{"portMappings", len(r.HostPorts) > 0}, {"bandwidth", r.Bandwidth != nil}, {"dns", r.DNS != nil}} {
		if f.set {
			return nil, nil, refuse(CodeConfig, "leave "+f.name+" to the plugin that makes the interface", "pod %s/%s: isthmus-agent only enforces policy and cannot provide %s", r.PodNamespace, r.PodName, f.name)
		}
	}
	return foreignAddresses(r.Foreign)
}

// sameMode compares a request with the mode of the agent.
func (a *Agent) sameMode(f *cniframe.Foreign) error {
	switch {
	case f != nil && !a.cfg.PolicyOnly:
		return refuse(CodeConfig, "start the agent with --mode=policy, or remove mode from the configuration of the plugin", "isthmus-agent runs in mode full, the plugin in mode policy")
	case f == nil && a.cfg.PolicyOnly:
		return refuse(CodeConfig, "set the mode of the plugin to policy, behind the plugin that makes the interface, or start the agent with --mode=full", "isthmus-agent runs in mode policy, the plugin in mode full")
	}
	return nil
}

// foreignAddresses returns the addresses of the pod in prevResult, sorted: the first of each family, which kubelet reports, and the
// others. Policy is the same for all.
func foreignAddresses(f *cniframe.Foreign) (first, further []netip.Addr, err error) {
	if len(f.HostIfNames) > maxHints || slices.ContainsFunc(f.HostIfNames, func(s string) bool { return len(s) > 15 }) {
		return nil, nil, refuse(CodeConfig, fmt.Sprintf("pass at most %d names of at most 15 characters", maxHints), "the interfaces of prevResult are not valid")
	}
	if len(f.Others) > maxHints {
		return nil, nil, refuse(CodeConfig, fmt.Sprintf("pass at most %d names", maxHints), "the further interfaces of prevResult are not valid")
	}
	if _, err := model.ParseMAC(f.MAC); f.MAC != "" && err != nil {
		return nil, nil, refuse(CodeConfig, err.Error(), "the MAC of prevResult is not valid")
	}
	if len(f.Addresses) == 0 {
		return nil, nil, refuse(CodeConfig, "put isthmus-cni behind the plugin that assigns the addresses", "prevResult has no address of the interface")
	}
	var n [2]int // by IP version
	for _, s := range f.Addresses {
		ip, err := netip.ParseAddr(s)
		if err != nil || ip.Zone() != "" || ip.Is4In6() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			return nil, nil, refuse(CodeConfig, "pass unicast addresses without a prefix length", "address %q of prevResult is not valid", shorten(s))
		}
		v := 0
		if ip.Is6() {
			v = 1
		}
		switch {
		case slices.Contains(first, ip) || slices.Contains(further, ip):
			continue
		case n[v] == 0:
			first = append(first, ip)
		default:
			further = append(further, ip)
		}
		if n[v]++; n[v] > cniframe.MaxAddresses {
			return nil, nil, refuse(CodeConfig, fmt.Sprintf("let the network plugin assign at most %d of each IP version to a pod", cniframe.MaxAddresses),
				"prevResult.ips: the interface has more than %d addresses of one IP version", cniframe.MaxAddresses)
		}
	}
	slices.SortFunc(first, netip.Addr.Compare)
	slices.SortFunc(further, netip.Addr.Compare)
	return first, further, nil
}

// checkOthers refuses a pod with further interfaces, whose packets policy does not see, unless the pod is observed.
func (l *loop) checkOthers(a *addition) error {
	if a.req.Foreign == nil || len(a.req.Foreign.Others) == 0 || l.observes(a.req.PodNamespace) {
		return nil
	}
	return refuse(CodeConfig, "remove the interfaces, or the plugins that make them, from the network of the pod; pods in observed namespaces may have them",
		"pod %s has further interfaces: %s: policy is enforced on one interface per pod", a.pod(), names(a.req.Foreign.Others))
}

// names joins names that a caller passed.
func names(all []string) string {
	var text []string
	for _, s := range all {
		text = append(text, shorten(strings.Map(func(r rune) rune {
			if notInIfName(r) {
				return '?'
			}
			return r
		}, s)))
	}
	return strings.Join(text, ", ")
}

// checkForeign compares the interface of a CHECK with that of the endpoint.
func checkForeign(e *entry, f *cniframe.Foreign) error {
	if f == nil {
		return nil
	}
	first, further, err := foreignAddresses(f)
	if err != nil {
		return err
	}
	if !slices.Equal(first, e.IPs) || !slices.Equal(further, e.Further) {
		return refuse(CodeBroken, "restart the pod", "pod %s has the addresses %s, not %s", e.Pod(),
			join(slices.Concat(e.IPs, e.Further)), join(slices.Concat(first, further)))
	}
	return sameMAC(e, f, CodeBroken)
}

// sameMAC returns an error of a code if the pod's end of the interface has another MAC than prevResult says.
func sameMAC(e *entry, f *cniframe.Foreign, code uint32) error {
	if f == nil || f.MAC == "" || strings.EqualFold(f.MAC, e.attachment.MAC.String()) {
		return nil
	}
	return refuse(code, "restart the pod", "interface %s of pod %s has MAC %s, prevResult has %s", e.IfName, e.Pod(), e.attachment.MAC, shorten(f.MAC))
}

func notInIfName(r rune) bool {
	return r == '/' || r == ':' || r == unicode.ReplacementChar || unicode.IsSpace(r) || unicode.IsControl(r)
}

// checkAdd validates an ADD request and returns its endpoint id.
func checkAdd(r *cniframe.AddRequest) (model.EndpointID, error) {
	id, err := attachmentID(r.Attachment)
	if err != nil {
		return "", err
	}
	if n := r.Netns; n == "" || len(n) > 4096 || strings.HasPrefix(n, dataplane.HandlePrefix) || strings.ContainsFunc(n, unicode.IsControl) {
		return "", refuse(CodeEnv, "give the path of a network namespace, on Windows the GUID of an HCN namespace", "CNI_NETNS %q is not valid", shorten(n))
	}
	if r.PodNamespace == "" || r.PodName == "" {
		return "", refuse(CodeEnv, "let the runtime pass K8S_POD_NAMESPACE and K8S_POD_NAME", "CNI_ARGS has no pod name or namespace for %s", id)
	}
	if !validDNS(r.PodNamespace, 63, false) {
		return "", refuse(CodeEnv, "it must be a DNS label", "K8S_POD_NAMESPACE %q in CNI_ARGS is not valid", shorten(r.PodNamespace))
	}
	if !validDNS(r.PodName, 253, true) {
		return "", refuse(CodeEnv, "it must be a DNS subdomain", "K8S_POD_NAME %q in CNI_ARGS is not valid", shorten(r.PodName))
	}
	if u := r.PodUID; u != "" && !validName(u, 253) {
		return "", refuse(CodeEnv, "pass the pod's metadata.uid", "K8S_POD_UID %q in CNI_ARGS is not valid", shorten(u))
	}
	if n := r.Network; n != "" && !validName(n, 1024) {
		return "", refuse(CodeEnv, "use letters, digits, '_', '.' and '-', beginning with a letter or digit", "network name %q is not valid", shorten(n))
	}
	return id, nil
}

// validName reports whether s is a valid container id or network name.
func validName(s string, longest int) bool {
	for i := range len(s) {
		if !alphanumeric(s[i]) && (i == 0 || !strings.ContainsRune("_.-", rune(s[i]))) {
			return false
		}
	}
	return s != "" && len(s) <= longest
}

// validDNS reports whether s is a DNS label of RFC 1123 or, with dots, a DNS subdomain.
func validDNS(s string, longest int, dots bool) bool {
	if len(s) > longest {
		return false
	}
	labels := []string{s}
	if dots {
		labels = strings.Split(s, ".")
	}
	for _, l := range labels {
		if l == "" || l != strings.ToLower(l) || !alphanumeric(l[0]) || !alphanumeric(l[len(l)-1]) {
			return false
		}
		for i := range len(l) {
			if !alphanumeric(l[i]) && l[i] != '-' {
				return false
			}
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// shorten truncates long text of a caller, so that messages stay readable.
func shorten(s string) string {
	if len(s) > 64 {
		return s[:61] + "..."
	}
	return s
}

// samePod reports whether the UID of a runtime and that of the API can belong to the same pod. The kubelet
// gives a static pod the hash of its manifest, 32 hexadecimal digits, while the API has the UID of its
// mirror pod (kubelet, as of 2026-11).
func samePod(runtime, api string) bool {
	return runtime == "" || api == "" || runtime == api || staticUID(runtime)
}

func staticUID(uid string) bool {
	return len(uid) == 32 && strings.Trim(uid, "0123456789abcdef") == ""
}

// bandwidth validates the limits of a request; nil means none.
func bandwidth(b *cniframe.Bandwidth) (model.Bandwidth, error) {
	if b == nil {
		return model.Bandwidth{}, nil
	}
	all := model.Bandwidth{
		Ingress: model.Limit{Rate: b.IngressRate, Burst: b.IngressBurst},
		Egress:  model.Limit{Rate: b.EgressRate, Burst: b.EgressBurst},
	}
	if err := all.Validate(); err != nil {
		return model.Bandwidth{}, refuse(CodeRefused, "correct the bandwidth annotations of the pod", "bandwidth: %s", oneLine(err))
	}
	return all, nil
}

// checkBandwidth returns an error for limits that this platform cannot enforce.
func (l *loop) checkBandwidth(a *addition) error {
	switch f := l.features; {
	case a.bandwidth.Egress.Rate != 0 && a.bandwidth.Egress.Rate < f.MinEgressRate:
		return refuse(CodeRefused, fmt.Sprintf("set the annotation kubernetes.io/egress-bandwidth of the pod to %dk or more, or let it run on a node of another system", f.MinEgressRate/1000),
			"egress bandwidth of pod %s is %d bit/s, below the %d bit/s that %s (%s) enforces", a.pod(), a.bandwidth.Egress.Rate, f.MinEgressRate, f.OS, f.Platform)
	case a.bandwidth == (model.Bandwidth{}) || f.Bandwidth:
		return nil
	case f.EgressBandwidth && a.bandwidth.Ingress == (model.Limit{}):
		return nil
	case f.EgressBandwidth:
		return refuse(CodeRefused, "remove the annotation kubernetes.io/ingress-bandwidth of the pod, or let it run on a node of another system",
			"ingress bandwidth of pod %s cannot be limited on %s (%s), only egress bandwidth", a.pod(), f.OS, f.Platform)
	}
	return refuse(CodeRefused, "remove the bandwidth annotations of the pod, or let it run on another node", "bandwidth of pod %s cannot be limited on %s (%s)", a.pod(), l.features.OS, l.features.Platform)
}

// compareBandwidth compares the limits in a CHECK with those of the ADD. A CHECK without limits matches
// any.
func compareBandwidth(e *entry, asked *cniframe.Bandwidth) error {
	want, err := bandwidth(asked)
	if err != nil || want == (model.Bandwidth{}) || want == e.Bandwidth {
		return err
	}
	return refuse(CodeBroken, "restart the pod", "the bandwidth of pod %s is limited to %+v, not to %+v", e.Pod(), e.Bandwidth, want)
}
