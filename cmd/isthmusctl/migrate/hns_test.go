// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// flannelHNS is the HNS of a node with flanneld and a pod.
func flannelHNS(t *testing.T, kind hns.NetworkType) *hnstest.Fake {
	t.Helper()
	fake := hnstest.NewFake(hns.Server2022)
	subnet := hns.Subnet{IPAddressPrefix: "10.0.1.0/24", Routes: []hns.Route{{NextHop: "10.0.1.1", DestinationPrefix: "0.0.0.0/0"}}}
	endpoints := map[string]string{"4f1c_cbr0": "10.0.1.9", "cbr0_ep": "10.0.1.2"}
	if kind == hns.Overlay {
		subnet.Policies = []hns.Policy{hns.MakePolicy(hns.TypeVSID, hns.IsolationID{IsolationID: 4096})}
		delete(endpoints, "cbr0_ep")
	}
	n, err := fake.CreateNetwork(t.Context(), hns.Network{Name: "cbr0", Type: kind, SchemaVersion: hns.Schema2, Ipams: []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{subnet}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fake.Networks(t.Context()); err != nil { // HNS completes an overlay network later
		t.Fatal(err)
	}
	for name, ip := range endpoints {
		_, err := fake.CreateEndpoint(t.Context(), hns.Endpoint{Name: name, HostComputeNetwork: n.ID, SchemaVersion: hns.Schema2, IPConfigurations: []hns.IPConfig{{IPAddress: ip, PrefixLength: 24}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	return fake
}

// planned returns what plan writes about a fake, with its error. HNS must stay as it is.
func planned(t *testing.T, fake *hnstest.Fake, o options) (string, error) {
	t.Helper()
	var out bytes.Buffer
	before := fake.Dump()
	o.node = "win1"
	err := env{cli.Env{Stdout: &out, Stderr: &out}}.planHNS(t.Context(), fake, &o)
	if after := fake.Dump(); after != before {
		t.Errorf("the plan changed HNS:\n%s\nwas\n%s", after, before)
	}
	return out.String(), err
}

// The plan of a node whose network an agent can take over has the flags, the endpoints, and the steps in their order.
func TestPlanHNS(t *testing.T) {
	for kind, want := range map[hns.NetworkType]string{
		hns.L2Bridge: `node win1: HNS 13.3, network cbr0 (flannel), type L2Bridge, ranges 10.0.1.0/24; endpoints of pods: 1; steps: 6
the agent can take over the network as it is, with --mode=full --hns-network=cbr0 --hns-mode=l2bridge
endpoint 4f1c_cbr0 (10.0.1.9), in no namespace, must be gone: it would have no policy
   1  compare the ranges of the Node with 10.0.1.0/24: kubectl get node win1 -o jsonpath='{.spec.podCIDRs}'
   2  drain the node: kubectl drain win1 --ignore-daemonsets --delete-emptydir-data
   3  plan again; for each endpoint that is still named, keep the DaemonSet of its pod off the node, and delete the pod; remove an endpoint that has no pod (Remove-HnsEndpoint)
   4  stop flanneld (Stop-Service flanneld, or keep its DaemonSet off the node), and move the CNI configuration of flannel out of the directory of the runtime: pods that start meanwhile wait for the agent
   5  start the agent with --mode=full --hns-network=cbr0 --hns-mode=l2bridge (chart: mode=full,windows.enabled=true,windows.network=cbr0,windows.mode=l2bridge)
   6  when isthmusctl status on the node has no problem: kubectl uncordon win1
`,
		hns.Overlay: `the agent can take over the network as it is, with --mode=full --hns-network=cbr0 --hns-mode=overlay --vni=4096
`,
	} {
		out, err := planned(t, flannelHNS(t, kind), options{from: "flannel", output: "text"})
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s", kind, err, out)
		}
	}
}

// A network that differs is an answer, too: exit status 1, with each difference.
func TestPlanHNSDiffers(t *testing.T) {
	o := options{from: "flannel", output: "text", vni: 4097, podCIDRs: []string{"10.0.1.0/24"}}
	out, err := planned(t, flannelHNS(t, hns.Overlay), o)
	for _, want := range []string{"the agent cannot take over the network as it is:\n  - hns network \"cbr0\" has vni 4096, want 4097: delete it", "Where-Object Name -EQ 'cbr0' | Remove-HnsNetwork", "--vni=4097"} {
		if !errors.Is(err, cli.ErrNo) || !strings.Contains(out, want) {
			t.Errorf("%v, want %q in\n%s", err, want, out)
		}
	}
	o.output = "json"
	out, err = planned(t, flannelHNS(t, hns.Overlay), o)
	var a hnsPlan
	if e := json.Unmarshal([]byte(out), &a); e != nil || !errors.Is(err, cli.ErrNo) || !strings.Contains(out, `"kind": "MigrationPlan"`) {
		t.Fatalf("%v, %v\n%s", err, e, out)
	}
	if len(a.Differences) != 1 || a.Differences[0].Field != "vni" || a.Differences[0].Have != "4096" || a.Differences[0].Want != "4097" ||
		a.Network.VNI != 4096 || len(a.Endpoints) != 1 || len(a.Reasons) != 1 || len(a.Steps) == 0 {
		t.Errorf("%+v", a)
	}
}

// A network without an answer, and one whose name must be given, are errors: exit status 2.
func TestPlanHNSNoAnswer(t *testing.T) {
	empty := hnstest.NewFake(hns.Server2022)
	for want, c := range map[string]struct {
		fake *hnstest.Fake
		o    options
	}{
		"nothing to take over":        {empty, options{from: "flannel"}},
		`no network "vxlan0"`:         {flannelHNS(t, hns.L2Bridge), options{from: "flannel", hnsNetwork: "vxlan0"}},
		"--from bridge could mean":    {flannelHNS(t, hns.Overlay), options{from: "bridge"}},
		`--pod-cidr "x": write it as`: {empty, options{from: "flannel", podCIDRs: []string{"x"}}},
	} {
		c.o.output = "text"
		if out, err := planned(t, c.fake, c.o); err == nil || errors.Is(err, cli.ErrNo) || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%v, want %q\n%s", err, want, out)
		}
	}
}

// A control character in a name of HNS does not reach the terminal.
func TestPlanHNSIsPlain(t *testing.T) {
	fake := flannelHNS(t, hns.L2Bridge)
	networks, err := fake.Networks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fake.CreateEndpoint(t.Context(), hns.Endpoint{Name: "a\x1b[2Jb", HostComputeNetwork: networks[0].ID, SchemaVersion: hns.Schema2}); err != nil {
		t.Fatal(err)
	}
	if out, err := planned(t, fake, options{from: "flannel", output: "text"}); err != nil || strings.Contains(out, "\x1b") || !strings.Contains(out, "[2Jb") {
		t.Errorf("%v\n%q", err, out)
	}
}

// Flags of the other system, and a network that Windows does not have, are refused before anything is read.
func TestCheckBySystem(t *testing.T) {
	for _, c := range []struct{ goos, args, want string }{
		{"windows", "--from flannel", ""},
		{"windows", "--from bridge --hns-network cbr0 --hns-mode l2bridge --node-name n --pod-cidr 10.0.1.0/24", ""},
		{"windows", "--from kubenet", "kubenet connects no pods of Windows nodes"},
		{"windows", "--from flannel --state-dir /x", "--state-dir has no meaning on windows"},
		{"windows", "--from flannel --cluster-cidr 10.0.0.0/8", "--cluster-cidr has no meaning on windows"},
		{"windows", "--from flannel --hns-mode bridge", `--hns-mode "bridge": give l2bridge or overlay`},
		{"linux", "--from flannel --vni 4096", "--vni has no meaning on linux"},
	} {
		o := &options{}
		cmd := &cobra.Command{}
		o.register(cmd)
		err := cmd.ParseFlags(strings.Fields(c.args))
		if err == nil {
			err = o.check(cmd, c.goos)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.goos, c.args, err, c.want)
		}
	}
}

// The other commands say that they do nothing on Windows, and what to do instead.
func TestNothingToRun(t *testing.T) {
	for want, err := range map[string]error{"follow the steps of isthmusctl migrate plan": errNothingToRun(), "05-isthmus.conflist": errNothingToReverse()} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
