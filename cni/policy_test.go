// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
)

// recorder is an agent that records requests and returns given answers.
type recorder struct {
	t      *testing.T
	socket string

	mu       sync.Mutex
	requests []cniframe.Frame
	reply    func(cniframe.Kind) any // nil returns {}
}

func record(t *testing.T) *recorder {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the agent's pipe is for administrators only")
	}
	dir, err := os.MkdirTemp("", "isthmus")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &recorder{t: t, socket: filepath.Join(dir, "a.sock")}
	l, err := net.Listen("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.serve(c)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return r
}

func (r *recorder) serve(c net.Conn) {
	defer c.Close()
	f, err := cniframe.Read(c)
	if err != nil {
		r.t.Error(err)
		return
	}
	r.mu.Lock()
	r.requests = append(r.requests, f)
	r.mu.Unlock()
	var answer any = struct{}{}
	if r.reply != nil {
		answer = r.reply(f.Kind)
	}
	kind := cniframe.Done
	if _, refused := answer.(*cniframe.Error); refused {
		kind = cniframe.Refused
	}
	body, err := json.Marshal(answer)
	if err != nil {
		r.t.Error(err)
	}
	if err := (cniframe.Frame{Kind: kind, Body: body}).Write(c); err != nil {
		r.t.Error(err)
	}
}

// taken returns the requests since the last call.
func (r *recorder) taken() []cniframe.Frame {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.requests
	r.requests = nil
	return all
}

// run executes the plugin for shop/web-0 with members added to a configuration of mode policy.
func (r *recorder) run(command, version, members string) (stdout []byte, status int) {
	r.t.Helper()
	cmd := exec.Command(filepath.Join(binDir, "isthmus"))
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c0", "CNI_NETNS=/run/netns/c0", "CNI_IFNAME=eth0", "CNI_PATH=" + binDir,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=u"}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":%q,"name":"theirs","type":"isthmus","mode":"policy","socket":%q%s}`, version, r.socket, members))
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	if err != nil && cmd.ProcessState == nil {
		r.t.Fatal(err)
	}
	return out.Bytes(), cmd.ProcessState.ExitCode()
}

func (r *recorder) wantError(out []byte, status int, code uint, text string) {
	r.t.Helper()
	var e printed
	if err := json.Unmarshal(out, &e); err != nil || status != 1 || e.Code != code || !strings.Contains(e.Msg+": "+e.Details, text) {
		r.t.Errorf("exit status %d, %s (%v), want code %d with %q", status, out, err, code, text)
	}
}

// results are results of other plugins, by version, with keys that no version of the specification
// defines.
var results = map[string]string{
	"0.3.0": `{"cniVersion":"0.3.0","interfaces":[{"name":"azv1","mac":"AA-BB-CC-00-00-01"},{"name":"eth0"}],"ips":[{"version":"4","interface":1,"address":"10.1.0.4/16"}],"extra":[1e3]}`,
	"0.3.1": `{ "cniVersion":"0.3.1", "extra":{"b":1,"a":[null,1.50]},"interfaces":[{"name":"cni0","mac":"02:00:00:00:00:01"},{"name":"veth1","socketPath":"x"},{"name":"eth0","mac":"02:00:00:00:00:02","sandbox":"/run/netns/c0"}],` +
		`"ips":[{"version":"4","interface":2,"address":"10.1.0.4/16","gateway":"10.1.0.1"},{"version":"6","interface":2,"address":"fd00::4/64"}],"dns":{}}`,
	"0.4.0": `{"cniVersion":"0.4.0","interfaces":[],"ips":[{"version":"4","address":"10.1.0.4/32"}],"routes":null}`,
	"1.0.0": `{"cniVersion":"1.0.0","interfaces":[{"name":"eni1"},{"name":"eth0","mac":"2","sandbox":"/run/netns/c0"},{"name":"dummy1","mac":"0","sandbox":"0"}],"ips":[{"interface":1,"address":"10.1.0.4/32"},{"interface":0,"address":"10.9.9.9/32"}]}`,
	"1.1.0": `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/c0","mtu":1400,"pciID":"x"}],"ips":[{"interface":0,"address":"10.1.0.4/32"},{"address":"10.1.0.5/32"},{"address":"10.1.0.4/24"}]}`,
}

