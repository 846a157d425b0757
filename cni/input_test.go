// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

// printed is the standard output of the plugin.
type printed struct {
	Code    uint   `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details"`
}

// execute runs the plugin without libcni.
func (r *rig) execute(out *printed, command string, rt *libcni.RuntimeConf, stdin string) (status int) {
	r.t.Helper()
	var args []string
	for _, a := range rt.Args {
		args = append(args, a[0]+"="+a[1])
	}
	cmd := exec.Command(filepath.Join(binDir, "isthmus"))
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + rt.ContainerID, "CNI_NETNS=" + rt.NetNS, "CNI_IFNAME=" + rt.IfName,
		"CNI_ARGS=" + strings.Join(args, ";"), "CNI_PATH=" + binDir}
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if stdout.Len() > 0 {
		if err := json.Unmarshal(stdout.Bytes(), out); err != nil {
			r.t.Errorf("%s printed no JSON object: %q (%v)", command, stdout.String(), err)
		}
	}
	if stderr.Len() > 0 {
		r.t.Errorf("%s wrote to standard error: %q", command, stderr.String())
	}
	if err == nil {
		return 0
	}
	return cmd.ProcessState.ExitCode()
}

// badInput is an invocation of the plugin and the expected error.
type badInput struct {
	command string
	change  func(*libcni.RuntimeConf)
	stdin   string
	code    uint
	text    string
}

// badInputs are changes of a valid configuration, by name.
func badInputs(good string) map[string]badInput {
	with := func(members string) string { return strings.TrimSuffix(good, "}") + "," + members + "}" }
	same := func(*libcni.RuntimeConf) {}
	return map[string]badInput{
		"empty":               {"ADD", same, "", 6, ""},
		"text":                {"ADD", same, "hello", 6, ""},
		"cut off":             {"ADD", same, good[:40], 6, ""},
		"array":               {"ADD", same, "[]", 6, ""},
		"null":                {"ADD", same, "null", 7, "missing network name"},
		"no name":             {"ADD", same, `{"cniVersion":"1.1.0"}`, 7, "missing network name"},
		"version not text":    {"ADD", same, `{"cniVersion":11,"name":"pods"}`, 6, ""},
		"version too old":     {"ADD", same, `{"cniVersion":"0.2.0","name":"pods"}`, 1, "incompatible"},
		"version too new":     {"ADD", same, `{"cniVersion":"9.0.0","name":"pods"}`, 1, "incompatible"},
		"no version":          {"ADD", same, `{"name":"pods"}`, 1, "incompatible"},
		"socket not text":     {"ADD", same, `{"cniVersion":"1.1.0","name":"pods","socket":7}`, 7, `"socket": 7 is not valid`},
		"socket not absolute": {"ADD", same, `{"cniVersion":"1.1.0","name":"pods","socket":"a.sock"}`, 7, `"socket": "a.sock" is not valid`},
		"timeout not number":  {"ADD", same, with(`"timeoutSeconds":"5"`), 7, `"timeoutSeconds": "5" is not valid`},
		"timeout zero":        {"DEL", same, with(`"timeoutSeconds":0`), 7, `"timeoutSeconds": 0 is not valid`},
		"timeout huge":        {"ADD", same, with(`"timeoutSeconds":1e9`), 7, "at most 600"},
		"runtimeConfig text":  {"ADD", same, with(`"runtimeConfig":"x"`), 7, `"runtimeConfig": "x" is not valid`},
		"host ports text":     {"ADD", same, with(`"runtimeConfig":{"portMappings":"x"}`), 7, "portMappings: it is not a list"},
		"host port high":      {"ADD", same, with(`"runtimeConfig":{"portMappings":[{"hostPort":70000,"containerPort":80}]}`), 7, "portMappings[0]: hostPort 70000"},
		"host port ICMP":      {"ADD", same, with(`"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":1,"protocol":"icmp"}]}`), 7, "portMappings[0].protocol"},
		"host IP":             {"ADD", same, with(`"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":1,"hostIP":"x"}]}`), 7, "portMappings[0].hostIP"},
		"bandwidth text":      {"ADD", same, with(`"runtimeConfig":{"bandwidth":"x"}`), 7, "bandwidth: it is not an object"},
		"bandwidth negative":  {"ADD", same, with(`"runtimeConfig":{"bandwidth":{"egressRate":-1}}`), 7, "bandwidth: it is not an object"},
		"bandwidth tiny":      {"ADD", same, with(`"runtimeConfig":{"bandwidth":{"egressRate":999}}`), 7, "egressRate is 999"},
		"burst without rate":  {"ADD", same, with(`"runtimeConfig":{"bandwidth":{"ingressBurst":9000}}`), 7, "ingressBurst is 9000 bits without a rate"},
		"dns text":            {"ADD", same, with(`"dns":"x"`), 7, `"dns": "x" is not valid`},
		"dns server":          {"ADD", same, with(`"runtimeConfig":{"dns":{"servers":["x"]}}`), 7, `network configuration: "dns": ["x"] is not valid`},
		"dns server of file":  {"ADD", same, with(`"dns":{"nameservers":["10.0.0.1","x"]}`), 7, `network configuration: "dns": ["10.0.0.1","x"] is not valid`},
		"dns search":          {"ADD", same, with(`"runtimeConfig":{"dns":{"searches":["a b"]}}`), 7, `"dns": ["a b"] is not valid`},
		"dns option":          {"ADD", same, with(`"runtimeConfig":{"dns":{"options":[""]}}`), 7, `"dns": [""] is not valid`},
		"dns not an object":   {"ADD", same, with(`"runtimeConfig":{"dns":["10.0.0.1"]}`), 7, `"dns": ["10.0.0.1"] is not valid`},
		"chained":             {"ADD", same, with(`"prevResult":{"cniVersion":"1.1.0","ips":[]}`), 7, "must be the first plugin"},
		"prevResult text":     {"CHECK", same, with(`"prevResult":"x"`), 7, `"prevResult": "x" is not valid`},
		"interface null":      {"CHECK", same, with(`"prevResult":{"cniVersion":"1.1.0","interfaces":[null]}`), 7, `"prevResult": {"cniVersion"`},
		"address null":        {"CHECK", same, with(`"prevResult":{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.1/32"},null]}`), 7, `"prevResult": {"cniVersion"`},
		"null, repeated key":  {"CHECK", same, with(`"prevResult":{"cniVersion":"1.1.0","interfaces":[null],"Interfaces":[{}]}`), 7, `"prevResult": {"cniVersion"`},
		"no prevResult":       {"CHECK", same, good, 7, "has no prevResult"},
		"prevResult of other": {"CHECK", same, with(`"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth9"}]}`), 7, "no interface eth0"},
		"GC without list":     {"GC", same, good, 7, "has no cni.dev/valid-attachments"},
		"GC list text":        {"GC", same, with(`"cni.dev/valid-attachments":"x"`), 7, `"cni.dev/valid-attachments": "x" is not valid`},
		"GC list of nonsense": {"GC", same, with(`"cni.dev/valid-attachments":[{"containerID":"/","ifname":"eth0"}]`), 4, "CNI_CONTAINERID"},
		"no args":             {"ADD", func(rt *libcni.RuntimeConf) { rt.Args = nil }, good, 4, "CNI_ARGS has no pod name"},
		"args of others":      {"ADD", func(rt *libcni.RuntimeConf) { rt.Args = [][2]string{{"X", "y"}} }, good, 4, "CNI_ARGS is not valid"},
		"no pod name":         {"ADD", func(rt *libcni.RuntimeConf) { rt.Args = [][2]string{{"K8S_POD_NAMESPACE", "shop"}} }, good, 4, "CNI_ARGS has no pod name"},
		"bad pod name":        {"ADD", func(rt *libcni.RuntimeConf) { rt.Args[2][1] = "Web" }, good, 4, "K8S_POD_NAME"},
		"container id":        {"ADD", func(rt *libcni.RuntimeConf) { rt.ContainerID = "a/b" }, good, 4, "containerID"},
		"interface name":      {"ADD", func(rt *libcni.RuntimeConf) { rt.IfName = "a/b" }, good, 4, "interface name"},
		"no netns":            {"ADD", func(rt *libcni.RuntimeConf) { rt.NetNS = "" }, good, 4, "CNI_NETNS"},
		"own netns":           {"ADD", func(rt *libcni.RuntimeConf) { rt.NetNS = "/proc/self/ns/net" }, good, 8, "network namespace of the plugin"},
		"unknown command":     {"EXPLODE", same, good, 4, "CNI_COMMAND"},
		"CHECK too early":     {"CHECK", same, strings.Replace(good, "1.1.0", "0.3.1", 1), 1, "CHECK"},
		"STATUS too early":    {"STATUS", same, strings.Replace(good, "1.1.0", "1.0.0", 1), 1, "STATUS"},
		"GC too early":        {"GC", same, strings.Replace(good, "1.1.0", "1.0.0", 1), 1, "GC"},
	}
}

