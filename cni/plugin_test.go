// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/agent/server"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// binDir is the directory of the real plugin, under the name "isthmus".
var binDir string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(buildAndRun(m))
}

// builtPlugin names the file of a plugin that was built before, where no go command can run.
const builtPlugin = "ISTHMUS_BUILT_PLUGIN"

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "isthmus-cni")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binDir = dir
	name := "isthmus"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if built := os.Getenv(builtPlugin); built != "" {
		if err := os.Link(built, filepath.Join(dir, name)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, name), "../cmd/isthmus-cni")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build plugin: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// rig is an agent with a data path in memory, and a socket.
type rig struct {
	t      testing.TB
	socket string
	fake   *dataplanetest.Fake
	agent  *agent.Agent
	libcni *libcni.CNIConfig
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigOn(t, model.Features{OS: model.Linux, Platform: "test", IPv6: true})
}

func newRigOn(t testing.TB, features model.Features) *rig {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the agent's pipe is for administrators only")
	}
	dir, err := os.MkdirTemp("", "isthmus")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &rig{t: t, socket: filepath.Join(dir, "a.sock"), fake: dataplanetest.NewFake(features),
		libcni: libcni.NewCNIConfigWithCacheDir([]string{binDir}, filepath.Join(dir, "cache"), nil)}
	c := agent.Defaults()
	c.NodeName, c.RecordDir, c.AddWait = "node1", filepath.Join(dir, "endpoints"), time.Second
	c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { return r.fake, nil }
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	r.agent, err = agent.New(c, log)
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := socket.Open(r.socket)
	if err != nil {
		t.Fatal(err)
	}
	serving, stopServing := context.WithCancel(context.Background())
	running, stopRunning := context.WithCancel(context.Background())
	served, ran := make(chan error, 1), make(chan error, 1)
	go func() { served <- server.New(r.agent, log).Serve(serving, sockets) }()
	go func() { ran <- r.agent.Run(running) }()
	t.Cleanup(func() {
		stopServing()
		if err := <-served; err != nil {
			t.Error(err)
		}
		stopRunning()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
	return r
}

// publish publishes pods shop/web-0, web-1, ...
func (r *rig) publish(pods int, cidrs ...string) {
	node := &model.Node{Name: "node1", OS: model.Linux}
	for _, c := range cidrs {
		node.PodCIDRs = append(node.PodCIDRs, netip.MustParsePrefix(c))
	}
	var all []*model.Pod
	for n := range pods {
		all = append(all, &model.Pod{PodID: model.PodID{Namespace: "shop", Name: fmt.Sprintf("web-%d", n)}, Node: "node1"})
	}
	r.agent.Publish(model.MakeSnapshot(nil, []*model.Node{node}, all, nil))
}

// list returns a network configuration list with members added to the plugin's.
func (r *rig) list(version, members string) *libcni.NetworkConfigList {
	r.t.Helper()
	l, err := libcni.ConfListFromBytes(fmt.Appendf(nil,
		`{"cniVersion": %q, "name": "pods", "plugins": [{"type": "isthmus", "socket": %q, "unknownKey": {"a": [1]}%s}]}`, version, r.socket, members))
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

func runtimeConf(n int) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: fmt.Sprintf("c%d", n), NetNS: fmt.Sprintf("/run/netns/c%d", n), IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", fmt.Sprintf("web-%d", n)},
		{"K8S_POD_INFRA_CONTAINER_ID", "x"}, {"K8S_POD_UID", "u"}, {"SOMETHING_NEW", "y"}}}
}

// wantError checks code and text of an error that the plugin printed.
func wantError(t *testing.T, err error, code uint, text string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Error(), text) {
		t.Errorf("got %#v (%v), want code %d with %q", err, err, code, text)
	}
}