func TestPolicyModePassesOn(t *testing.T) {
	r := record(t)
	wants := map[string]cniframe.Foreign{
		"0.3.0": {HostIfNames: []string{"azv1"}, Addresses: []string{"10.1.0.4"}},
		"0.3.1": {HostIfNames: []string{"cni0", "veth1"}, MAC: "02:00:00:00:00:02", Addresses: []string{"10.1.0.4", "fd00::4"}},
		"0.4.0": {Addresses: []string{"10.1.0.4"}},
		"1.0.0": {HostIfNames: []string{"eni1"}, Addresses: []string{"10.1.0.4"}},
		"1.1.0": {Addresses: []string{"10.1.0.4", "10.1.0.5"}},
	}
	for version, result := range results {
		t.Run(version, func(t *testing.T) {
			want := wants[version]
			out, status := r.run("ADD", version, `,"prevResult":`+result)
			if status != 0 || string(out) != result {
				t.Errorf("ADD exits with %d and prints\n%s\nwant\n%s", status, out, result)
			}
			var add cniframe.AddRequest
			wantAdd := cniframe.AddRequest{Attachment: cniframe.Attachment{ContainerID: "c0", IfName: "eth0"}, Netns: "/run/netns/c0",
				PodNamespace: "shop", PodName: "web-0", PodUID: "u", Network: "theirs", Foreign: &want}
			requests := r.taken()
			if len(requests) != 1 || requests[0].Kind != cniframe.Add {
				t.Fatalf("requests %+v", requests)
			}
			if err := json.Unmarshal(requests[0].Body, &add); err != nil || !reflect.DeepEqual(add, wantAdd) {
				t.Errorf("ADD requests %s (%v), want %+v with %+v", requests[0].Body, err, wantAdd, want)
			}
			if version < "0.4.0" {
				return // CHECK exists since 0.4.0
			}
			if out, status := r.run("CHECK", version, `,"prevResult":`+result); status != 0 || len(out) != 0 {
				t.Errorf("CHECK exits with %d and prints %s", status, out)
			}
			var check cniframe.CheckRequest
			requests = r.taken()
			if len(requests) != 1 || requests[0].Kind != cniframe.Check || json.Unmarshal(requests[0].Body, &check) != nil ||
				!reflect.DeepEqual(check, cniframe.CheckRequest{Attachment: wantAdd.Attachment, Netns: wantAdd.Netns, Foreign: &want}) {
				t.Errorf("CHECK requests %+v", requests)
			}
		})
	}
}

// TestPolicyModeOthers checks that the agent learns of further interfaces in the sandbox of the pod, as Amazon's
// egress-cni (v4if0) and several network interfaces per pod make them. Loopback, interfaces of the node and those of
// other sandboxes are none.
func TestPolicyModeOthers(t *testing.T) {
	r := record(t)
	interfaces := `{"name":"lo","sandbox":"/run/netns/c0"},{"name":"eni1"},{"name":"eth0","sandbox":"/run/netns/c0"},{"name":"dummy1","sandbox":"0"},{"name":"veth2","sandbox":""}`
	for further, want := range map[string][]string{
		"": nil,
		`,{"name":"v4if0","sandbox":"/run/netns/c0"},{"name":"net1","sandbox":"/RUN/netns/c0"}`: {"v4if0", "net1"},
		strings.Repeat(`,{"name":"many","sandbox":"/run/netns/c0"}`, 20):                        slices.Repeat([]string{"many"}, 16),
	} {
		result := fmt.Sprintf(`{"cniVersion":"1.0.0","interfaces":[%s%s],"ips":[{"interface":2,"address":"10.1.0.4/32"}]}`, interfaces, further)
		if out, status := r.run("ADD", "1.0.0", `,"prevResult":`+result); status != 0 || string(out) != result {
			t.Errorf("ADD exits with %d and prints %s", status, out)
		}
		var add cniframe.AddRequest
		requests := r.taken()
		if len(requests) != 1 || json.Unmarshal(requests[0].Body, &add) != nil || add.Foreign == nil || !slices.Equal(add.Foreign.Others, want) {
			t.Errorf("%s: requests %+v, want one with the interfaces %q", further, requests, want)
		}
	}
}

