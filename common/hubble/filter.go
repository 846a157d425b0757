// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
)

// The limits of a request. Larger requests are rejected.
const (
	// MaxFilters is the number of entries of both lists of a request, MaxValues that of all their values.
	MaxFilters = 256
	MaxValues  = 4096
	// maxText is the length of a value in bytes.
	maxText = 1024
)

// Filter selects flows. The zero value selects all.
type Filter struct {
	allow, deny []entry
}

// entry matches a flow that each of its tests matches.
type entry []test

type test func(*flow.Flow) bool

// Matches reports whether the filter selects a flow: an entry of the allow list matches, or that list is
// empty, and no entry of the deny list does.
func (f *Filter) Matches(x *flow.Flow) bool {
	match := func(e entry) bool { return !slices.ContainsFunc(e, func(t test) bool { return !t(x) }) }
	return (len(f.allow) == 0 || slices.ContainsFunc(f.allow, match)) && !slices.ContainsFunc(f.deny, match)
}

// NewFilter compiles the two lists of a request. It rejects fields that it does not know: to ignore one would
// select flows that the client does not want. The errors name field and value.
func NewFilter(allow, deny []*flow.FlowFilter) (*Filter, error) {
	if n := len(allow) + len(deny); n > MaxFilters {
		return nil, fmt.Errorf("%d filters: give at most %d", n, MaxFilters)
	}
	f, values := &Filter{}, 0
	for _, list := range []struct {
		name string
		from []*flow.FlowFilter
		to   *[]entry
	}{{"whitelist", allow, &f.allow}, {"blacklist", deny, &f.deny}} {
		for i, from := range list.from {
			n, err := checkValues(from.ProtoReflect())
			if values += n; err == nil && values > MaxValues {
				err = fmt.Errorf("more than %d values", MaxValues)
			}
			var e entry
			if err == nil {
				e, err = compile(from)
			}
			if err != nil {
				return nil, fmt.Errorf("%s entry %d: %w", list.name, i, err)
			}
			*list.to = append(*list.to, e)
		}
	}
	return f, nil
}

// checkValues counts the values of a filter, and rejects unknown fields and long texts.
func checkValues(m protoreflect.Message) (n int, err error) {
	if len(m.GetUnknown()) > 0 {
		return 0, fmt.Errorf("%s has a field that this version does not support: remove that filter", m.Descriptor().Name())
	}
	one := func(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
		n++
		switch fd.Kind() {
		case protoreflect.StringKind:
			if len(v.String()) > maxText {
				err = fmt.Errorf("%s: a value has more than %d bytes", fd.Name(), maxText)
			}
		case protoreflect.MessageKind:
			inner, failed := checkValues(v.Message())
			if n += inner; failed != nil {
				err = failed
			}
		}
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !fd.IsList() {
			one(fd, v)
			return err == nil
		}
		for i := range v.List().Len() {
			one(fd, v.List().Get(i))
		}
		return err == nil
	})
	return n, err
}

// compiler collects the tests of an entry, and the first error.
type compiler struct {
	tests entry
	err   error
}

// compile makes an entry of a filter.
func compile(f *flow.FlowFilter) (entry, error) {
	c := &compiler{}
	values(c, f.Uuid, func(x *flow.Flow) string { return x.GetUuid() })
	values(c, f.Verdict, (*flow.Flow).GetVerdict)
	values(c, f.TrafficDirection, (*flow.Flow).GetTrafficDirection)
	values(c, f.IpVersion, func(x *flow.Flow) flow.IPVersion { return x.GetIP().GetIpVersion() })
	values(c, f.Encrypted, func(x *flow.Flow) bool { return x.GetIP().GetEncrypted() })
	c.any(len(f.DropReasonDesc), func(x *flow.Flow) bool {
		return x.GetVerdict() == flow.Verdict_DROPPED && slices.Contains(f.DropReasonDesc, x.GetDropReasonDesc())
	})
	// A dropped packet of unknown direction counts as no reply, as Hubble UI expects.
	c.any(len(f.Reply), func(x *flow.Flow) bool {
		return (x.GetIsReply() != nil || x.GetVerdict() == flow.Verdict_DROPPED) && slices.Contains(f.Reply, x.GetIsReply().GetValue())
	})
	c.any(len(f.EventType), func(x *flow.Flow) bool { return x.GetEventType() != nil && matchesType(f.EventType, x.GetEventType()) })
	c.any(len(f.TcpFlags), func(x *flow.Flow) bool { return matchesFlags(f.TcpFlags, x.GetL4().GetTCP().GetFlags()) })
	c.any(len(f.Interface), func(x *flow.Flow) bool {
		i := x.GetInterface()
		return i != nil && slices.ContainsFunc(f.Interface, func(w *flow.NetworkInterface) bool {
			return (w.GetIndex() == 0 || w.GetIndex() == i.GetIndex()) && (w.GetName() == "" || w.GetName() == i.GetName())
		})
	})
	c.protocols(f.Protocol)
	c.addresses("source_ip_xlated", f.SourceIpXlated, func(x *flow.Flow) string { return x.GetIP().GetSourceXlated() })
	c.pattern("node_name", f.NodeName, nodePattern, func(x *flow.Flow) []string { return []string{absolute(x.GetNodeName())} })
	c.selectors("node_labels", f.NodeLabels, (*flow.Flow).GetNodeLabels)
	c.source(f)
	c.destination(f)
	c.absent(f)
	return c.tests, c.err
}

