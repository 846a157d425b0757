// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Fact is a known behaviour of HNS: the verdict of a port with some ACLs about a packet.
type Fact struct {
	Name string
	// Source cites the origin of the knowledge.
	Source string
	// ACLs and Sets are settings in the JSON form that HNS receives. Host rules that open the pod's
	// firewall are added, unless Bare is set.
	ACLs, Sets []string
	// Bare leaves out the Host rules, for facts about them.
	Bare   bool
	Way    Way
	Packet Packet
	Pass   bool
}

// Endpoint returns the policies of the endpoint in the form that HNS receives.
func (f Fact) Endpoint() []json.RawMessage {
	all := wrapped("ACL", f.ACLs)
	if !f.Bare && len(f.ACLs) > 0 {
		all = append(all, wrapped("ACL", []string{
			`{"Id":"host in","Protocols":"256","Action":"Allow","Direction":"In","RuleType":"Host"}`,
			`{"Id":"host out","Protocols":"256","Action":"Allow","Direction":"Out","RuleType":"Host"}`})...)
	}
	return all
}

// Network returns the policies of the endpoint's network in the form that HNS receives.
func (f Fact) Network() []json.RawMessage { return wrapped("SetPolicy", f.Sets) }

func wrapped(kind string, list []string) []json.RawMessage {
	var all []json.RawMessage
	for _, s := range list {
		all = append(all, fmt.Appendf(nil, `{"Type":%q,"Settings":%s}`, kind, s))
	}
	return all
}

// The sources of facts.
const (
	felix      = "projectcalico/calico felix/dataplane/windows: the node's rule is In with RemoteAddresses of the node; the dump of calico#8465 has them as VFP's source IP"
	felixSort  = "projectcalico/calico felix/dataplane/windows/policysets: rules are numbered upwards in the order in which they must be asked; deny ends at 65500"
	cns        = "Azure/azure-container-networking cns/hnsclient: LocalAddresses is the container's address and RemoteAddresses the host's, in both directions"
	npmSets    = "Azure/azure-container-networking npm/pkg/dataplane/policies/policy_windows.go: LocalAddresses are the source sets and RemoteAddresses the destination sets, in both directions"
	npmPorts   = "Azure/azure-container-networking npm/pkg/dataplane/policies/policy_windows.go: destination ports are LocalPorts of In rules and RemotePorts of Out rules"
	npmAnd     = "Azure/azure-container-networking npm/pkg/dataplane/policies: a rule lists a set of pods and one of namespaces, and means the pods in both"
	npmOrder   = "Azure/azure-container-networking npm/pkg/dataplane/policies: permissions are 222 and denials 3000, and permissions win"
	shim       = "Microsoft/hcsshim hcn/hcnpolicy.go and its tests: ports are lists and ranges, addresses lists of addresses and CIDRs"
	shim1059   = "Microsoft/hcsshim#1059: once there is an ACL, what none matches is dropped; add an Allow for In and one for Out"
	containers = "microsoft/Windows-Containers#616: the posture is default deny once an endpoint has ACLs"
	families   = "groups of VFP are per family (dump of calico#8465); that a rule without addresses is in both is inferred"
	firewall   = "Microsoft's page on network isolation: Host rules are the Windows Firewall's, where a Block goes before an Allow"
)

const (
	pod   = "10.40.3.7"
	pod6  = "fd00:3::7"
	any   = `"Protocols":"256",`
	tcp   = `"Protocols":"6",`
	peers = `{"Id":"peers","Name":"peers","PolicyType":"IPSET","Values":"10.40.1.4,10.40.1.5"}`
	nets  = `{"Id":"nets","Name":"nets","PolicyType":"IPSET","Values":"10.40.1.5,10.40.9.9"}`
)

// rule returns a Switch rule as JSON. more holds further members, each followed by a comma.
func rule(name, action string, way Way, priority int, more ...string) string {
	return fmt.Sprintf(`{"Id":%q,"Action":%q,"Direction":%q,%s"RuleType":"Switch","Priority":%d}`, name, action, way, strings.Join(more, ""), priority)
}

func member(name, value string) string { return fmt.Sprintf("%q:%q,", name, value) }

// in returns a packet that reaches the pod; out returns one that leaves it.
func in(from string, protocol, port int) Packet  { return between(from, pod, protocol, port) }
func out(to string, protocol, port int) Packet   { return between(pod, to, protocol, port) }
func in6(from string, protocol, port int) Packet { return between(from, pod6, protocol, port) }