// TestPolicyModeOfWindows checks the results of win-bridge, win-overlay and sdnbridge: one interface that has the name
// of the HNS endpoint, and no sandbox.
func TestPolicyModeOfWindows(t *testing.T) {
	r := record(t)
	const result = `{"cniVersion":"1.0.0","interfaces":[{"name":"c0_l2bridge","mac":"00-15-5D-10-00-01"}],"ips":[{"address":"10.1.0.4/24","gateway":"10.1.0.2"}]}`
	if out, status := r.run("ADD", "1.0.0", `,"prevResult":`+result); status != 0 || string(out) != result {
		t.Errorf("ADD exits with %d and prints %s", status, out)
	}
	var add cniframe.AddRequest
	requests := r.taken()
	want := &cniframe.Foreign{MAC: "00:15:5d:10:00:01", Addresses: []string{"10.1.0.4"}}
	if len(requests) != 1 || json.Unmarshal(requests[0].Body, &add) != nil || !reflect.DeepEqual(add.Foreign, want) {
		t.Errorf("requests %+v, want one about %+v", requests, want)
	}
	const two = `{"cniVersion":"1.0.0","interfaces":[{"name":"a"},{"name":"b"}],"ips":[{"address":"10.1.0.4/24"}]}`
	out, status := r.run("ADD", "1.0.0", `,"prevResult":`+two)
	r.wantError(out, status, 7, "has no interface eth0")
}

// TestPolicyModeOfSDNBridge checks results of sdnbridge, which prints the bytes of the MAC address in place of its
// hexadecimal form.
func TestPolicyModeOfSDNBridge(t *testing.T) {
	r := record(t)
	for _, mac := range []net.HardwareAddr{{0, 0x15, 0x5d, 0x10, 0, 3}, {0, 0x15, 0x5d, 0xff, 0x80, 0xfe}, {0, 0x15, 0x5d, 0xc3, 0xa9, 0x22}, {0x7e, 0x15, 0x5d, 0xe2, 0x82, 0xac}} {
		text, err := json.Marshal(string(mac))
		if err != nil {
			t.Fatal(err)
		}
		result := `{"cniVersion":"1.0.0","interfaces":[{"name":"c0_net","mac":` + string(text) + `}],"ips":[{"address":"10.1.0.4/24"}]}`
		if out, status := r.run("ADD", "1.0.0", `,"prevResult":`+result); status != 0 || string(out) != result {
			t.Errorf("%s: ADD exits with %d and prints %s", mac, status, out)
		}
		var add cniframe.AddRequest
		requests := r.taken()
		want := &cniframe.Foreign{Addresses: []string{"10.1.0.4"}}
		if len(requests) != 1 || json.Unmarshal(requests[0].Body, &add) != nil || !reflect.DeepEqual(add.Foreign, want) {
			t.Errorf("%s: requests %+v, want one about %+v", mac, requests, want)
		}
	}
}

