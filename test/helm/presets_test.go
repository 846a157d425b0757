// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// argument is a flag of a container in a rendered chart.
var argument = regexp.MustCompile(`(?m)^ +- (--[a-z-]+)=`)

// TestPresets renders the values for known clusters. The agents get the flags of mode policy only, and the
// directories of the runtime. TestPolicyModeFlags of cmd/isthmus-agent has the same list of flags.
func TestPresets(t *testing.T) {
	files, err := filepath.Glob(chart + "/presets/*.yaml")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d presets, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			out := render(t, "-f", file)
			var flags []string
			for _, m := range argument.FindAllStringSubmatch(out, -1) {
				flags = append(flags, m[1])
			}
			slices.Sort(flags)
			want := []string{"--cni-bin-dir", "--cni-conf-dir", "--flow-event-burst", "--flow-event-rate", "--flow-events", "--http-address", "--log-denied-flows",
				"--log-format", "--log-level", "--mode", "--node-name", "--xdp-devices"}
			if !slices.Equal(flags, want) {
				t.Errorf("flags %v, want %v", flags, want)
			}
			for _, key := range []string{"cniBinDir", "cniConfDir"} {
				m := regexp.MustCompile(`(?m)^  ` + key + `: (/.*)$`).FindSubmatch(text)
				if m == nil || !strings.Contains(out, "hostPath: {path: "+string(m[1])+", type: DirectoryOrCreate}") {
					t.Errorf("%s of the preset is not mounted in\n%s", key, out)
				}
			}
			if strings.Contains(out, "hostProcess") || !strings.Contains(out, "- --mode=policy\n") {
				t.Errorf("not for policy on Linux:\n%s", out)
			}
			removal := render(t, "-f", file, "--set", "uninstall=true")
			if !strings.Contains(removal, "- uninstall\n") || !strings.Contains(removal, "- --cni-conf-dir=/host/cni/net.d\n") {
				t.Errorf("removal:\n%s", removal)
			}
		})
	}
}

// TestPolicyMode: values of the pod network do not fit mode policy.
func TestPolicyMode(t *testing.T) {
	const policy, both = "mode=policy", "mode=policy,windows.enabled=true"
	if out := render(t, "--set", policy+",linux.neverDeny={192.0.2.1}"); !strings.Contains(out, "- --never-deny=192.0.2.1\n") {
		t.Errorf("no deny lists in\n%s", out)
	}
	out := render(t, "--set", both)
	if _, windows, ok := strings.Cut(out, "hostProcess"); !ok || !strings.Contains(windows, "- --mode=policy\n") || !strings.Contains(windows, "- --flow-events=denied\n") || strings.Contains(out, "--hns-") || strings.Contains(windows, "--masquerade") {
		t.Errorf("Windows nodes in mode policy:\n%s", out)
	}
	// A relay needs the flows of agents in every mode, on both systems.
	for flags, systems := range map[string]int{both: 2, policy: 1, "mode=observe": 1} {
		out := strings.ReplaceAll(render(t, "--set", flags+",relay.enabled=true,relay.agentPort=4300"), "%CONTAINER_SANDBOX_MOUNT_POINT%", "")
		for _, want := range []string{"- --hubble-listen=:4300\n", "- --hubble-cert=/etc/isthmus-hubble/tls.crt\n", "- --hubble-key=/etc/isthmus-hubble/tls.key\n", "- --hubble-ca=/etc/isthmus-hubble/ca.crt\n"} {
			if n := strings.Count(out, want); n != systems {
				t.Errorf("--set %s with a relay: %q for %d systems, want %d", flags, want, n, systems)
			}
		}
	}
	// Each agent with --config has the ConfigMap with its settings.
	settings := render(t, "--set", both+",agent.config.audit-interval=30s")
	for _, system := range []string{"linux", "windows"} {
		if !strings.Contains(settings, "configMap: {name: isthmus-agent-"+system+"}") || !strings.Contains(settings, "kind: ConfigMap\nmetadata:\n  name: isthmus-agent-"+system+"\n") {
			t.Errorf("no settings for the agents on %s in\n%s", system, settings)
		}
	}
	for flags, want := range map[string]string{
		"mode=observe,windows.enabled=true":           "mode observe is for Linux nodes, as HNS cannot report what policy would drop: set windows.enabled=false",
		both + ",windows.endpointPool=auto":           "windows.endpointPool have no meaning with mode policy",
		both + ",windows.sets=on":                     "windows.sets and windows.endpointPool have no meaning with mode policy",
		both + ",windows.serviceCIDRs={10.96.0.0/12}": "have no meaning with mode policy",
		policy + ",agent.mtu=1400":                    "have no meaning with mode policy",
		policy + ",agent.uplink=eth1":                 "have no meaning with mode policy",
		policy + ",agent.reservedHostPorts={22}":      "have no meaning with mode policy",
		policy + ",fabric.mode=routes":                "fabric.masquerade have no meaning with mode policy",
		policy + ",fabric.forwarding=stack":           "have no meaning with mode policy",
		policy + ",fabric.vni=5000":                   "have no meaning with mode policy",
		policy + ",fabric.vxlanPort=8472":             "have no meaning with mode policy",
		policy + ",fabric.masquerade=false":           "have no meaning with mode policy",
		"mode=observe,agent.mtu=1400":                 "have no meaning with mode observe,",
		"mode=observe,fabric.vni=5000":                "have no meaning with mode observe,",
		"mode=observe," + controlled:                  "with mode observe the other network",
		"agent.httpAddress=:65536":                    "don't meet the specifications of the schema",
		policy + "," + controlled:                     "set controller.enabled=false",
		"mode=chained":                                "don't meet the specifications of the schema",
	} {
		if out, err := run("template", "isthmus", chart, "--set", flags); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: %v\n%s", flags, err, out)
		}
	}
}