func (c *compiler) source(f *flow.FlowFilter) {
	end := (*flow.Flow).GetSource
	c.addresses("source_ip", f.SourceIp, func(x *flow.Flow) string { return x.GetIP().GetSource() })
	c.named("source_pod", f.SourcePod, func(x *flow.Flow) (string, string) { return end(x).GetNamespace(), end(x).GetPodName() })
	c.named("source_service", f.SourceService, func(x *flow.Flow) (string, string) {
		return x.GetSourceService().GetNamespace(), x.GetSourceService().GetName()
	})
	c.pattern("source_fqdn", f.SourceFqdn, namePattern, (*flow.Flow).GetSourceNames)
	c.selectors("source_label", f.SourceLabel, func(x *flow.Flow) []string { return end(x).GetLabels() })
	c.ports("source_port", f.SourcePort, func(src, _ uint32) uint32 { return src })
	c.workloads(f.SourceWorkload, end)
	c.any(len(f.SourceIdentity), func(x *flow.Flow) bool {
		return end(x) != nil && slices.Contains(f.SourceIdentity, end(x).GetIdentity())
	})
	c.clusters("source_cluster_name", f.SourceClusterName, end)
}

func (c *compiler) destination(f *flow.FlowFilter) {
	end := (*flow.Flow).GetDestination
	c.addresses("destination_ip", f.DestinationIp, func(x *flow.Flow) string { return x.GetIP().GetDestination() })
	c.named("destination_pod", f.DestinationPod, func(x *flow.Flow) (string, string) { return end(x).GetNamespace(), end(x).GetPodName() })
	c.named("destination_service", f.DestinationService, func(x *flow.Flow) (string, string) {
		return x.GetDestinationService().GetNamespace(), x.GetDestinationService().GetName()
	})
	c.pattern("destination_fqdn", f.DestinationFqdn, namePattern, (*flow.Flow).GetDestinationNames)
	c.selectors("destination_label", f.DestinationLabel, func(x *flow.Flow) []string { return end(x).GetLabels() })
	c.ports("destination_port", f.DestinationPort, func(_, dst uint32) uint32 { return dst })
	c.workloads(f.DestinationWorkload, end)
	c.any(len(f.DestinationIdentity), func(x *flow.Flow) bool {
		return end(x) != nil && slices.Contains(f.DestinationIdentity, end(x).GetIdentity())
	})
	c.clusters("destination_cluster_name", f.DestinationClusterName, end)
}

// absent handles the fields about what no flow of Isthmus has: requests of applications and traces. They match
// no flow. Expressions are rejected, as they may match any.
func (c *compiler) absent(f *flow.FlowFilter) {
	if len(f.GetExperimental().GetCelExpression()) > 0 {
		c.fail("experimental.cel_expression: expressions are not supported: use other filters")
	}
	for name, patterns := range map[string][]string{"dns_query": f.DnsQuery, "http_path": f.HttpPath, "http_url": f.HttpUrl} {
		for _, p := range patterns {
			if _, err := regexp.Compile(p); err != nil {
				c.fail("%s %q: give a regular expression: %v", name, p, err)
			}
		}
	}
	n := len(f.DnsQuery) + len(f.HttpPath) + len(f.HttpUrl) + len(f.HttpStatusCode) + len(f.HttpMethod) + len(f.HttpHeader) + len(f.TraceId) + len(f.IpTraceId)
	c.any(n, func(*flow.Flow) bool { return false })
}

func (c *compiler) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// any adds a test if its field has values.
func (c *compiler) any(n int, t test) {
	if n > 0 {
		c.tests = append(c.tests, t)
	}
}

// values adds a test for a field of equal values.
func values[T comparable](c *compiler, want []T, get func(*flow.Flow) T) {
	c.any(len(want), func(x *flow.Flow) bool { return slices.Contains(want, get(x)) })
}

func (c *compiler) clusters(field string, names []string, end func(*flow.Flow) *flow.Endpoint) {
	if slices.Contains(names, "") {
		c.fail("%s: a name is empty", field)
	}
	c.any(len(names), func(x *flow.Flow) bool { return slices.Contains(names, end(x).GetClusterName()) })
}

