// SPDX-License-Identifier: Apache-2.0

package monitoring_test

// alertCase is what an alert must do at a time, on series with a value a minute. An alert that fires has
// the summary and the labels; one without a summary is silent.
type alertCase struct {
	alert   string
	series  map[string]string
	at      string
	summary string
	labels  map[string]string
}

// on is the label of the node of all cases.
func on(more ...string) map[string]string {
	labels := map[string]string{"instance": "n1"}
	for i := 0; i < len(more); i += 2 {
		labels[more[i]] = more[i+1]
	}
	return labels
}

var cases = []alertCase{
	{"IsthmusAgentDown", map[string]string{`up{job="isthmus-system/isthmus-agent",instance="n1"}`: "1x5 0x20"}, "15m",
		"n1 cannot be scraped: policy in force stays, changes and new pods wait", on("job", "isthmus-system/isthmus-agent")},
	{"IsthmusAgentDown", map[string]string{`up{job="isthmus-system/isthmus-agent",instance="n1"}`: "1x5 0x3 1x20", `up{job="other",instance="n1"}`: "0x30"}, "15m", "", nil},

	{"IsthmusNotReady", map[string]string{`isthmus_ready{instance="n1"}`: "1x4 0x20"}, "12m", "No policy of the agent on n1 is in force; new pods wait", on()},
	{"IsthmusNotReady", map[string]string{`isthmus_ready{instance="n1"}`: "0x3 1x20"}, "12m", "", nil}, // a start

	{"IsthmusPodsUnenforced", map[string]string{`isthmus_endpoints_unenforced{instance="n1"}`: "0x3 2x10"}, "6m", "2 pods on n1 are not under policy", on()},
	{"IsthmusPodsUnenforced", map[string]string{`isthmus_endpoints_unenforced{instance="n1"}`: "0x3 2 0x10"}, "6m", "", nil}, // repaired at once
	{"IsthmusPodsUnenforced", map[string]string{`isthmus_endpoints_unenforced{instance="n1"}`: "0x13", `isthmus_pods_unpoliced{instance="n1"}`: "0x3 2x10"}, "6m",
		"2 pods on n1 are not under policy", on()},
	{"IsthmusPodsUnenforced", map[string]string{`isthmus_endpoints_unenforced{instance="n1"}`: "1x13", `isthmus_pods_unpoliced{instance="n1"}`: "2x13"}, "6m",
		"3 pods on n1 are not under policy", on()},
	{"IsthmusPodsUnenforced", map[string]string{`isthmus_endpoints_unenforced{instance="n1"}`: "0x13", `isthmus_pods_unpoliced{instance="n1"}`: "0x3 1 0x10"}, "6m", "", nil},

	{"IsthmusPolicyNotApplied", map[string]string{`isthmus_apply_errors_total{instance="n1"}`: "0x3 1+1x20"}, "15m", "Changes of policy do not get into force on n1", on()},
	{"IsthmusPolicyNotApplied", map[string]string{`isthmus_apply_errors_total{instance="n1"}`: "0x3 1x30"}, "15m", "", nil},

	{"IsthmusEnforcementSlow", map[string]string{`isthmus_time_to_enforce_seconds_bucket{instance="n1",le="4"}`: "0x40",
		`isthmus_time_to_enforce_seconds_bucket{instance="n1",le="16"}`: "0+10x40", `isthmus_time_to_enforce_seconds_bucket{instance="n1",le="+Inf"}`: "0+10x40"}, "35m",
		"Changes take 15.88s to get into force on n1", on()},
	{"IsthmusEnforcementSlow", map[string]string{`isthmus_time_to_enforce_seconds_bucket{instance="n1",le="4"}`: "0+10x40",
		`isthmus_time_to_enforce_seconds_bucket{instance="n1",le="16"}`: "0+10x40", `isthmus_time_to_enforce_seconds_bucket{instance="n1",le="+Inf"}`: "0+10x40"}, "35m", "", nil},

	{"IsthmusSourceStale", map[string]string{`isthmus_source_current{instance="n1"}`: "1x3 0x20"}, "15m", "The agent on n1 does not see changes of the cluster", on()},
	{"IsthmusSourceStale", map[string]string{`isthmus_source_current{instance="n1"}`: "1x3 0x5 1x20"}, "15m", "", nil},

	{"IsthmusMapNearlyFull", map[string]string{`isthmus_map_entries{instance="n1",map="conns4"}`: "95x20", `isthmus_map_capacity{instance="n1",map="conns4"}`: "100x20"}, "15m",
		"Map conns4 of n1 is 95% full", on("map", "conns4")},
	{"IsthmusMapNearlyFull", map[string]string{`isthmus_map_entries{instance="n1",map="conns4"}`: "80x20", `isthmus_map_capacity{instance="n1",map="conns4"}`: "100x20",
		`isthmus_map_entries{instance="n1",map="off"}`: "0x20", `isthmus_map_capacity{instance="n1",map="off"}`: "0x20"}, "15m", "", nil},

	{"IsthmusFlowsUntracked", map[string]string{`isthmus_flows_untracked_total{instance="n1"}`: "0x5 7x20"}, "8m",
		"The flow table of n1 is full: replies of some allowed flows are denied", on()},
	{"IsthmusFlowsUntracked", map[string]string{`isthmus_flows_untracked_total{instance="n1"}`: "0x5 7x40"}, "30m", "", nil},

	{"IsthmusDrift", map[string]string{`isthmus_audit_drifts_total{instance="n1",object="verdicts"}`: "0x8 1x12", `isthmus_audit_drifts_total{instance="n1",object="rows"}`: "0x20"}, "12m",
		"Another process changes objects of kind verdicts on n1", on("object", "verdicts")},
	{"IsthmusDrift", map[string]string{`isthmus_audit_drifts_total{instance="n1",object="verdicts"}`: "0x8 1x40"}, "40m", "", nil},

	{"IsthmusAuditStale", map[string]string{`isthmus_audit_last_success_timestamp_seconds{instance="n1"}`: "60x60"}, "31m", "No audit of n1 has succeeded for 30m 0s", on()},
	{"IsthmusAuditStale", map[string]string{`isthmus_audit_last_success_timestamp_seconds{instance="n1"}`: "0+60x60",
		`isthmus_audit_last_success_timestamp_seconds{instance="n2"}`: "0x60"}, "31m", "", nil}, // n2 has audits turned off

	{"IsthmusAuditStale", map[string]string{`isthmus_audit_last_success_timestamp_seconds{instance="n1"}`: "0x60", `isthmus_audit_runs_total{instance="n1",result="error"}`: "0+1x60",
		`isthmus_audit_runs_total{instance="n1",result="clean"}`: "0x60"}, "31m", "No audit of n1 has succeeded since its start", on()},

	{"IsthmusAddressesLow", map[string]string{`isthmus_ipam_addresses{instance="n1",pool="10.0.1.0/24",state="used"}`: "200x20",
		`isthmus_ipam_addresses{instance="n1",pool="10.0.1.0/24",state="quarantined"}`: "10x20", `isthmus_ipam_addresses{instance="n1",pool="10.0.1.0/24",state="free"}`: "40x20"}, "15m", "", nil},
	{"IsthmusAddressesLow", map[string]string{`isthmus_ipam_addresses{instance="n1",pool="10.0.1.0/24",state="used"}`: "240x20",
		`isthmus_ipam_addresses{instance="n1",pool="10.0.1.0/24",state="free"}`: "10x20"}, "15m", "96% of the addresses of 10.0.1.0/24 on n1 are taken", on("pool", "10.0.1.0/24")},

	{"IsthmusPodStartsFail", map[string]string{`isthmus_cni_requests_total{instance="n1",command="ADD",code="102"}`: "0+1x20"}, "10m", "Pods cannot be attached on n1", on("command", "ADD")},
	{"IsthmusPodStartsFail", map[string]string{`isthmus_cni_requests_total{instance="n1",command="ADD",code="11"}`: "0+9x20", `isthmus_cni_requests_total{instance="n1",command="CHECK",code="104"}`: "0+9x20",
		`isthmus_cni_requests_total{instance="n1",command="ADD",code="0"}`: "0+9x20", `isthmus_cni_requests_total{instance="n1",command="ADD",code="5"}`: "0x5 1x20"}, "10m", "", nil},

	{"IsthmusEndpointsBroken", map[string]string{`isthmus_endpoint_problems{instance="n1"}`: "0x2 1x20"}, "15m", "1 pods on n1 cannot be repaired or removed", on()},
	{"IsthmusEndpointsBroken", map[string]string{`isthmus_endpoint_problems{instance="n1"}`: "0x2 1x5 0x20"}, "15m", "", nil},

	{"IsthmusProblems", map[string]string{`isthmus_problems{instance="n1",kind="data_path"}`: "3x30", `isthmus_problems{instance="n1",kind="capacity"}`: "0x30"}, "20m",
		"3 problems of kind data_path on n1", on("kind", "data_path")},
	{"IsthmusProblems", map[string]string{`isthmus_problems{instance="n1",kind="policy"}`: "1x30", `isthmus_problems{instance="n1",kind="drift"}`: "1x5 0x30"}, "20m", "", nil}, // others tell of policy

	{"IsthmusPolicyNotExact", map[string]string{`isthmus_unsupported{instance="n1",effect="over-blocks"}`: "2x30", `isthmus_unsupported{instance="n1",effect="refused"}`: "0x30"}, "15m",
		"2 constructs of policies are not enforced as written on n1 (over-blocks)", on("effect", "over-blocks")},
	{"IsthmusPolicyNotExact", map[string]string{`isthmus_unsupported{instance="n1",effect="over-blocks"}`: "0x30"}, "15m", "", nil},

	{"IsthmusSpoofedPackets", map[string]string{`isthmus_drops_total{instance="n1",reason="spoofed"}`: "0+100x20", `isthmus_drops_total{instance="n1",reason="malformed"}`: "0+100x20"}, "15m",
		"n1 drops packets with forged addresses (spoofed)", on("reason", "spoofed")},
	{"IsthmusSpoofedPackets", map[string]string{`isthmus_drops_total{instance="n1",reason="spoofed"}`: "0+1x20"}, "15m", "", nil},

	{"IsthmusFlowEventsLost", map[string]string{`isthmus_flow_events_missed_total{instance="n1",reason="lost"}`: "0+1x30", `isthmus_flow_events_missed_total{instance="n1",reason="limited"}`: "0+9x30"}, "25m",
		"n1 loses flow events; verdicts are not affected", on("reason", "lost")},
	{"IsthmusFlowEventsLost", map[string]string{`isthmus_flow_events_missed_total{instance="n1",reason="limited"}`: "0+9x30"}, "25m", "", nil},

	{"IsthmusCountersStale", map[string]string{`isthmus_counters_timestamp_seconds{instance="n1"}`: "60x60"}, "21m", "The counters of n1 are 20m 0s old", on()},
	{"IsthmusCountersStale", map[string]string{`isthmus_counters_timestamp_seconds{instance="n1"}`: "0+60x60"}, "21m", "", nil},

	{"IsthmusCountersStale", map[string]string{`isthmus_counters_timestamp_seconds{instance="n1"}`: "0x60"}, "21m", "The counters of n1 were never read", on()},

	{"IsthmusHNSErrors", map[string]string{`isthmus_hns_call_errors_total{instance="n1",op="CreateEndpoint",code="0x800705b4"}`: "0+2x40"}, "30m", "HNS on n1 refuses calls or does not answer", on()},
	{"IsthmusHNSErrors", map[string]string{`isthmus_hns_call_errors_total{instance="n1",op="CreateEndpoint",code="ended"}`: "0+2x40", `isthmus_hns_call_errors_total{instance="n1",op="X",code="0x80070005"}`: "0x9 2x40"}, "30m", "", nil},

	{"IsthmusReportsFail", map[string]string{`isthmus_report_requests_total{instance="n1",what="node",result="error"}`: "0+1x60"}, "40m", "n1 cannot write to the API server", on("what", "node", "result", "error")},
	{"IsthmusReportsFail", map[string]string{`isthmus_report_requests_total{instance="n1",what="node",result="error"}`: "8 8 9 9 9 9 9 10x4 11x4 12x4 13x4 14x4 15x4 16x4 17x4 18x4 19x4"}, "44m",
		"n1 cannot write to the API server", on("what", "node", "result", "error")}, // the longest pause between attempts is 5 minutes
	{"IsthmusReportsFail", map[string]string{`isthmus_report_requests_total{instance="n1",what="node",result="error"}`: "0x9 12x60"}, "28m", "", nil}, // the API server was away
	{"IsthmusReportsFail", map[string]string{`isthmus_report_requests_total{instance="n1",what="node",result="error"}`: "0x9 2x60", `isthmus_report_requests_total{instance="n1",what="node",result="ok"}`: "0+9x60"}, "40m", "", nil},

	{"IsthmusVersionsDiffer", map[string]string{`isthmus_build_info{instance="n1",os="linux",version="1"}`: "1x500", `isthmus_build_info{instance="n2",os="linux",version="2"}`: "1x500"}, "7h",
		"Agents on linux have 2 versions", map[string]string{"os": "linux"}},
	{"IsthmusVersionsDiffer", map[string]string{`isthmus_build_info{instance="n1",os="linux",version="1"}`: "1x30 _x500", `isthmus_build_info{instance="n1",os="linux",version="2"}`: "_x31 1x500",
		`isthmus_build_info{instance="w1",os="windows",version="1"}`: "1x500"}, "7h", "", nil}, // an upgrade

	{"IsthmusRelayDown", map[string]string{`up{job="isthmus-system/isthmus-relay",instance="r1"}`: "1x5 0x30", `up{job="isthmus-system/isthmus-relay",instance="r2"}`: "1x40"}, "20m",
		"The relay r1 cannot be scraped: clients and exports may get no flows", map[string]string{"instance": "r1", "job": "isthmus-system/isthmus-relay"}},
	{"IsthmusRelayDown", map[string]string{`up{job="isthmus-relay",instance="r1"}`: "1x5 _x100"}, "60m", "No relay is left: clients and exports may get no flows", map[string]string{}},
	{"IsthmusRelayDown", map[string]string{`up{job="isthmus-relay",instance="r1"}`: "1x5 0x5 1x30", `up{job="isthmus-relay",instance="r2"}`: "1x5 _x30", `up{job="other",instance="n1"}`: "0x40"}, "30m", "", nil},
	{"IsthmusRelayDown", map[string]string{`up{job="isthmus-agent",instance="n1"}`: "1x60"}, "60m", "", nil}, // never installed

	{"IsthmusRelayBlind", map[string]string{`isthmus_relay_nodes{instance="r1",state="connected"}`: "3x5 0x30", `isthmus_relay_nodes{instance="r1",state="unavailable"}`: "0x40"}, "20m",
		"No agent answers the relay r1: its clients and exports get no flows", map[string]string{"instance": "r1", "state": "connected"}},
	{"IsthmusRelayBlind", map[string]string{`isthmus_relay_nodes{instance="r1",state="connected"}`: "0x5 3x30", `isthmus_relay_nodes{instance="r1",state="unavailable"}`: "0x40"}, "20m", "", nil},

	{"IsthmusRelayNodesUnavailable", map[string]string{`isthmus_relay_nodes{instance="r1",state="unavailable"}`: "0x3 2x30", `isthmus_relay_nodes{instance="r2",state="unavailable"}`: "0x3 2x30"}, "25m",
		"The relay gets no flows of 2 nodes", map[string]string{}},
	{"IsthmusRelayNodesUnavailable", map[string]string{`isthmus_relay_nodes{instance="r1",state="unavailable"}`: "0x3 2x5 0x30", `isthmus_relay_nodes{instance="r1",state="connected"}`: "9x40"}, "25m", "", nil},

	{"IsthmusExportFails", map[string]string{`isthmus_relay_export_errors_total{instance="n1"}`: "0x5 10x10"}, "10m", "n1 cannot write flows: 10 lines were lost", on()},
	{"IsthmusExportFails", map[string]string{`isthmus_relay_export_errors_total{instance="n1"}`: "0x5 10x40"}, "30m", "", nil},

	{"IsthmusCollectorMisses", map[string]string{`isthmus_relay_otlp_missed_total{instance="n1",reason="queue"}`: "0x5 10+10x20", `isthmus_relay_otlp_missed_total{instance="n1",reason="rejected"}`: "0x30"}, "20m",
		"The collector of n1 does not take all flows: 100 records were missed", on()},
	{"IsthmusCollectorMisses", map[string]string{`isthmus_relay_otlp_missed_total{instance="n1",reason="shutdown"}`: "0x5 10x40"}, "30m", "", nil},

	{"IsthmusControllerAbsent", map[string]string{`isthmus_controller_leader{instance="c1"}`: "1x3 0x20", `isthmus_controller_leader{instance="c2"}`: "0x20"}, "12m",
		"No isthmus-controller is the leader: new nodes get no pod range", map[string]string{}},
	{"IsthmusControllerAbsent", map[string]string{`isthmus_controller_leader{instance="c1"}`: "1x3 0x20", `isthmus_controller_leader{instance="c2"}`: "0x5 1x20"}, "12m", "", nil},

	{"IsthmusControllerAbsent", map[string]string{`isthmus_controller_leader{instance="c1"}`: "1x3 _x60", `isthmus_controller_leader{instance="c2"}`: "0x3 _x60"}, "30m",
		"No isthmus-controller is the leader: new nodes get no pod range", map[string]string{}},
	{"IsthmusControllerAbsent", map[string]string{`isthmus_ready{instance="n1"}`: "1x60"}, "30m", "", nil}, // never installed

	{"IsthmusPodRangesExhausted", map[string]string{`isthmus_controller_nodes{instance="n1",state="waiting"}`: "0x3 2x20"}, "12m", "2 nodes wait for a pod range", on("state", "waiting")},
	{"IsthmusPodRangesExhausted", map[string]string{`isthmus_controller_nodes{instance="n1",state="wrong"}`: "2x20", `isthmus_controller_nodes{instance="n1",state="waiting"}`: "0x20"}, "12m", "", nil},
}