// TestEveryVersion makes the calls of a runtime through libcni, in every version.
func TestEveryVersion(t *testing.T) {
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			r := newRig(t)
			r.publish(2, "10.0.1.0/24", "fd00:1::/64")
			ctx, list := context.Background(), r.list(version, `, "dns": {"nameservers": ["10.96.0.10"], "search": ["cluster.local"]}`)
			result, err := r.libcni.AddNetworkList(ctx, list, runtimeConf(0))
			if err != nil {
				t.Fatal(err)
			}
			var printed bytes.Buffer
			if err := result.PrintTo(&printed); err != nil {
				t.Fatal(err)
			}
			golden(t, "result-"+version+".json", printed.Bytes())
			if err := r.libcni.CheckNetworkList(ctx, list, runtimeConf(0)); (err == nil) != (version != "0.3.1") {
				t.Errorf("CHECK: %v", err) // CHECK exists since 0.4.0
			}
			if version == "1.1.0" {
				if err := r.libcni.GetStatusNetworkList(ctx, list); err != nil {
					t.Errorf("STATUS: %v", err)
				}
				valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c0", IfName: "eth0"}}}
				if err := r.libcni.GCNetworkList(ctx, list, valid); err != nil {
					t.Errorf("GC: %v", err)
				}
			}
			if !slices.Contains(r.fake.Log(), "add c0:eth0") || slices.Contains(r.fake.Log(), "delete c0:eth0") {
				t.Errorf("the data path did %q", r.fake.Log())
			}
			for range 2 {
				if err := r.libcni.DelNetworkList(ctx, list, runtimeConf(0)); err != nil {
					t.Errorf("DEL: %v", err)
				}
			}
			if !slices.Contains(r.fake.Log(), "delete c0:eth0") {
				t.Errorf("the data path did %q", r.fake.Log())
			}
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func TestGCRemovesUnlistedAttachments(t *testing.T) {
	r := newRig(t)
	r.publish(3, "10.0.1.0/24")
	ctx, list := context.Background(), r.list("1.1.0", "")
	for n := range 3 {
		if _, err := r.libcni.AddNetworkList(ctx, list, runtimeConf(n)); err != nil {
			t.Fatal(err)
		}
	}
	// libcni calls DEL for the networks in its cache; another cache has none.
	other := libcni.NewCNIConfigWithCacheDir([]string{binDir}, t.TempDir(), nil)
	if err := other.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}}); err != nil {
		t.Fatal(err)
	}
	dump := r.fake.Dump()
	if !strings.Contains(dump, "endpoint c1:eth0") || strings.Contains(dump, "endpoint c0:eth0") || strings.Contains(dump, "endpoint c2:eth0") {
		t.Errorf("after GC:\n%s", dump)
	}
	err := other.GCNetworkList(ctx, list, nil) // without a previous list
	if err == nil || !strings.Contains(err.Error(), "has no cni.dev/valid-attachments") {
		t.Errorf("GC without a list: %v", err)
	}
	if err := other.GCNetworkList(ctx, list, &libcni.GCArgs{}); err != nil {
		t.Errorf("GC with an empty list: %v", err)
	}
	if dump := r.fake.Dump(); strings.Contains(dump, "endpoint c1:eth0") {
		t.Errorf("after GC with an empty list:\n%s", dump)
	}
}

