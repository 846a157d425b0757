// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
)

// parseFilter reads a filter as text.
func parseFilter(t testing.TB, text string) *flow.FlowFilter {
	f := &flow.FlowFilter{}
	if err := prototext.Unmarshal([]byte(text), f); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return f
}

// sample is web's denied flow, with fields that Isthmus leaves empty today.
func sample() *flow.Flow {
	f := denied()
	f.Masquerade = netip.MustParseAddrPort("192.0.2.1:4000")
	m := proto.CloneOf(newMapper().Map(f))
	m.Uuid = "u-1"
	m.Interface = &flow.NetworkInterface{Index: 7, Name: "veth7"}
	m.L4.GetTCP().Flags = &flow.TCPFlags{SYN: true, ECE: true}
	m.DestinationNames = []string{"db.example.com"}
	m.DestinationService = &flow.Service{Namespace: "data", Name: "db"}
	m.SourceService = &flow.Service{Namespace: "shop", Name: "web"}
	m.SourceNames = []string{"web.example.com"}
	m.Source.Identity, m.Destination.Identity = 1001, 1002
	return m
}

// fields has, for every field of FlowFilter, values that match the sample and values that do not.
var fields = map[string]struct{ yes, no []string }{
	"source_ip":                {[]string{`"10.0.1.1"`, `"10.0.0.0/16"`}, []string{`"10.0.1.2"`, `"2001:db8::/32"`}},
	"source_ip_xlated":         {[]string{`"192.0.2.1"`}, []string{`"10.0.1.1"`}},
	"source_pod":               {[]string{`"shop/web"`, `"shop/"`, `"/web-7"`, `"shop/web-7d9f-x2x4z"`}, []string{`"web"`, `"data/"`, `"shop/db"`, `"/db"`}},
	"destination_ip":           {[]string{`"10.0.1.2"`}, []string{`"10.0.1.1"`}},
	"destination_pod":          {[]string{`"data/db"`}, []string{`"shop/"`}},
	"verdict":                  {[]string{`DROPPED`}, []string{`FORWARDED`, `AUDIT`}},
	"event_type":               {[]string{`{type: 5}`, `{type: 5 match_sub_type: true sub_type: 181}`, `{}`}, []string{`{type: 1}`, `{type: 5 match_sub_type: true}`}},
	"source_fqdn":              {[]string{`"web.example.com"`, `"*.example.com"`, `"WEB.example.com."`}, []string{`"example.com"`, `"webXexample.com"`}},
	"destination_fqdn":         {[]string{`"db.*"`}, []string{`"web.*"`}},
	"http_status_code":         {nil, []string{`"404"`}},
	"source_label":             {[]string{`"app=web"`, `"k8s:app"`, `"any:app=web"`, `"app in (web, db)"`, `"app!=db,!tier"`, `"tier notin (x)"`, `""`}, []string{`"app=db"`, `"reserved:app"`, `"!app"`, `"app notin (web)"`, `"app=web,tier"`}},
	"destination_label":        {[]string{`"io.kubernetes.pod.namespace=data"`}, []string{`"app"`}},
	"protocol":                 {[]string{`"tcp"`, `"TCP"`}, []string{`"udp"`, `"sctp"`, `"icmp"`, `"icmpv4"`, `"icmpv6"`, `"http"`, `"dns"`}},
	"source_port":              {[]string{`"1000"`}, []string{`"5432"`}},
	"destination_port":         {[]string{`"5432"`}, []string{`"1000"`}},
	"reply":                    {[]string{`false`}, []string{`true`}},
	"source_service":           {[]string{`"shop/web"`}, []string{`"data/"`}},
	"destination_service":      {[]string{`"data/d"`}, []string{`"db"`}},
	"dns_query":                {nil, []string{`".*"`}},
	"source_identity":          {[]string{`1001`}, []string{`1002`}},
	"destination_identity":     {[]string{`1002`}, []string{`1001`}},
	"http_method":              {nil, []string{`"GET"`}},
	"http_path":                {nil, []string{`"/"`}},
	"tcp_flags":                {[]string{`{SYN: true}`, `{SYN: true ECE: true}`, `{}`}, []string{`{ACK: true}`, `{SYN: true ACK: true}`}},
	"node_name":                {[]string{`"n1"`, `"n*"`, `"default/"`, `"default/n1"`}, []string{`"n2"`, `"other/"`}},
	"ip_version":               {[]string{`IPv4`}, []string{`IPv6`}},
	"source_workload":          {[]string{`{name: "web"}`, `{kind: "Deployment"}`, `{}`}, []string{`{name: "db"}`, `{name: "web" kind: "Job"}`}},
	"destination_workload":     {nil, []string{`{name: "db"}`}},
	"trace_id":                 {nil, []string{`"1"`}},
	"uuid":                     {[]string{`"u-1"`}, []string{`"u-2"`}},
	"traffic_direction":        {[]string{`EGRESS`}, []string{`INGRESS`}},
	"http_url":                 {nil, []string{`".*"`}},
	"http_header":              {nil, []string{`{key: "a"}`}},
	"drop_reason_desc":         {[]string{`POLICY_DENY`}, []string{`POLICY_DENIED`}},
	"interface":                {[]string{`{index: 7}`, `{name: "veth7"}`, `{}`}, []string{`{index: 8}`, `{index: 7 name: "eth0"}`}},
	"node_labels":              {[]string{`"zone=a"`}, []string{`"zone=b"`}},
	"source_cluster_name":      {[]string{`"default"`}, []string{`"other"`}},
	"destination_cluster_name": {[]string{`"default"`}, []string{`"other"`}},
	"ip_trace_id":              {nil, []string{`1`}},
	"encrypted":                {[]string{`false`}, []string{`true`}},
}