func between(from, to string, protocol, port int) Packet {
	p := Packet{From: netip.MustParseAddr(from), To: netip.MustParseAddr(to), Protocol: protocol, ToPort: port}
	if protocol == 6 || protocol == 17 || protocol == 132 {
		p.FromPort = 40000
	}
	return p
}

// All lists the facts.
func All() []Fact {
	return slices.Concat(addressFacts(), portFacts(), orderFacts(), setFacts(), otherFacts())
}

// addressFacts are facts about addresses.
func addressFacts() []Fact {
	var (
		webIn   = rule("web", "Allow", In, 1000, tcp, member("RemoteAddresses", "10.40.1.0/24,10.40.2.9"), member("LocalPorts", "80,8000-8010"))
		dnsOut  = rule("dns", "Allow", Out, 1000, `"Protocols":"6,17",`, member("RemoteAddresses", "10.96.0.10"), member("RemotePorts", "53"))
		endIn   = rule("end in", "Block", In, 65500, any)
		endOut  = rule("end out", "Block", Out, 65500, any)
		toSelf  = rule("to self", "Allow", In, 1000, any, member("LocalAddresses", pod))
		toOther = rule("to other", "Allow", In, 1000, any, member("LocalAddresses", "10.40.3.8"))
	)
	return []Fact{
		{Name: "without ACLs everything passes in", Source: containers, Way: In, Packet: in("10.40.1.4", 6, 80), Pass: true},
		{Name: "without ACLs everything passes out", Source: containers, Way: Out, Packet: out("10.40.1.4", 6, 80), Pass: true},
		{Name: "what no rule matches is dropped", Source: shim1059, ACLs: list(webIn), Way: In, Packet: in("10.40.3.4", 6, 80)},
		{Name: "what no rule of the direction matches is dropped", Source: containers, ACLs: list(dnsOut), Way: Out, Packet: out("10.96.0.10", 6, 443)},

		{Name: "the remote side of an In rule is the sender", Source: felix, ACLs: list(webIn, endIn), Way: In, Packet: in("10.40.1.4", 6, 80), Pass: true},
		{Name: "another address does not match", Source: felix, ACLs: list(webIn, endIn), Way: In, Packet: in("10.40.4.4", 6, 80)},
		{Name: "the local side of an In rule is the pod", Source: cns, ACLs: list(toSelf, endIn), Way: In, Packet: in("10.40.4.4", 6, 80), Pass: true},
		{Name: "and no other pod", Source: cns, ACLs: list(toOther, endIn), Way: In, Packet: in("10.40.3.8", 6, 80)},
		{Name: "the remote side of an Out rule is the receiver", Source: cns, ACLs: list(dnsOut, endOut), Way: Out, Packet: out("10.96.0.10", 17, 53), Pass: true},
		{Name: "a single address", Source: shim, ACLs: list(webIn, endIn), Way: In, Packet: in("10.40.2.9", 6, 80), Pass: true},
		{Name: "its neighbour", Source: shim, ACLs: list(webIn, endIn), Way: In, Packet: in("10.40.2.10", 6, 80)},
		{Name: "the end of a prefix", Source: shim, ACLs: list(webIn, endIn), Way: In, Packet: in("10.40.1.255", 6, 80), Pass: true},
		{Name: "behind the end of a prefix", Source: shim, ACLs: list(webIn, endIn), Way: In, Packet: in("10.40.2.0", 6, 80)},
	}
}