// TestPolicyModeConverts checks that a runtime gets the version that it requests, whatever the
// previous plugin printed.
func TestPolicyModeConverts(t *testing.T) {
	r := record(t)
	out, status := r.run("ADD", "1.0.0", `,"prevResult":`+results["0.4.0"])
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil || status != 0 || got["cniVersion"] != "1.0.0" || strings.Contains(string(out), `"version"`) || !strings.Contains(string(out), "10.1.0.4/32") {
		t.Errorf("exit status %d: %s", status, out)
	}
	const without = `{"interfaces":[{"name":"eth0","sandbox":"/run/netns/c0"}],"ips":[{"interface":0,"address":"10.1.0.4/32"}]}`
	if out, status := r.run("ADD", "1.0.0", `,"prevResult":`+without); status != 0 || string(out) != without {
		t.Errorf("exit status %d: %s", status, out)
	}
}

// TestPolicyModeNeedsOnlyItself checks that DEL and GC need no prevResult, and that DEL needs no
// valid mode.
func TestPolicyModeNeedsOnlyItself(t *testing.T) {
	r := record(t)
	for range 2 {
		if out, status := r.run("DEL", "1.1.0", ""); status != 0 || len(out) != 0 {
			t.Errorf("DEL exits with %d and prints %s", status, out)
		}
	}
	if out, status := r.run("DEL", "1.1.0", `,"mode":"chained","ipam":{"type":"x"}`); status != 0 || len(out) != 0 {
		t.Errorf("DEL exits with %d and prints %s", status, out)
	}
	if out, status := r.run("GC", "1.1.0", `,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`); status != 0 || len(out) != 0 {
		t.Errorf("GC exits with %d and prints %s", status, out)
	}
	if out, status := r.run("STATUS", "1.1.0", ""); status != 0 || len(out) != 0 {
		t.Errorf("STATUS exits with %d and prints %s", status, out)
	}
	var kinds []cniframe.Kind
	for _, f := range r.taken() {
		kinds = append(kinds, f.Kind)
		if want := `{"valid":[{"containerId":"c1","ifName":"eth0"}],"network":"theirs"}`; f.Kind == cniframe.GC && string(f.Body) != want {
			t.Errorf("GC requests %s, want %s", f.Body, want)
		}
	}
	if want := []cniframe.Kind{cniframe.Del, cniframe.Del, cniframe.Del, cniframe.GC, cniframe.Status}; !reflect.DeepEqual(kinds, want) {
		t.Errorf("requests %v, want %v", kinds, want)
	}
}

// TestDelIgnoresPrevResult checks that a result that cannot be read does not keep a pod from being deleted.
func TestDelIgnoresPrevResult(t *testing.T) {
	r := record(t)
	for _, mode := range []string{"full", "policy"} {
		for _, result := range []string{`"x"`, `{"cniVersion":"9.9.9"}`, `{"cniVersion":"0.4.0","interfaces":[null]}`} {
			out, status := r.run("DEL", "1.1.0", fmt.Sprintf(`,"mode":%q,"prevResult":%s`, mode, result))
			if requests := r.taken(); status != 0 || len(out) != 0 || len(requests) != 1 || requests[0].Kind != cniframe.Del {
				t.Errorf("mode %s, result %s: DEL exits with %d, prints %s and requests %+v", mode, result, status, out, requests)
			}
		}
	}
}