// TestFilterFields tries every field of FlowFilter, alone and in the deny list.
func TestFilterFields(t *testing.T) {
	x := sample()
	try := func(name, value string, want bool) {
		f := parseFilter(t, name+": "+value)
		allow, err := NewFilter([]*flow.FlowFilter{f}, nil)
		if err != nil {
			t.Errorf("%s: %s: %v", name, value, err)
			return
		}
		deny, err := NewFilter(nil, []*flow.FlowFilter{f})
		if err != nil {
			t.Fatal(err)
		}
		if allow.Matches(x) != want || deny.Matches(x) == want {
			t.Errorf("%s: %s: allowed %t, denied %t, want match %t", name, value, allow.Matches(x), !deny.Matches(x), want)
		}
		if want && allow.Matches(&flow.Flow{}) && value != "false" && value != `""` && !strings.Contains(value, "notin") && !strings.Contains(value, "!=") {
			t.Errorf("%s: %s matches an empty flow", name, value)
		}
	}
	all := (*flow.FlowFilter)(nil).ProtoReflect().Descriptor().Fields()
	for i := range all.Len() {
		name := string(all.Get(i).Name())
		c, ok := fields[name]
		if !ok && name != "experimental" {
			t.Errorf("no test of field %s", name)
		}
		for _, v := range c.yes {
			try(name, v, true)
		}
		for _, v := range c.no {
			try(name, v, false)
		}
		if len(c.yes) > 0 { // values of a field are alternatives
			v := name + ": " + c.yes[0] + " " + name + ": " + c.no[0]
			if f, err := NewFilter([]*flow.FlowFilter{parseFilter(t, v)}, nil); err != nil || !f.Matches(x) {
				t.Errorf("%s does not match: %v", v, err)
			}
		}
	}
}

// TestFilterLists checks that fields of an entry are all required, entries are alternatives, and deny wins.
func TestFilterLists(t *testing.T) {
	x := sample()
	for _, c := range []struct {
		allow, deny []string
		want        bool
	}{
		{nil, nil, true},
		{[]string{`verdict: DROPPED protocol: "tcp"`}, nil, true},
		{[]string{`verdict: DROPPED protocol: "udp"`}, nil, false},
		{[]string{`protocol: "udp"`, `verdict: DROPPED`}, nil, true},
		{[]string{``}, nil, true},
		{nil, []string{``}, false},
		{[]string{`verdict: DROPPED`}, []string{`protocol: "udp"`, `source_pod: "shop/"`}, false},
		{[]string{`verdict: DROPPED`}, []string{`protocol: "udp" source_pod: "shop/"`}, true},
	} {
		var lists [2][]*flow.FlowFilter
		for i, l := range [][]string{c.allow, c.deny} {
			for _, text := range l {
				lists[i] = append(lists[i], parseFilter(t, text))
			}
		}
		f, err := NewFilter(lists[0], lists[1])
		if err != nil || f.Matches(x) != c.want {
			t.Errorf("%q without %q: want %t: %v", c.allow, c.deny, c.want, err)
		}
	}
}