// portFacts are facts about ports and protocols.
func portFacts() []Fact {
	var (
		webIn    = rule("web", "Allow", In, 1000, tcp, member("RemoteAddresses", "10.40.1.0/24,10.40.2.9"), member("LocalPorts", "80,8000-8010"))
		dnsOut   = rule("dns", "Allow", Out, 1000, `"Protocols":"6,17",`, member("RemoteAddresses", "10.96.0.10"), member("RemotePorts", "53"))
		endIn    = rule("end in", "Block", In, 65500, any)
		endOut   = rule("end out", "Block", Out, 65500, any)
		openIn   = rule("open in", "Allow", In, 65500, any)
		fromPort = rule("from 53", "Allow", In, 1000, `"Protocols":"17",`, member("RemotePorts", "53"))
		ownPort  = rule("own port", "Allow", Out, 1000, tcp, member("LocalPorts", "40000"))
	)
	return []Fact{
		{Name: "local ports of an In rule are the destination's", Source: npmPorts, ACLs: list(webIn, endIn), Way: In, Packet: in("10.40.1.4", 6, 8010), Pass: true},
		{Name: "behind a range of ports", Source: shim, ACLs: list(webIn, endIn), Way: In, Packet: in("10.40.1.4", 6, 8011)},
		{Name: "before a range of ports", Source: shim, ACLs: list(webIn, endIn), Way: In, Packet: in("10.40.1.4", 6, 7999)},
		{Name: "remote ports of an Out rule are the destination's", Source: npmPorts, ACLs: list(dnsOut, endOut), Way: Out, Packet: out("10.96.0.10", 6, 53), Pass: true},
		{Name: "remote ports of an In rule are the source's", Source: npmPorts, ACLs: list(fromPort, endIn), Way: In, Packet: in("10.40.1.4", 17, 53)},
		{Name: "local ports of an Out rule are the source's", Source: npmPorts, ACLs: list(ownPort, endOut), Way: Out, Packet: out("10.40.1.4", 6, 443), Pass: true},
		{Name: "ports of another protocol", Source: shim, ACLs: list(webIn, endIn), Way: In, Packet: in("10.40.1.4", 17, 80)},
		{Name: "one of several protocols", Source: shim, ACLs: list(dnsOut, endOut), Way: Out, Packet: out("10.96.0.10", 17, 53), Pass: true},
		{Name: "protocol 256 is every protocol", Source: shim1059, ACLs: list(openIn), Way: In, Packet: in("10.40.1.4", 47, 0), Pass: true},
	}
}

// orderFacts are facts about precedence between rules.
func orderFacts() []Fact {
	var (
		webIn   = rule("web", "Allow", In, 1000, tcp, member("RemoteAddresses", "10.40.1.0/24,10.40.2.9"), member("LocalPorts", "80,8000-8010"))
		endIn   = rule("end in", "Block", In, 65500, any)
		endOut  = rule("end out", "Block", Out, 65500, any)
		openIn  = rule("open in", "Allow", In, 65500, any)
		openOut = rule("open out", "Allow", Out, 65500, any)
	)
	return []Fact{
		{Name: "a rule of the other direction says nothing", Source: felix, ACLs: list(openOut, endIn), Way: In, Packet: in("10.40.1.4", 6, 80)},
		{Name: "nor the other way round", Source: felix, ACLs: list(openIn, endOut), Way: Out, Packet: out("10.40.1.4", 6, 80)},

		{Name: "the lower number goes first", Source: felixSort, ACLs: list(endIn, webIn), Way: In, Packet: in("10.40.1.4", 6, 80), Pass: true},
		{Name: "wherever it stands in the list", Source: felixSort, ACLs: list(webIn, endIn), Way: In, Packet: in("10.40.1.4", 6, 80), Pass: true},
		{Name: "permissions of 222 go before denials of 3000", Source: npmOrder,
			ACLs: list(rule("deny", "Block", In, 3000, any), rule("permit", "Allow", In, 222, tcp)), Way: In, Packet: in("10.40.1.4", 6, 80), Pass: true},
		{Name: "a denial of a lower number goes before a permission", Source: felixSort,
			ACLs: list(rule("permit", "Allow", In, 1001, any), rule("deny", "Block", In, 1000, tcp)), Way: In, Packet: in("10.40.1.4", 6, 80)},
		{Name: "of many that match the first decides", Source: felixSort,
			ACLs: list(rule("c", "Allow", Out, 1002, any), rule("a", "Allow", Out, 1000, `"Protocols":"17",`), rule("b", "Block", Out, 1001, tcp)), Way: Out, Packet: out("10.40.1.4", 6, 80)},
		{Name: "65500 is the last", Source: felixSort, ACLs: list(openIn, rule("deny", "Block", In, 65499, any)), Way: In, Packet: in("10.40.1.4", 6, 80)},
	}
}