// changed returns the variables of an attachment after a change.
func changed(change func(*libcni.RuntimeConf)) *libcni.RuntimeConf {
	rt := runtimeConf(0)
	change(rt)
	return rt
}

// TestBadInput runs the plugin with invalid environments and inputs.
func TestBadInput(t *testing.T) {
	r := newRig(t)
	r.publish(1, "10.0.1.0/24")
	good := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"pods","type":"isthmus","socket":%q}`, r.socket)
	for name, c := range badInputs(good) {
		t.Run(name, func(t *testing.T) {
			if name == "own netns" && runtime.GOOS != "linux" {
				t.Skip("network namespaces are Linux's")
			}
			var out printed
			status := r.execute(&out, c.command, changed(c.change), c.stdin)
			if status != 1 || out.Code != c.code || !strings.Contains(out.Msg+": "+out.Details, c.text) {
				t.Errorf("exit status %d, %+v, want code %d with %q", status, out, c.code, c.text)
			}
			if out.Msg == "" {
				t.Error("the error has no msg")
			}
		})
	}
	if strings.Contains(r.fake.Dump(), "endpoint") {
		t.Errorf("something is attached:\n%s", r.fake.Dump())
	}
}

func TestVersionAndAbout(t *testing.T) {
	cmd := exec.Command(filepath.Join(binDir, "isthmus"))
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	out, err := cmd.Output()
	if want := `{"cniVersion":"1.1.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}` + "\n"; err != nil || string(out) != want {
		t.Errorf("VERSION: %q, %v", out, err)
	}
	cmd = exec.Command(filepath.Join(binDir, "isthmus"))
	cmd.Env = []string{}
	var about bytes.Buffer
	cmd.Stderr = &about
	if err := cmd.Run(); err != nil || !strings.HasPrefix(about.String(), "CNI plugin isthmus ") {
		t.Errorf("without CNI_COMMAND: %q, %v", about.String(), err)
	}
}