// addresses matches exact addresses and prefixes.
func (c *compiler) addresses(field string, texts []string, get func(*flow.Flow) string) {
	var prefixes []netip.Prefix
	for _, t := range texts {
		p, err := netip.ParsePrefix(t)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(t); err == nil {
				p = netip.PrefixFrom(a, a.BitLen())
			}
		}
		if err != nil {
			c.fail("%s %q: give an address or ADDRESS/BITS", field, t)
		}
		prefixes = append(prefixes, p)
	}
	c.any(len(texts), func(x *flow.Flow) bool {
		a, err := netip.ParseAddr(get(x))
		return err == nil && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// named matches namespaces and prefixes of names: "ns/prefix", "ns/", "/prefix", or "prefix" in the namespace
// default.
func (c *compiler) named(field string, texts []string, get func(*flow.Flow) (namespace, name string)) {
	type want struct{ namespace, prefix string }
	var wants []want
	for _, t := range texts {
		if t == "" {
			c.fail("%s: a name is empty: give NAMESPACE/PREFIX", field)
		}
		w := want{"default", t}
		if namespace, rest, ok := strings.Cut(t, "/"); ok {
			w.namespace = namespace
			w.prefix, _, _ = strings.Cut(rest, "/")
		}
		wants = append(wants, w)
	}
	c.any(len(texts), func(x *flow.Flow) bool {
		namespace, name := get(x)
		return (namespace != "" || name != "") && slices.ContainsFunc(wants, func(w want) bool {
			return strings.HasPrefix(name, w.prefix) && (w.namespace == "" || w.namespace == namespace)
		})
	})
}

func (c *compiler) workloads(wants []*flow.Workload, end func(*flow.Flow) *flow.Endpoint) {
	c.any(len(wants), func(x *flow.Flow) bool {
		return slices.ContainsFunc(end(x).GetWorkloads(), func(w *flow.Workload) bool {
			return slices.ContainsFunc(wants, func(want *flow.Workload) bool {
				return (want.GetName() == "" || want.GetName() == w.GetName()) && (want.GetKind() == "" || want.GetKind() == w.GetKind())
			})
		})
	})
}

func (c *compiler) ports(field string, texts []string, pick func(src, dst uint32) uint32) {
	var ports []uint32
	for _, t := range texts {
		p, err := strconv.ParseUint(t, 10, 16)
		if err != nil {
			c.fail("%s %q: give a number up to 65535", field, t)
		}
		ports = append(ports, uint32(p))
	}
	c.any(len(texts), func(x *flow.Flow) bool {
		switch l4 := x.GetL4(); {
		case l4.GetTCP() != nil:
			return slices.Contains(ports, pick(l4.GetTCP().GetSourcePort(), l4.GetTCP().GetDestinationPort()))
		case l4.GetUDP() != nil:
			return slices.Contains(ports, pick(l4.GetUDP().GetSourcePort(), l4.GetUDP().GetDestinationPort()))
		case l4.GetSCTP() != nil:
			return slices.Contains(ports, pick(l4.GetSCTP().GetSourcePort(), l4.GetSCTP().GetDestinationPort()))
		}
		return false
	})
}

// protocols matches the names of transport protocols. Those of applications match no flow of Isthmus.
func (c *compiler) protocols(names []string) {
	var tests []func(*flow.Layer4) bool
	for _, name := range names {
		switch strings.ToLower(name) {
		case "tcp":
			tests = append(tests, func(l *flow.Layer4) bool { return l.GetTCP() != nil })
		case "udp":
			tests = append(tests, func(l *flow.Layer4) bool { return l.GetUDP() != nil })
		case "sctp":
			tests = append(tests, func(l *flow.Layer4) bool { return l.GetSCTP() != nil })
		case "icmp":
			tests = append(tests, func(l *flow.Layer4) bool { return l.GetICMPv4() != nil || l.GetICMPv6() != nil })
		case "icmpv4":
			tests = append(tests, func(l *flow.Layer4) bool { return l.GetICMPv4() != nil })
		case "icmpv6":
			tests = append(tests, func(l *flow.Layer4) bool { return l.GetICMPv6() != nil })
		case "dns", "http", "vrrp", "igmp":
		default:
			c.fail("protocol %q: give tcp, udp, sctp, icmp, icmpv4 or icmpv6", name)
		}
	}
	c.any(len(names), func(x *flow.Flow) bool {
		return slices.ContainsFunc(tests, func(t func(*flow.Layer4) bool) bool { return t(x.GetL4()) })
	})
}

func matchesType(wants []*flow.EventTypeFilter, e *flow.CiliumEventType) bool {
	return slices.ContainsFunc(wants, func(w *flow.EventTypeFilter) bool {
		return (w.GetType() == 0 || w.GetType() == e.GetType()) && (!w.GetMatchSubType() || w.GetSubType() == e.GetSubType())
	})
}

// matchesFlags reports whether one of the wanted sets of flags is part of the flags of a packet.
func matchesFlags(wants []*flow.TCPFlags, has *flow.TCPFlags) bool {
	bits := func(f *flow.TCPFlags) (n int) {
		for i, set := range []bool{f.GetFIN(), f.GetSYN(), f.GetRST(), f.GetPSH(), f.GetACK(), f.GetURG(), f.GetECE(), f.GetCWR(), f.GetNS()} {
			if set {
				n |= 1 << i
			}
		}
		return n
	}
	return has != nil && slices.ContainsFunc(wants, func(w *flow.TCPFlags) bool { return bits(w)&^bits(has) == 0 })
}
