// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// seenEnd is an end of a flow, as the hubble command prints it.
type seenEnd struct {
	Identity  uint32   `json:"identity"`
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod_name"`
	Labels    []string `json:"labels"`
	Workloads []struct{ Name, Kind string }
}

// seenFlow is a line of the hubble command.
type seenFlow struct {
	Flow struct {
		UUID    string    `json:"uuid"`
		Time    time.Time `json:"time"`
		Verdict string    `json:"verdict"`
		IP      struct {
			Source, Destination netip.Addr
			Version             string `json:"ipVersion"`
		}
		L4 map[string]struct {
			Source      int `json:"source_port"`
			Destination int `json:"destination_port"`
		} `json:"l4"`
		Source, Destination seenEnd
		Node                string             `json:"node_name"`
		Direction           string             `json:"traffic_direction"`
		Reason              string             `json:"drop_reason_desc"`
		EventType           struct{ Type int } `json:"event_type"`
		EgressAllowed       []seenPolicy       `json:"egress_allowed_by"`
		IngressAllowed      []seenPolicy       `json:"ingress_allowed_by"`
		EgressDenied        []seenPolicy       `json:"egress_denied_by"`
		IngressDenied       []seenPolicy       `json:"ingress_denied_by"`
	} `json:"flow"`
}

type seenPolicy struct{ Kind, Namespace, Name string }

// either makes a condition on one end a condition on a flow.
func either(ok func(seenEnd) bool) func(seenFlow) bool {
	return func(f seenFlow) bool { return ok(f.Flow.Source) || ok(f.Flow.Destination) }
}

// matchNothing are the filters that no flow matches: "server" is a pod of the namespace default.
var matchNothing = []string{"--pod test/none", "--pod server", "--protocol http", "--node-name other*", "--reply", "--http-path /"}

// requests are filters of the command, and a second implementation of what they mean. Some name values of a flow.
func requests(flow seenFlow) map[string]func(seenFlow) bool {
	sample := flow.Flow
	verdict := func(want string) func(seenFlow) bool {
		return func(f seenFlow) bool { return f.Flow.Verdict == want }
	}
	not := func(ok func(seenFlow) bool) func(seenFlow) bool { return func(f seenFlow) bool { return !ok(f) } }
	pod := func(namespace, prefix string) func(seenEnd) bool {
		return func(e seenEnd) bool {
			return e.Pod != "" && e.Namespace == namespace && strings.HasPrefix(e.Pod, prefix)
		}
	}
	all := map[string]func(seenFlow) bool{
		"":                        func(seenFlow) bool { return true },
		"--verdict DROPPED":       verdict("DROPPED"),
		"--verdict FORWARDED":     verdict("FORWARDED"),
		"--not --verdict DROPPED": not(verdict("DROPPED")),
		"--pod test/server":       either(pod("test", "server")),
		"--pod test/ser":          either(pod("test", "ser")),
		"--from-pod test/client --to-pod test/server": func(f seenFlow) bool {
			return pod("test", "client")(f.Flow.Source) && pod("test", "server")(f.Flow.Destination)
		},
		"--namespace shop":              either(pod("shop", "")),
		"--not --namespace shop":        not(either(pod("shop", ""))),
		"--from-namespace test":         func(f seenFlow) bool { return pod("test", "")(f.Flow.Source) },
		"--traffic-direction ingress":   func(f seenFlow) bool { return f.Flow.Direction == "INGRESS" },
		"--traffic-direction egress":    func(f seenFlow) bool { return f.Flow.Direction == "EGRESS" },
		"--label app=web":               either(func(e seenEnd) bool { return slices.Contains(e.Labels, "k8s:app=web") }),
		"--label reserved:world":        either(func(e seenEnd) bool { return slices.Contains(e.Labels, "reserved:world") }),
		"--to-label app=server":         func(f seenFlow) bool { return slices.Contains(f.Flow.Destination.Labels, "k8s:app=server") },
		"--type policy-verdict":         func(f seenFlow) bool { return f.Flow.EventType.Type == 5 },
		"--type drop":                   func(f seenFlow) bool { return f.Flow.EventType.Type == 1 },
		"--workload web":                either(func(e seenEnd) bool { return len(e.Workloads) > 0 && e.Workloads[0].Name == "web" }),
		"--workload Deployment/web":     either(func(e seenEnd) bool { return len(e.Workloads) > 0 && e.Workloads[0].Kind == "Deployment" }),
		"--protocol udp":                func(f seenFlow) bool { _, ok := f.Flow.L4["UDP"]; return ok },
		"--protocol tcp --to-port 7000": func(f seenFlow) bool { return f.Flow.L4["TCP"].Destination == 7000 },
		"-6":                            func(f seenFlow) bool { return f.Flow.IP.Version == "IPv6" },
		"-4":                            func(f seenFlow) bool { return f.Flow.IP.Version == "IPv4" },
		"--from-ip 10.244.0.0/16":       func(f seenFlow) bool { return netip.MustParsePrefix("10.244.0.0/16").Contains(f.Flow.IP.Source) },
		"--ip " + sample.IP.Source.String(): func(f seenFlow) bool {
			return f.Flow.IP.Source == sample.IP.Source || f.Flow.IP.Destination == sample.IP.Source
		},
		"--node-name linux*":                              func(f seenFlow) bool { return strings.HasPrefix(f.Flow.Node, "linux") },
		"--node-name win1":                                func(f seenFlow) bool { return f.Flow.Node == "win1" },
		"--drop-reason-desc POLICY_DENY":                  func(f seenFlow) bool { return f.Flow.Reason == "POLICY_DENY" },
		"--drop-reason-desc POLICY_DENIED":                func(f seenFlow) bool { return f.Flow.Reason == "POLICY_DENIED" },
		"--uuid " + sample.UUID:                           func(f seenFlow) bool { return f.Flow.UUID == sample.UUID },
		fmt.Sprint("--identity ", sample.Source.Identity): either(func(e seenEnd) bool { return e.Identity == sample.Source.Identity }),
		"--until " + sample.Time.Format(time.RFC3339Nano): func(f seenFlow) bool { return !f.Flow.Time.After(sample.Time) },
		"--since " + sample.Time.Format(time.RFC3339Nano): func(f seenFlow) bool { return !f.Flow.Time.Before(sample.Time) },
	}
	for _, args := range matchNothing {
		all[args] = func(seenFlow) bool { return false }
	}
	return all
}