// setFacts are facts about sets.
func setFacts() []Fact {
	var (
		endIn    = rule("end in", "Block", In, 65500, any)
		endOut   = rule("end out", "Block", Out, 65500, any)
		openIn   = rule("open in", "Allow", In, 65500, any)
		setIn    = rule("set in", "Allow", In, 1000, any, member("LocalAddresses", "peers"))
		setOut   = rule("set out", "Allow", Out, 1000, any, member("RemoteAddresses", "peers"))
		notIn    = rule("not in", "Block", In, 1000, any, member("LocalAddresses", "peers"))
		both     = rule("both", "Allow", In, 1000, any, member("LocalAddresses", "peers,nets"))
		bothEnds = rule("both ends", "Allow", Out, 1000, any, member("LocalAddresses", "mine"), member("RemoteAddresses", "peers"))
		mineIn   = rule("from me", "Allow", In, 1000, any, member("LocalAddresses", "mine"))
		mine     = `{"Id":"mine","Name":"mine","PolicyType":"IPSET","Values":"10.40.3.7"}`
	)
	return []Fact{
		{Name: "a set in Local of an In rule is the source", Source: npmSets, ACLs: list(setIn, endIn), Sets: list(peers), Way: In, Packet: in("10.40.1.4", 6, 80), Pass: true},
		{Name: "and no address that it does not hold", Source: npmSets, ACLs: list(setIn, endIn), Sets: list(peers), Way: In, Packet: in("10.40.1.6", 6, 80)},
		{Name: "and not the pod", Source: npmSets, ACLs: list(mineIn, endIn), Sets: list(mine), Way: In, Packet: in("10.40.1.4", 6, 80)},
		{Name: "a set in Remote of an Out rule is the destination", Source: npmSets, ACLs: list(setOut, endOut), Sets: list(peers), Way: Out, Packet: out("10.40.1.5", 6, 80), Pass: true},
		{Name: "and no other address", Source: npmSets, ACLs: list(setOut, endOut), Sets: list(peers), Way: Out, Packet: out("10.40.1.6", 6, 80)},
		{Name: "a denial of a set", Source: npmSets, ACLs: list(notIn, openIn), Sets: list(peers), Way: In, Packet: in("10.40.1.4", 6, 80)},
		{Name: "whom a denied set does not hold", Source: npmSets, ACLs: list(notIn, openIn), Sets: list(peers), Way: In, Packet: in("10.40.1.6", 6, 80), Pass: true},
		{Name: "sets at both ends of an Out rule", Source: npmSets, ACLs: list(bothEnds, endOut), Sets: list(peers, mine), Way: Out, Packet: out("10.40.1.4", 6, 80), Pass: true},
		{Name: "the sender is in all sets of a member", Source: npmAnd, ACLs: list(both, endIn), Sets: list(peers, nets), Way: In, Packet: in("10.40.1.5", 6, 80), Pass: true},
		{Name: "the sender is in one of them only", Source: npmAnd, ACLs: list(both, endIn), Sets: list(peers, nets), Way: In, Packet: in("10.40.1.4", 6, 80)},
		{Name: "the sender is in the other one only", Source: npmAnd, ACLs: list(both, endIn), Sets: list(peers, nets), Way: In, Packet: in("10.40.9.9", 6, 80)},
	}
}

// otherFacts are facts about IP versions and Host rules.
func otherFacts() []Fact {
	var (
		endIn  = rule("end in", "Block", In, 65500, any)
		openIn = rule("open in", "Allow", In, 65500, any)
		v6     = rule("v6", "Block", In, 1000, any, member("RemoteAddresses", "fd00:1::/64"))
	)
	return []Fact{
		{Name: "a rule with IPv6 addresses matches them", Source: families, ACLs: list(v6, openIn), Way: In, Packet: in6("fd00:1::4", 58, 0)},
		{Name: "and no IPv4", Source: families, ACLs: list(v6, openIn), Way: In, Packet: in("10.40.1.4", 1, 0), Pass: true},
		{Name: "a rule without addresses matches IPv6 too", Source: families, ACLs: list(endIn), Way: In, Packet: in6("fd00:1::4", 6, 80)},
		{Name: "and permits it", Source: families, ACLs: list(openIn), Way: In, Packet: in6("fd00:1::4", 6, 80), Pass: true},

		{Name: "a Host rule that blocks goes before one that allows", Source: firewall, Bare: true, ACLs: list(openIn,
			`{"Id":"allow","Action":"Allow","Direction":"In","RuleType":"Host"}`, `{"Id":"block","Action":"Block","Direction":"In","RuleType":"Host"}`), Way: In, Packet: in("10.40.1.4", 6, 80)},
		{Name: "a Host rule opens nothing that a Switch rule blocks", Source: firewall, ACLs: list(endIn), Way: In, Packet: in("10.40.1.4", 6, 80)},
	}
}

func list(acls ...string) []string { return acls }
