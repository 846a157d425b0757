// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// flannelNode makes the network that flanneld.exe makes for host-gw or vxlan, and the host's endpoint on it.
func flannelNode(t *testing.T, m *Machine, mode windows.Mode) {
	t.Helper()
	subnet := hns.Subnet{IPAddressPrefix: "10.244.3.0/24", Routes: []hns.Route{{NextHop: "10.244.3.1", DestinationPrefix: "0.0.0.0/0"}}}
	objects := map[string]any{"Host": hns.Endpoint{Name: "cbr0_ep", SchemaVersion: hns.Schema2, IPConfigurations: []hns.IPConfig{{IPAddress: "10.244.3.2", PrefixLength: 24}}}}
	network := hns.Network{Name: "cbr0", Type: hns.L2Bridge, SchemaVersion: hns.Schema2, Policies: []hns.Policy{hns.MakePolicy(hns.TypeNetAdapterName, hns.NetAdapterName{NetworkAdapterName: "Ethernet"})}}
	if mode == windows.Overlay {
		delete(objects, "Host")
		network.Type = hns.Overlay
		network.Policies = append(network.Policies, hns.MakePolicy(hns.TypeHostRoute, struct{}{}))
		subnet.Policies = []hns.Policy{hns.MakePolicy(hns.TypeVSID, hns.IsolationID{IsolationID: 4100})}
	}
	network.Ipams = []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{subnet}}}
	objects["Network"] = network
	text, err := json.Marshal(objects)
	if err == nil {
		_, err = m.Control("/network", url.Values{"objects": {string(text)}})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// planned runs isthmusctl.exe migrate, and returns its exit status and what it wrote.
func planned(t *testing.T, m *Machine, args ...string) (status int, out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := m.Output(m.Command(ctx, filepath.Join(m.bin, "isthmusctl.exe"), append([]string{"migrate"}, args...)...))
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		status = exit.ExitCode()
	}
	return status, out
}

// TestTakeoverPlan plans the takeover of the networks of flanneld.exe, with a pod of win-bridge.exe or win-overlay.exe.
// isthmus-agent.exe then starts with the flags of the plan, on the same network, and with no others.
func TestTakeoverPlan(t *testing.T) {
	for _, r := range []reference{{"win-bridge", windows.L2Bridge, 2}, {"win-overlay", windows.Overlay, 2}} {
		t.Run(string(r.mode), func(t *testing.T) {
			m := machine(t)
			logs(t, m)
			if err := m.StartEmulator(hns.Server2022, "--management-ip", "192.0.2.13", "--management-mac", "00-15-5D-00-00-01"); err != nil {
				t.Fatal(err)
			}
			flannelNode(t, m, r.mode)
			list, p := r.conf(t, m, map[string]any{"name": "cbr0"}), newTheirs(t, m, r, "theirs")
			_, err := m.CNI().AddNetworkList(t.Context(), list, p.runtime[0])
			reported(t, r, "ADD on the network of flannel", err)
			before := strings.Join(dumped(t, m), "\n")
			differs(t, m)
			status, out := planned(t, m, "plan", "--from", "flannel", "--node-name", "win1")
			if status != 0 || !strings.Contains(out, "the agent can take over the network as it is") || !strings.Contains(out, "endpoint sandbox-theirs_cbr0 (10.244.3.130) must be gone") {
				t.Errorf("status %d\n%s", status, out)
			}
			if after := strings.Join(dumped(t, m), "\n"); after != before {
				t.Errorf("plans have changed HNS:\n%s\nwas\n%s", after, before)
			}
			reported(t, r, "DEL on the network of flannel", m.CNI().DelNetworkList(t.Context(), list, p.runtime[0]))
			follow(t, m)
		})
	}
}

// differs plans with ranges that the network does not have. The agent refuses to start with them, for the same reason.
// The other commands do nothing.
func differs(t *testing.T, m *Machine) {
	t.Helper()
	status, out := planned(t, m, "plan", "--from", "flannel", "--pod-cidr", "10.244.9.0/24", "-o", "json")
	var plan struct{ Reasons, AgentFlags []string }
	if err := json.Unmarshal([]byte(out), &plan); err != nil || status != 1 || len(plan.Reasons) == 0 || !strings.Contains(plan.Reasons[0], "has subnets 10.244.3.0/24, want 10.244.9.0/24") {
		t.Fatalf("status %d, %v\n%s", status, err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	args := append([]string{"--node-name", "win1", "--manifests", Path(string(newManifests(t))), "--log-format", "json", "--pod-cidr", "10.244.9.0/24"}, plan.AgentFlags...)
	log, err := m.Output(m.Command(ctx, filepath.Join(m.bin, "isthmus-agent.exe"), args...))
	if err == nil || !strings.Contains(strings.ReplaceAll(log, `\"`, `"`), plan.Reasons[0]) {
		t.Errorf("the agent: %v, want %s in\n%s", err, plan.Reasons[0], log)
	}
	for command, want := range map[string]string{
		"run --from flannel":  "nothing needs running on a Windows node",
		"rollback":            "to go back, drain the node",
		"plan --from kubenet": "kubenet connects no pods of Windows nodes",
	} {
		if status, out := planned(t, m, strings.Fields(command)...); status != 2 || !strings.Contains(out, want) {
			t.Errorf("%s: status %d, want %q in\n%s", command, status, want, out)
		}
	}
}

// follow does what the plan says: the agent starts with its flags, and connects a pod to the network that was there.
func follow(t *testing.T, m *Machine) {
	t.Helper()
	status, out := planned(t, m, "run", "--dry-run", "--from", "flannel", "-o", "json")
	var plan struct {
		Endpoints  []json.RawMessage
		AgentFlags []string
	}
	if err := json.Unmarshal([]byte(out), &plan); err != nil || status != 0 || len(plan.Endpoints) != 0 {
		t.Fatalf("status %d, %v\n%s", status, err, out)
	}
	if err := m.StartAgent("win1", string(newManifests(t, "web")), plan.AgentFlags...); err != nil {
		t.Fatal(err)
	}
	web := pod(t, m, "web")
	_, err := m.Add(t.Context(), web)
	counted(t, "ADD", err)
	dump := strings.Join(dumped(t, m), "\n")
	if strings.Count("\n"+dump, "\nnetwork ") != 1 || !strings.Contains(dump, "endpoint sandbox-web_eth0_cbr0 ") {
		t.Errorf("after the takeover:\n%s", dump)
	}
	counted(t, "DEL", m.Delete(t.Context(), web))
}