func TestFilterErrors(t *testing.T) {
	for text, want := range map[string]string{
		`source_ip: "10.0.0.300"`:                        `whitelist entry 0: source_ip "10.0.0.300": give an address or ADDRESS/BITS`,
		`source_pod: ""`:                                 `source_pod: a name is empty`,
		`source_port: "http"`:                            `source_port "http": give a number up to 65535`,
		`destination_port: "65536"`:                      `destination_port "65536"`,
		`protocol: "smtp"`:                               `protocol "smtp": give tcp`,
		`source_label: "a=b=c"`:                          `"b=c" is not the name or value of a label`,
		`source_label: "a in b"`:                         `"a in b" is not the name or value`,
		`source_label: "a,,b"`:                           `a part is empty`,
		`source_label: "a is (b)"`:                       `give KEY in (A, B)`,
		`source_label: "a=>b"`:                           `">b"`,
		`source_label: "=b"`:                             `is not the name or value of a label`,
		`node_name: "a/b/c"`:                             `node_name "a/b/c": give NODE`,
		`node_name: ""`:                                  `node_name ""`,
		`source_fqdn: "a b"`:                             `' ' is not allowed in a domain name`,
		`destination_fqdn: "a.."`:                        `give a domain name`,
		`http_path: "("`:                                 `http_path "(": give a regular expression`,
		`source_cluster_name: ""`:                        `source_cluster_name: a name is empty`,
		`experimental {cel_expression: "true"}`:          `expressions are not supported`,
		`uuid: "` + strings.Repeat("x", maxText+1) + `"`: `uuid: a value has more than 1024 bytes`,
		`source_workload {name: "` + strings.Repeat("x", 1025) + `"}`: `name: a value has more`,
		strings.Repeat(`reply: true `, MaxValues+1):                   `more than 4096 values`,
	} {
		if _, err := NewFilter([]*flow.FlowFilter{parseFilter(t, text)}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: got %v, want %s", text, err, want)
		}
	}
	unknown := parseFilter(t, `verdict: DROPPED`)
	unknown.ProtoReflect().SetUnknown(protoreflect.RawFields{0xc2, 0x3e, 0x01, 'x'}) // field 1000
	if _, err := NewFilter(nil, []*flow.FlowFilter{unknown}); err == nil || !strings.Contains(err.Error(), "blacklist entry 0: FlowFilter has a field that this version does not support") {
		t.Errorf("a filter with an unknown field: %v", err)
	}
	if _, err := NewFilter(make([]*flow.FlowFilter, MaxFilters+1), nil); err == nil {
		t.Error("too many filters are accepted")
	}
}

// FuzzFilter feeds bytes of clients. A filter that compiles must not match what it matches in the deny list.
func FuzzFilter(f *testing.F) {
	for name, c := range fields {
		for _, v := range append(c.yes, c.no...) {
			bytes, err := proto.Marshal(parseFilter(f, name+": "+v))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(bytes)
		}
	}
	flows := []*flow.Flow{{}, sample(), newMapper().Map(denied())}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		m := &flow.FlowFilter{}
		if proto.Unmarshal(bytes, m) != nil {
			return
		}
		allow, err := NewFilter([]*flow.FlowFilter{m}, nil)
		deny, failed := NewFilter(nil, []*flow.FlowFilter{m})
		if (err == nil) != (failed == nil) {
			t.Fatalf("%v, %v", err, failed)
		}
		if err != nil {
			if len(err.Error()) > 8*maxText {
				t.Errorf("an error has %d bytes", len(err.Error()))
			}
			return
		}
		for _, x := range flows {
			if allow.Matches(x) == deny.Matches(x) {
				t.Errorf("%v is both allowed and denied by %v", x, m)
			}
		}
	})
}

func TestMask(t *testing.T) {
	x := sample()
	for _, c := range []struct{ paths, want string }{
		{"verdict", `verdict:DROPPED`},
		{"source.namespace,source.pod_name,nonsense,l7.dns", `source:{namespace:"shop"  pod_name:"web-7d9f-x2x4z"}`},
		{"IP.source,IP", `IP:{source:"10.0.1.1"  destination:"10.0.1.2"  ipVersion:IPv4  source_xlated:"192.0.2.1"}`},
		{"IP,IP.source", `IP:{source:"10.0.1.1"  destination:"10.0.1.2"  ipVersion:IPv4  source_xlated:"192.0.2.1"}`},
		{"l4.TCP.source_port,source_service", `l4:{TCP:{source_port:1000}}  source_service:{name:"web"  namespace:"shop"}`},
		{"source.workloads.name", `source:{workloads:{name:"web"  kind:"Deployment"}}`},
		{"aggregate.ingress_flow_count,nonsense.", ``},
	} {
		before := proto.CloneOf(x)
		m, err := NewMask(mask(strings.Split(c.paths, ",")...))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(fmt.Sprint(m.Apply(x)), "\u00a0", " "); strings.ReplaceAll(got, "  ", " ") != strings.ReplaceAll(c.want, "  ", " ") {
			t.Errorf("%s: got %s, want %s", c.paths, got, c.want)
		}
		if !proto.Equal(x, before) {
			t.Fatal("a mask changed the flow")
		}
	}
	if m, err := NewMask(nil); err != nil || m.Apply(x) != x {
		t.Errorf("no mask: %v", err)
	}
	if _, err := NewMask(mask(make([]string, maxPaths+1)...)); err == nil {
		t.Error("a mask with too many paths is accepted")
	}
}

func BenchmarkFilter(b *testing.B) {
	f, err := NewFilter([]*flow.FlowFilter{parseFilter(b, `source_pod: "shop/web" verdict: DROPPED`), parseFilter(b, `destination_pod: "shop/web"`)}, nil)
	if err != nil {
		b.Fatal(err)
	}
	x := newMapper().Map(denied())
	for b.Loop() {
		f.Matches(x)
	}
}