// TestRefused checks which configurations ADD refuses, that nothing is left, and that DEL with the
// same configuration succeeds.
func TestRefused(t *testing.T) {
	r := newRig(t)
	r.publish(2, "10.0.1.0/24")
	ctx := context.Background()
	for _, c := range []struct {
		name, members string
		capabilities  map[string]any
		code          uint
		text          string
	}{
		{"host ports", `, "capabilities": {"portMappings": true}`, map[string]any{"portMappings": []map[string]any{{"hostPort": 80, "containerPort": 80}}}, 101, "host ports are not supported on linux"},
		{"bandwidth", `, "capabilities": {"bandwidth": true}`, map[string]any{"bandwidth": map[string]any{"ingressRate": 1000}}, 101, "bandwidth of pod shop/web-0 cannot be limited on linux"},
		{"fixed address", `, "capabilities": {"ips": true}`, map[string]any{"ips": []string{"10.0.1.9"}}, 7, "runtimeConfig.ips"},
		{"fixed mac", `, "capabilities": {"mac": true}`, map[string]any{"mac": "02:00:00:00:00:01"}, 7, "runtimeConfig.mac"},
		{"ipam", `, "ipam": {"type": "host-local"}`, nil, 7, `ipam.type "host-local"`},
		{"mtu", `, "mtu": 9000`, nil, 7, "mtu 9000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, rt := r.list("1.1.0", c.members), runtimeConf(0)
			rt.CapabilityArgs = c.capabilities
			_, err := r.libcni.AddNetworkList(ctx, list, rt)
			wantError(t, err, c.code, c.text)
			if strings.Contains(r.fake.Dump(), "endpoint") {
				t.Errorf("something is attached:\n%s", r.fake.Dump())
			}
			if err := r.libcni.DelNetworkList(ctx, list, rt); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
	for name, capabilities := range map[string]map[string]any{
		"no host ports": {"portMappings": []any{}}, "no limit": {"bandwidth": map[string]any{"ingressRate": 0, "egressRate": 0}}, "nothing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			list, rt := r.list("1.1.0", `, "capabilities": {"portMappings": true, "bandwidth": true}`), runtimeConf(0)
			rt.CapabilityArgs = capabilities
			if _, err := r.libcni.AddNetworkList(ctx, list, rt); err != nil {
				t.Errorf("ADD: %v", err)
			}
			if err := r.libcni.DelNetworkList(ctx, list, rt); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
}

func TestErrorsOfTheAgentArrive(t *testing.T) {
	r := newRig(t)
	ctx, list := context.Background(), r.list("1.1.0", "")
	_, err := r.libcni.AddNetworkList(ctx, list, runtimeConf(0))
	wantError(t, err, 11, "the state of the cluster is not known yet")
	wantError(t, r.libcni.GetStatusNetworkList(ctx, list), 50, "the state of the cluster is not known yet")
	r.publish(1, "10.0.1.0/24")
	_, err = r.libcni.AddNetworkList(ctx, list, runtimeConf(8))
	wantError(t, err, 11, "pod shop/web-8 is not known to the agent")
	r.fake.RemoveNetNS("/run/netns/c0")
	_, err = r.libcni.AddNetworkList(ctx, list, runtimeConf(0))
	wantError(t, err, 4, "CNI_NETNS")
}

func TestAgentIsAway(t *testing.T) {
	r := newRig(t)
	r.socket += ".none"
	ctx, list := context.Background(), r.list("1.1.0", "")
	_, err := r.libcni.AddNetworkList(ctx, list, runtimeConf(0))
	wantError(t, err, 11, "isthmus-agent is not reachable at "+r.socket)
	wantError(t, r.libcni.GetStatusNetworkList(ctx, list), 50, "start the agent")
	// DEL must be retried, or the attachment leaks.
	err = r.libcni.DelNetworkList(ctx, list, runtimeConf(0))
	if err == nil || !strings.Contains(err.Error(), "isthmus-agent is not reachable") {
		t.Errorf("DEL: %v", err)
	}
	var out printed
	if status := r.execute(&out, "DEL", runtimeConf(0), fmt.Sprintf(`{"cniVersion":"1.1.0","name":"pods","type":"isthmus","socket":%q}`, r.socket)); status == 0 || out.Code != 11 {
		t.Errorf("DEL: exit status %d, %+v", status, out)
	}
	// A process listens but does not answer.
	silent, err := socket.Listen(r.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	list = r.list("1.1.0", `, "timeoutSeconds": 0.3`)
	_, err = r.libcni.AddNetworkList(ctx, list, runtimeConf(0))
	wantError(t, err, 11, "did not answer within 300ms")
}