// checkFlow compares a flow with the reference evaluator, and returns what is wrong.
func checkFlow(s *model.Snapshot, e *policy.Evaluator, f seenFlow) string {
	x := f.Flow
	if x.EventType.Type != 5 {
		return "" // dropped for another reason than policy
	}
	end, direction, remote := x.Source, model.Egress, x.IP.Destination
	if x.Direction == "INGRESS" {
		end, direction, remote = x.Destination, model.Ingress, x.IP.Source
	}
	p, ok := s.Pods.Get(model.PodID{Namespace: end.Namespace, Name: end.Pod})
	if !ok {
		return "the pod is not known"
	}
	protocol, port := model.TCP, 0
	for name, l4 := range x.L4 {
		protocol, port = map[string]model.Protocol{"TCP": model.TCP, "UDP": model.UDP, "SCTP": model.SCTP, "ICMPv4": model.ICMP, "ICMPv6": model.ICMPv6}[name], l4.Destination
	}
	want := e.Endpoint(p, direction, remote, protocol, uint16(port))
	lists := map[string][]seenPolicy{"EGRESS FORWARDED": x.EgressAllowed, "INGRESS FORWARDED": x.IngressAllowed, "EGRESS DROPPED": x.EgressDenied, "INGRESS DROPPED": x.IngressDenied}
	verdict := map[model.Verdict]string{model.Allow: "FORWARDED", model.Deny: "DROPPED"}[want.Verdict]
	if x.Verdict != verdict {
		return "the evaluator says " + want.String()
	}
	named := seenPolicy{}
	for key, list := range lists {
		if len(list) > 0 && key != x.Direction+" "+verdict || len(list) > 1 {
			return "a policy is in the wrong list"
		}
		if len(list) == 1 {
			named = list[0]
		}
	}
	if c := want.Cause; c.Reason == model.ReasonRule || c.Reason == model.ReasonIsolated {
		if named != (seenPolicy{c.Origin.Kind, c.Origin.Namespace, c.Origin.Name}) {
			return "the evaluator says " + want.String()
		}
	} else if named != (seenPolicy{}) {
		return "no policy decides: " + want.String()
	}
	return ""
}