func TestPolicyModeRefuses(t *testing.T) {
	r := record(t)
	const one = `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/c0"}],"ips":[{"interface":0,"address":"10.1.0.4/32"}]}`
	good := `,"prevResult":` + one
	prev := func(interfaces, ips string) string {
		return fmt.Sprintf(`,"prevResult":{"cniVersion":"1.1.0","interfaces":[%s],"ips":[%s]}`, interfaces, ips)
	}
	const ours = `{"name":"eth0","sandbox":"/run/netns/c0"}`
	many := strings.TrimSuffix(strings.Repeat(`{"address":"10.1.0.%d/32"},`, 33), ",")
	var numbers []any
	for i := range 33 {
		numbers = append(numbers, i)
	}
	for name, c := range map[string]struct {
		members string
		text    string
	}{
		"no prevResult":       {"", "prevResult is missing: put isthmus-cni behind"},
		"null prevResult":     {`,"prevResult":null`, "prevResult is missing"},
		"mode":                {good + `,"mode":"chained"`, `"mode": "chained" is not valid: use "full"`},
		"mode, a number":      {good + `,"mode":1`, `"mode": 1 is not valid`},
		"ipam":                {good + `,"ipam":{"type":"host-local"}`, `ipam: "mode": "policy" makes no interface`},
		"ranges":              {good + `,"ranges":[["10.0.0.0/8"]]`, "ranges: "},
		"mtu":                 {good + `,"mtu":1500`, "mtu: "},
		"dns":                 {good + `,"dns":{"nameservers":["10.0.0.10"]}`, "dns: "},
		"host ports":          {good + `,"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80}]}`, "runtimeConfig.portMappings: "},
		"bandwidth":           {good + `,"runtimeConfig":{"bandwidth":{"ingressRate":1}}`, "remove the capability bandwidth from the entry of isthmus-cni"},
		"fixed address":       {good + `,"runtimeConfig":{"ips":["10.0.0.1"]}`, "runtimeConfig.ips: "},
		"resolver":            {good + `,"runtimeConfig":{"dns":{"servers":["10.0.0.1"]}}`, "runtimeConfig.dns: "},
		"other sandbox":       {prev(`{"name":"eth0","sandbox":"/run/netns/c9"}`, `{"address":"10.1.0.4/32","interface":0}`), "no interface eth0 in /run/netns/c0"},
		"other interface":     {prev(`{"name":"net1","sandbox":"/run/netns/c9"}`, ``), "no interface eth0"},
		"twice":               {prev(ours+","+ours, `{"address":"10.1.0.4/32"}`), "interfaces[0] and [1] could both be"},
		"no address":          {prev(ours, ``), "has no address"},
		"address of another":  {prev(`{"name":"x"},`+ours, `{"address":"10.1.0.4/32","interface":0}`), "has no address"},
		"index":               {prev(ours, `{"address":"10.1.0.4/32","interface":1}`), "ips[0].interface 1"},
		"negative index":      {prev(ours, `{"address":"10.1.0.4/32","interface":-1}`), "ips[0].interface -1"},
		"hardware address":    {prev(`{"name":"eth0","sandbox":"/run/netns/c0","mac":"x"}`, `{"address":"10.1.0.4/32"}`), `interfaces[0].mac "x"`},
		"seven bytes":         {prev(`{"name":"eth0","sandbox":"/run/netns/c0","mac":"00:15:5"}`, `{"address":"10.1.0.4/32"}`), `interfaces[0].mac "00:15:5"`},
		"too many addresses":  {prev(ours, fmt.Sprintf(many, numbers...)), "has 33 addresses: let the network plugin assign at most 16 of each"},
		"null interface":      {prev(`null`, `{"address":"10.1.0.4/32"}`), `"prevResult": {"cniVersion"`},
		"null address":        {prev(ours, `null`), `"prevResult": {"cniVersion"`},
		"unknown version":     {`,"prevResult":{"cniVersion":"9.9.9","ips":[{"address":"10.1.0.4/32"}]}`, "prevResult"},
		"version of a result": {`,"prevResult":{"cniVersion":1,"ips":[{"address":"10.1.0.4/32"}]}`, "prevResult"},
	} {
		t.Run(name, func(t *testing.T) {
			out, status := r.run("ADD", "1.1.0", c.members)
			r.wantError(out, status, 7, c.text)
		})
	}
	if requests := r.taken(); len(requests) != 0 {
		t.Errorf("the agent got %+v", requests)
	}
	// Empty values request nothing.
	if out, status := r.run("ADD", "1.1.0", good+`,"ipam":{},"dns":{},"runtimeConfig":{"portMappings":[],"bandwidth":null,"other":{"a":1}}`); status != 0 || string(out) != one {
		t.Errorf("exit status %d: %s", status, out)
	}
}

// TestPolicyModeHostNames checks that hints about the host's interface are bounded.
func TestPolicyModeHostNames(t *testing.T) {
	r := record(t)
	var interfaces []string
	for i := range 40 {
		interfaces = append(interfaces, fmt.Sprintf(`{"name":"veth%d"}`, i))
	}
	interfaces = append(interfaces, `{"name":"longer-than-ifnamsiz"}`, `{"name":""}`, `{"name":"eth0","sandbox":"/run/netns/c0"}`)
	_, status := r.run("ADD", "1.1.0", fmt.Sprintf(`,"prevResult":{"cniVersion":"1.1.0","interfaces":[%s],"ips":[{"address":"fd00::1/64"}]}`, strings.Join(interfaces, ",")))
	var add cniframe.AddRequest
	requests := r.taken()
	if status != 0 || len(requests) != 1 || json.Unmarshal(requests[0].Body, &add) != nil || add.Foreign == nil || len(add.Foreign.HostIfNames) != 16 {
		t.Errorf("exit status %d, requests %+v", status, requests)
	}
}

// TestPolicyModeAgents checks an agent that refuses, an agent of an earlier version, and no agent.
func TestPolicyModeAgents(t *testing.T) {
	r := record(t)
	good := `,"prevResult":` + results["1.1.0"]
	r.reply = func(cniframe.Kind) any { return &cniframe.Error{Code: 7, Msg: "isthmus-agent runs in mode full"} }
	out, status := r.run("ADD", "1.1.0", good)
	r.wantError(out, status, 7, "runs in mode full")
	r.taken()
	r.reply = func(kind cniframe.Kind) any {
		if kind == cniframe.Add {
			return cniframe.AddResponse{HostIfName: "h", Addresses: []string{"10.0.0.1/32"}, Gateways: []string{"169.254.1.1"}}
		}
		return struct{}{}
	}
	out, status = r.run("ADD", "1.1.0", good)
	r.wantError(out, status, 7, "isthmus-agent is too old")
	if requests := r.taken(); len(requests) != 2 || requests[1].Kind != cniframe.Del {
		t.Errorf("requests %+v, want ADD and DEL", requests)
	}
	r.socket += ".none"
	out, status = r.run("ADD", "1.1.0", good)
	r.wantError(out, status, 11, "isthmus-agent is not reachable")
}

// TestDelWithoutAgent checks that pods of the other plugin end although no process listens on the socket. The answer of
// an agent counts, and an agent that hangs must not lose the DEL.
func TestDelWithoutAgent(t *testing.T) {
	r := record(t)
	dir, agent := filepath.Dir(r.socket), r.socket
	stale := filepath.Join(dir, "stale.sock")
	dead, err := net.Listen("unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false) // as after a kill
	dead.Close()
	for _, path := range []string{stale, filepath.Join(dir, "none.sock"), filepath.Join(dir, "none", "a.sock")} {
		r.socket = path
		if out, status := r.run("DEL", "1.1.0", ""); status != 0 || len(out) != 0 {
			t.Errorf("%s: DEL exits with %d and prints %s", path, status, out)
		}
		out, status := r.run("DEL", "1.1.0", `,"mode":"full"`)
		r.wantError(out, status, 11, "isthmus-agent is not reachable")
	}
	hung, err := net.Listen("unix", filepath.Join(dir, "hung.sock")) // it accepts nothing
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	for path, text := range map[string]string{
		filepath.Join(agent, "a.sock"):  "isthmus-agent is not reachable",
		filepath.Join(dir, "hung.sock"): "did not answer within 100ms",
	} {
		r.socket = path
		out, status := r.run("DEL", "1.1.0", `,"timeoutSeconds":0.1`)
		r.wantError(out, status, 11, text)
	}
	r.socket, r.reply = agent, func(cniframe.Kind) any { return &cniframe.Error{Code: 11, Msg: "the data path is not open yet"} }
	out, status := r.run("DEL", "1.1.0", "")
	r.wantError(out, status, 11, "the data path is not open yet")
}
