// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write deploy/*.yaml again")

const (
	deploy = "../../deploy/"
	chart  = deploy + "helm/isthmus"
)

// binary is the path of Helm, built once from its module.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "isthmus-helm")
	if err == nil {
		binary = filepath.Join(dir, "helm")
		cmd := exec.Command("go", "build", "-o", binary, "helm.sh/helm/v4/cmd/helm")
		cmd.Stderr = os.Stderr
		err = cmd.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build helm:", err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// run calls Helm and returns its output.
func run(args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// Helm must not use the user's settings and repositories.
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME=/nonexistent", "HELM_DATA_HOME=/nonexistent", "HELM_CACHE_HOME=/nonexistent")
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

func render(t *testing.T, flags ...string) string {
	t.Helper()
	out, err := run(append([]string{"template", "isthmus", chart, "--namespace", "isthmus-system"}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// preface precedes the rendered chart in a complete manifest.
const preface = `# SPDX-License-Identifier: Apache-2.0
#
# Rendered from deploy/helm/isthmus by "make manifests". Do not edit.
%sapiVersion: v1
kind: Namespace
metadata:
  name: isthmus-system
  labels:
    # Agents need the host's network, and paths of it.
    pod-security.kubernetes.io/enforce: privileged
`

// manifests are the committed manifests, by the flags that render them.
var manifests = map[string][]string{
	"isthmus.yaml":           {"--include-crds", "--set", windowsNodes},
	"isthmus-uninstall.yaml": {"--set", "uninstall=true,windows.enabled=true"},
	"isthmus-controller.yaml": {"--set", "controller.enabled=true,controller.clusterCIDRs={10.244.0.0/16}",
		"--show-only", "templates/controller.yaml"},
}

// windowsNodes are the values with which agents run on Windows nodes.
const windowsNodes = "windows.enabled=true,apiServer.host=192.0.2.1"

// addressOfAPI are the lines with apiServer.host and apiServer.port, which complete manifests do not have.
var addressOfAPI = regexp.MustCompile(`(?m)^ +- \{name: KUBERNETES_SERVICE_(HOST|PORT), value: .*\n`)

// setAddress ends the preface of a manifest that needs them.
const setAddress = `#
# Agents on Windows nodes need an address of the API server that every node reaches, such as:
#   kubectl -n isthmus-system set env daemonset/isthmus-agent-windows KUBERNETES_SERVICE_HOST=192.0.2.1 KUBERNETES_SERVICE_PORT=6443
`

// digest belongs to no image.
var digest = "sha256:" + strings.Repeat("0", 64)

// scraped are the values with which Prometheus Operator reads metrics of agents, and exported those with which a relay
// exports flows.
const (
	scraped  = "prometheus.podMonitor.enabled=true"
	exported = "relay.enabled=true,relay.replicas=1,relay.export.file="
	// collected are the values with which a relay exports to a collector.
	collected = "relay.enabled=true,relay.replicas=1,relay.export.otlp.endpoint=c.m.svc:4317"
)

// controlled are the values for a cluster whose pod ranges the controller assigns.
const controlled = "controller.enabled=true,controller.clusterCIDRs={10.0.0.0/8,fd00::/48}"

// TestDisruptionBudgets: a drain leaves one of several pods of the controller and of the relay.
func TestDisruptionBudgets(t *testing.T) {
	const budget = "kind: PodDisruptionBudget\nmetadata:\n  name: isthmus-"
	several := render(t, "--set", controlled+",relay.enabled=true")
	for _, component := range []string{"controller", "relay"} {
		if !strings.Contains(several, budget+component+"\n") {
			t.Errorf("no budget for 2 replicas of the %s", component)
		}
	}
	if one := render(t, "--set", controlled+",controller.replicas=1,relay.enabled=true,relay.replicas=1"); strings.Contains(one, budget) {
		t.Error("a budget for a single pod")
	}
}

func TestRendered(t *testing.T) {
	for name, flags := range manifests {
		content, note := render(t, flags...), ""
		if strings.Contains(content, "-windows\n") {
			note = "#\n# Nothing for Windows in this file was verified on a real Windows node (docs/windows.md).\n"
		}
		if addressOfAPI.MatchString(content) {
			content, note = addressOfAPI.ReplaceAllString(content, ""), note+setAddress
		}
		want := fmt.Sprintf(preface, note) + content
		// The rendered manifest is not managed by Helm.
		want = strings.ReplaceAll(want, "app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: kubectl")
		if *update {
			if err := os.WriteFile(deploy+name, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(deploy + name)
		if err != nil || string(got) != want {
			t.Errorf("deploy/%s is not what the chart renders (%v): run make manifests and read the difference", name, err)
		}
	}
}

func TestLint(t *testing.T) {
	for _, flags := range [][]string{nil, {"--set", "uninstall=true"}, {"--set", "prometheus.podMonitor.enabled=true,prometheus.rules.enabled=true,prometheus.dashboard.enabled=true"},
		{"--set", controlled}, {"--set", "relay.enabled=true"}, {"--set", exported + "flows.jsonl"}, {"--set", collected}} {
		out, err := run(append([]string{"lint", "--strict", chart}, flags...)...)
		if err != nil || !strings.Contains(out, "1 chart(s) linted, 0 chart(s) failed") {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// checkValues sets values and expects texts in the result.
func checkValues(t *testing.T, cases map[string]string) {
	t.Helper()
	for flags, want := range cases {
		if out := render(t, "--set", flags); !strings.Contains(out, want) {
			t.Errorf("--set %s: no %q in\n%s", flags, want, out)
		}
	}
}

// hybrid are the values for a cluster with nodes of OVN-Kubernetes.
const hybrid = "fabric.vni=4097,fabric.hybridOverlay={10.128.0.0/14,10.132.0.0/14}"

func TestValues(t *testing.T) {
	checkValues(t, map[string]string{
		windowsNodes + ",image.tag=v9":                      "image: ghcr.io/isthmus-net/isthmus:v9-windows\n",
		"apiServer.host=192.0.2.1":                          `{name: KUBERNETES_SERVICE_HOST, value: "192.0.2.1"}`,
		"agent.mtu=1400":                                    "- --mtu=1400\n",
		"agent.uplink=eth1":                                 "- --uplink=eth1\n",
		"fabric.mode=vxlan":                                 "- --fabric=vxlan\n",
		windowsNodes + ",fabric.mode=none":                  "- --log-denied-flows=false\n            - --fabric=none\n",
		"fabric.vni=1000000":                                "- --vni=1000000\n",
		"fabric.masquerade=false":                           "- --masquerade=false\n",
		"fabric.masqueradeExceptions={10.0.0.0/8,fd00::/8}": "- --masquerade-exception=10.0.0.0/8\n            - --masquerade-exception=fd00::/8\n",
		hybrid:                           "- --masquerade=true\n            - --hybrid-overlay=10.128.0.0/14\n            - --hybrid-overlay=10.132.0.0/14\n",
		hybrid + ",agent.announce=never": "but []\"\n",
		hybrid + ",agent.announce=auto":  "'k8s.ovn.org/hybrid-overlay-distributed-router-gateway-mac']\"\n",
		windowsNodes + "," + hybrid + ",windows.mode=overlay":              "- --vxlan-port=4789\n            - --hybrid-overlay=10.128.0.0/14\n            - --hybrid-overlay=10.132.0.0/14\n",
		"linux.xdpDevices=off":                                             "- --xdp-devices=off\n",
		"agent.reservedHostPorts={22,9000-9100}":                           "- --reserved-host-ports=22\n            - --reserved-host-ports=9000-9100\n",
		windowsNodes + ",agent.announce=never":                             "but []\"\n",
		"mode=full":                                                        "but []\"\n",
		windowsNodes:                                                       "but ['isthmus.dev/fabric', 'isthmus.dev/vtep-mac', 'isthmus.dev/vtep-address']\"\n",
		"agent.announce=always":                                            "but ['isthmus.dev/fabric', 'isthmus.dev/vtep-mac', 'isthmus.dev/vtep-address']\"\n",
		"linux.hostPortsFromNode=none":                                     "- --host-ports-from-node=none\n",
		"linux.neverDeny={192.0.2.1}":                                      "- --never-deny=192.0.2.1\n",
		"agent.httpAddress=0.0.0.0:9999":                                   `httpGet: {host: "127.0.0.1", path: /readyz, port: 9999}`,
		"agent.httpAddress=192.0.2.1:80":                                   `httpGet: {host: "192.0.2.1", path: /readyz, port: 80}`,
		windowsNodes + ",windows.mode=overlay,fabric.vni=5000":             "- --log-denied-flows=false\n            - --vni=5000\n            - --vxlan-port=4789\n",
		windowsNodes + ",windows.mode=overlay,windows.flowEvents.kind=off": "- --hns-mode=overlay\n            - --flow-events=off\n            - --vni=4096\n",
		windowsNodes + ",windows.flowEvents.rate=7,windows.flowEvents.logDenied=true": "- --hns-mode=l2bridge\n            - --flow-events=denied\n            - --flow-event-rate=7\n            - --flow-event-burst=100\n            - --log-denied-flows=true\n",
		windowsNodes + ",windows.clusterCIDRs={10.0.0.0/8}":                           "- --cluster-cidr=10.0.0.0/8\n",
		"linux.bpffs=/run/bpf":                      "hostPath: {path: /run/bpf, type: Directory}",
		scraped:                                     "targetLabel: node}\n",
		scraped + ",agent.logLevel=debug":           "- --http-address=:9470\n",
		"prometheus.annotations=true,mode=full":     "- --http-address=:9470\n",
		"agent.logLevel=debug":                      "- --http-address=127.0.0.1:9470\n",
		scraped + ",agent.httpAddress=192.0.2.1:80": "- --http-address=192.0.2.1:80\n",
		controlled + "," + scraped:                  "- --http-address=:9471\n",
		controlled + ",apiServer.port=1":            "- --http-address=127.0.0.1:9471\n",
		"prometheus.annotations=true":               "prometheus.io/port: \"9470\"\n",
		"image.digest=" + digest:                    "image: ghcr.io/isthmus-net/isthmus:0.1.0@" + digest + "\n",
		windowsNodes + ",image.digest=" + digest + ",image.windowsDigest=" + digest:               "image: ghcr.io/isthmus-net/isthmus:0.1.0-windows@" + digest + "\n",
		windowsNodes + ",windows.extraArgs={--hns-timeout=1m},agent.extraArgs={--log-level=info}": "- \"--log-level=info\"\n            - \"--hns-timeout=1m\"\n",
		"linux.resources.limits.memory=1Gi":                                                       "resources:\n            limits:\n              memory: 1Gi\n          securityContext:",
		"linux.affinity.nodeAffinity.x=y":                                                         "affinity:\n        nodeAffinity:\n          x: \"y\"\n",
		windowsNodes + ",windows.podLabels.team=net":                                              "component: agent-windows\n        team: net\n    spec:",
		"linux.podAnnotations.team=net":                                                           "annotations:\n        team: net\n    spec:",
		controlled + ",controller.extraArgs={--burst=1}":                                          "- \"--burst=1\"\n",
		controlled + ",controller.podLabels.team=net,controller.podAnnotations.a=b":               "component: controller\n        team: net\n      annotations:\n        a: b\n",
		controlled + ",controller.affinity.podAffinity.x=y":                                       "affinity:\n        podAffinity:\n          x: \"y\"\n",
		"linux.nodeSelector.pool=a":                                                               "      nodeSelector:\n        kubernetes.io/os: linux\n        pool: a\n",
		`linux.nodeSelector.kubernetes\.io/os=linux`:                                              "      nodeSelector:\n        kubernetes.io/os: linux\n      tolerations:\n",
		"apiServer.host=fd00::1":                                                                  `{name: KUBERNETES_SERVICE_HOST, value: "fd00::1"}`,
		"image.pullSecrets[0].name=registry":                                                      `imagePullSecrets: [{"name":"registry"}]`,
		"agent.extraArgs={--log-level=info}":                                                      `- "--log-level=info"`,
		controlled:                                                                                "- --cluster-cidr=10.0.0.0/8\n            - --cluster-cidr=fd00::/48\n",
		controlled + ",controller.nodeMaskIPv6=80":                                                "- --node-mask-ipv6=80\n",
		controlled + ",controller.reservedCIDRs={fd01::/64}":                                      "- --reserved-cidr=fd01::/64\n",
		controlled + ",controller.httpAddress=[::]:9000":                                          `httpGet: {host: "127.0.0.1", path: /healthz, port: 9000}`,
		controlled + ",apiServer.host=192.0.2.1":                                                  `{name: KUBERNETES_SERVICE_HOST, value: "192.0.2.1"}`,
		"prometheus.rules.enabled=true,prometheus.rules.labels.release=mon":                       "    release: mon\nspec:\n  # SPDX",
		"agent.config.audit-interval=30s":                                                         "  agent.yaml: |\n    audit-interval: 30s\n",
		windowsNodes + ",agent.config.audit-interval=30s,windows.config.audit-interval=10s":       "  name: isthmus-agent-windows\n  namespace: isthmus-system\n  labels:\n    app.kubernetes.io/name: isthmus\n    app.kubernetes.io/instance: isthmus\n    app.kubernetes.io/version: \"0.1.0\"\n    app.kubernetes.io/managed-by: Helm\ndata:\n  agent.yaml: |\n    audit-interval: 10s\n",
		"agent.config.log-denied-flows=true,linux.config.log-denied-flows=false":                  "  agent.yaml: |\n    log-denied-flows: false\n",
		"linux.config.bpffs=/x":                                                                   "- {name: config, configMap: {name: isthmus-agent-linux}}\n",
		windowsNodes + ",windows.config.hns-timeout=1m":                                           "- --config=%CONTAINER_SANDBOX_MOUNT_POINT%/etc/isthmus-config/agent.yaml\n",
		"linux.config.audit-interval=1m":                                                          "- --config=/etc/isthmus-config/agent.yaml\n",
		"prometheus.dashboard.enabled=true":                                                       "    grafana_dashboard: \"1\"\ndata:\n  isthmus-nodes.json: |\n    {\n",
	})
}

// TestRelayValues sets values of the relay and of what reads its metrics.
func TestRelayValues(t *testing.T) {
	checkValues(t, map[string]string{
		"relay.enabled=true":                                              "- --agents=isthmus-agents.isthmus-system.svc:4244\n",
		"relay.enabled=true,relay.agentPort=5000":                         "- --hubble-listen=:5000\n",
		"relay.enabled=true," + windowsNodes:                              "- --hubble-cert=%CONTAINER_SANDBOX_MOUNT_POINT%/etc/isthmus-hubble/tls.crt\n            - --hubble-key=%CONTAINER_SANDBOX_MOUNT_POINT%/etc/isthmus-hubble/tls.key\n            - --hubble-ca=%CONTAINER_SANDBOX_MOUNT_POINT%/etc/isthmus-hubble/ca.crt\n",
		"relay.enabled=true,relay.agentSecret=other":                      "- {name: hubble, secret: {secretName: \"other\", defaultMode: 0400}}\n",
		"relay.enabled=true,relay.secret=own":                             "- {name: hubble, secret: {secretName: \"own\", defaultMode: 0440}}\n",
		"relay.enabled=true,relay.access=transport":                       "- --listen=127.0.0.1:4245\n",
		"relay.enabled=true,relay.access=token":                           "- --access=token\n",
		"relay.enabled=true,relay.serverSecret=mine":                      "- {name: server, secret: {secretName: \"mine\", defaultMode: 0440}}\n",
		"relay.enabled=true,relay.page=true":                              "- --page-address=[::]:4246\n",
		"relay.enabled=true,relay.apiServerPort=7443":                     "{port: 7443, protocol: TCP}] # the API server\n",
		"relay.enabled=true,apiServer.host=192.0.2.1,apiServer.port=8443": "[{port: 443, protocol: TCP}, {port: 8443, protocol: TCP}, {port: 6443, protocol: TCP}] # the API server\n",
		"relay.enabled=true,apiServer.host=192.0.2.1,apiServer.port=6443": "[{port: 443, protocol: TCP}, {port: 6443, protocol: TCP}] # the API server\n",
		"relay.enabled=true,relay.extraArgs={--log-level=debug}":          "- \"--log-level=debug\"\n",
		exported + "-":                     "- --shutdown-delay=3s # until clients are sent to other replicas\n            - --log-level=info\n            - --log-format=json\n            - --export-file=-\n            - --export-aggregate=15s\n          ports:",
		exported + "f,relay.export.keep=0": "- --export-file=/var/log/isthmus/f\n            - --export-file-max-mb=100\n            - --export-file-keep=0\n            - --export-aggregate=15s\n",
		exported + "g":                     "  replicas: 1\n  strategy: {type: Recreate}",
		exported + "f":                     "- {name: export, mountPath: /var/log/isthmus}\n",
		exported + "f,relay.export.volume.persistentVolumeClaim.claimName=flows": "- name: export\n          persistentVolumeClaim:\n            claimName: flows\n",
		exported + "f,relay.export.volume.emptyDir.sizeLimit=1Gi":                "- name: export\n          emptyDir:\n            sizeLimit: 1Gi\n",
		exported + "-,relay.export.aggregate=0s,relay.export.allow[0].verdict={DROPPED},relay.export.deny[0].source_pod={shop/}": `- --export-aggregate=0s
            - "--export-allow={\"verdict\":[\"DROPPED\"]}"
            - "--export-deny={\"source_pod\":[\"shop/\"]}"
`,
		collected: "            - \"--otlp-endpoint=c.m.svc:4317\"\n            - --otlp-queue=8192\n            - --export-aggregate=15s\n          ports:",
		collected + ",relay.export.otlp.podPort=5000": "    - ports: [{port: 5000, protocol: TCP}] # the collector\n",
		collected + ",relay.export.otlp.queue=9":      "    - ports: [{port: 4317, protocol: TCP}] # the collector\n",
		collected + ",relay.export.otlp.caSecret=a,relay.export.otlp.certSecret=b,relay.export.otlp.headersSecret=c,relay.export.otlp.cluster=x": `- --otlp-ca=/etc/isthmus-otlp/ca/ca.crt
            - --otlp-cert=/etc/isthmus-otlp/cert/tls.crt
            - --otlp-key=/etc/isthmus-otlp/cert/tls.key
            - --otlp-headers-file=/etc/isthmus-otlp/headers/headers
            - "--otlp-cluster=x"
`,
		collected + ",relay.export.otlp.headersSecret=c":                        "- {name: otlp-headers, mountPath: /etc/isthmus-otlp/headers, readOnly: true}\n",
		collected + ",relay.export.otlp.headersSecret=d":                        "- {name: otlp-headers, secret: {secretName: \"d\", defaultMode: 0440}}\n",
		"relay.enabled=true,relay.export.file=-,relay.export.everyReplica=true": "- --export-file=-\n",
		scraped + ",relay.enabled=true,relay.replicas=3":                        "- ports: [{port: 9472, protocol: TCP}]\n",
		"relay.enabled=true,relay.scrape=true":                                  "- ports: [{port: 9472, protocol: TCP}]\n",
		scraped + ",relay.enabled=true":                                         "app.kubernetes.io/component: relay\n  podMetricsEndpoints:\n    - port: metrics\n",
		scraped + ",agent.mtu=1400":                                             "- {key: app.kubernetes.io/component, operator: NotIn, values: [relay]}\n",
		"relay.enabled=true,prometheus.annotations=true":                        "prometheus.io/port: \"9472\"\n",
		"relay.enabled=true,relay.podAnnotations.team=net":                      "annotations:\n        team: net\n    spec:\n      serviceAccountName: isthmus-relay",
	})
}

// TestSwitches sets values to on and off without quotes, which YAML 1.1 reads as true and false.
func TestSwitches(t *testing.T) {
	checkValues(t, map[string]string{
		"linux.xdpDevices=false":                                                                 "- --xdp-devices=off\n",
		"linux.flowEvents.kind=false":                                                            "- --flow-events=off\n            - --cni-bin-dir",
		windowsNodes + ",windows.flowEvents.kind=false":                                          "- --flow-events=off\n            - --fabric",
		windowsNodes + ",windows.sets=false":                                                     "- --hns-sets=off\n",
		windowsNodes + ",windows.sets=true":                                                      "- --hns-sets=on\n",
		windowsNodes + ",windows.ruleCounters=false":                                             "- --hns-mode=l2bridge\n            - --flow-events",
		windowsNodes + ",windows.endpointPool=false":                                             "- --hns-mode=l2bridge\n            - --flow-events",
		"mode=policy,windows.enabled=true,windows.endpointPool=false,windows.ruleCounters=false": "- --mode=policy\n",
	})
}

// TestSchema sets values that the schema of the chart must refuse.
func TestSchema(t *testing.T) {
	for _, flags := range []string{
		"agent.mtu=100", "agent.logLevel=loud", "agent.unknown=1", "windows.mode=nat", "windows.flowEvents.kind=all", "windows.flowEvents.rate=0", "linux.cniBinDir=relative",
		"agent.quarantine=long", "fabric.hybridOverlay={x}", "fabric.mode=bgp", "fabric.vni=4095", "linux.neverDeny={a b}",
		"admissionPolicy=auto", "agent.announce=false", "agent.reservedHostPorts={0}", "agent.reservedHostPorts={http}", "linux.hostPortsFromNode=some", "linux.maxUnavailable=0", "image.pullPolicy=Sometimes", "unknown=1", "agent.extraArgs={x}",
		"controller.enabled=true", "controller.nodeMaskIPv4=31", controlled + ",controller.clusterCIDRs={x}",
		"image.digest=latest", "image.tag=0.1.0@" + digest, "linux.podLabels.app\\.kubernetes\\.io/name=other", "linux.extraArgs={x}", "linux.affinity=x",
		"relay.export.file=/var/log/x", "relay.export.file=../x", "relay.export.keep=-1", "relay.export.maxMegabytes=0", "relay.export.aggregate=often", "relay.export.allow={x}", "relay.export.unknown=1", "relay.export.otlp.endpoint=http://x:1", "relay.export.otlp.endpoint=x", "relay.export.otlp.queue=0", "relay.export.deny[0].destination_port={53}",
	} {
		if out, err := run("template", "isthmus", chart, "--set", flags); err == nil || !strings.Contains(err.Error(), "don't meet the specifications of the schema") {
			t.Errorf("--set %s: %v\n%s", flags, err, out)
		}
	}
}

// TestContradictions sets values that are valid alone and must be refused together.
func TestContradictions(t *testing.T) {
	for flags, want := range map[string]string{
		windowsNodes + ",windows.mode=overlay,fabric.vni=65536":      "take 4096 to 65535",
		windowsNodes + ",windows.mode=overlay,fabric.vxlanPort=8472": "know 4789 only",
		hybrid + ",fabric.vni=4096":                                  "set fabric.vni=4097",
		hybrid + ",fabric.mode=routes":                               "set fabric.mode to auto or vxlan",
		windowsNodes + "," + hybrid:                                  "set windows.mode=overlay",
		hybrid + ",mode=policy":                                      "have no meaning with mode policy",
		windowsNodes + ",image.digest=" + digest:                     "image.digest without image.windowsDigest",
		"windows.enabled=true":                                       "set apiServer.host and apiServer.port to an address of the API server that every node reaches, or windows.enabled=false",
		"relay.enabled=true,relay.page=true,relay.access=transport":  "set relay.access=token, or relay.page=false",
		"relay.enabled=true,relay.agentPort=9470":                    "relay.agentPort 9470: the agents serve metrics on this port",
		"relay.enabled=true,relay.export.file=-":                     "each of 2 replicas would export all flows: set relay.replicas=1",
		"relay.enabled=true,relay.export.file=f,relay.export.everyReplica=true,relay.export.volume.nfs.server=n": "replicas would write the same file",
		"relay.enabled=true,relay.export.deny[0].verdict={DROPPED}":                                              "nothing is exported: set relay.export.file or",
		"relay.enabled=true,relay.export.otlp.endpoint=c:1":                                                      "each of 2 replicas would export all flows",
		"relay.enabled=true,relay.export.otlp.caSecret=c":                                                        "set relay.export.otlp.endpoint",
		"prometheus.annotations=true,agent.httpAddress=[::1]:9470":                                               `agent.httpAddress [::1]:9470`,
		scraped + ",agent.httpAddress=127.0.0.1:9470":                                                            `leave agent.httpAddress empty, or set it to ":9470"`,
		scraped + ",controller.httpAddress=127.0.0.1:9471," + controlled:                                         `leave controller.httpAddress empty, or set it to ":9471"`,
		"prometheus.annotations=true,controller.httpAddress=localhost:9471," + controlled:                        "controller.httpAddress localhost:9471",
		`linux.nodeSelector.kubernetes\.io/os=windows`:                                                           "linux.nodeSelector: kubernetes.io/os: windows: these pods run on linux nodes",
		windowsNodes + `,windows.nodeSelector.kubernetes\.io/os=linux`:                                           "windows.nodeSelector: kubernetes.io/os: linux",
		controlled + `,controller.nodeSelector.kubernetes\.io/os=windows`:                                        "controller.nodeSelector: kubernetes.io/os: windows",
		`relay.enabled=true,relay.nodeSelector.kubernetes\.io/os=windows`:                                        "relay.nodeSelector: kubernetes.io/os: windows",
		"apiServer.host=https://192.0.2.1":                                                                       "apiServer.host https://192.0.2.1: give the name or the address alone, and the port as apiServer.port",
		"apiServer.host=192.0.2.1:6443":                                                                          "apiServer.host 192.0.2.1:6443: give the name",
	} {
		if out, err := run("template", "isthmus", chart, "--set", flags); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: %v\n%s", flags, err, out)
		}
	}
}

// TestLeftOut checks that objects of a disabled feature are not rendered.
func TestLeftOut(t *testing.T) {
	if out := render(t); strings.Contains(out, "hostProcess") || strings.Contains(out, "kind: ClusterRole, name: isthmus-agent-announce") {
		t.Errorf("there is something for Windows in\n%s", out)
	}
	for _, flags := range [][]string{{"--set", "admissionPolicy=false"}, {"--set", "uninstall=true"}} {
		if out := render(t, flags...); strings.Contains(out, "ValidatingAdmissionPolicy") {
			t.Errorf("%v: there are admission policies in\n%s", flags, out)
		}
	}
	if out := render(t); strings.Count(out, "\nkind: ValidatingAdmissionPolicy\n") != 3 || strings.Count(out, "\nkind: ValidatingAdmissionPolicyBinding\n") != 3 {
		t.Errorf("there are not three admission policies with bindings in\n%s", out)
	}
	if out := render(t, "--set", windowsNodes+",agent.announce=never"); strings.Contains(out, "kind: ClusterRole, name: isthmus-agent-announce") {
		t.Errorf("the role to announce is bound in\n%s", out)
	}
	if out := render(t); strings.Contains(out, "isthmus-controller") {
		t.Errorf("there is a controller in\n%s", out)
	}
	if out := render(t, "--set", "agent.config.audit-interval=30s,uninstall=true"); strings.Contains(out, "agent.yaml") {
		t.Errorf("there are settings for a removal in\n%s", out)
	}
	if out := render(t); strings.Contains(out, "isthmus-config") || strings.Contains(out, "agent.yaml") {
		t.Errorf("there are settings in\n%s", out)
	}
	if out := render(t, "--set", "relay.enabled=true"); strings.Contains(out, "--export") || strings.Contains(out, "name: export") {
		t.Errorf("there is an export in\n%s", out)
	}
	if out := render(t, "--set", scraped); strings.Contains(out, "name: isthmus-relay\n") || strings.Count(out, "\nkind: PodMonitor\n") != 1 {
		t.Errorf("a relay is scraped in\n%s", out)
	}
	if out := render(t); strings.Contains(out, "prometheus.io") {
		t.Errorf("there are annotations in\n%s", out)
	}
}

// TestPrivileges compares the privileges of the Linux container with those that the documents
// promise.
func TestPrivileges(t *testing.T) {
	out := render(t)
	for _, want := range []string{"privileged: false", "allowPrivilegeEscalation: false", "readOnlyRootFilesystem: true", "drop: [ALL]", "seccompProfile: {type: RuntimeDefault}"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	// Tokens expire soon, and only pods that need one have it.
	for flags, tokens := range map[string]int{"mode=full": 1, windowsNodes: 2, windowsNodes + "," + controlled: 3, "uninstall=true,windows.enabled=true": 0} {
		out := render(t, "--set", flags)
		if n := strings.Count(out, "- serviceAccountToken: {path: token, expirationSeconds: 3600}"); n != tokens {
			t.Errorf("--set %s: %d tokens, want %d", flags, n, tokens)
		}
		if n, pods := strings.Count(out, "automountServiceAccountToken: false"), strings.Count(out, "serviceAccountName: "); n != pods {
			t.Errorf("--set %s: %d of %d pods have no token mounted by default", flags, n, pods)
		}
	}
	_, after, _ := strings.Cut(out, "              add:\n")
	list, _, _ := strings.Cut(after, "          volumeMounts:")
	var capabilities []string
	for line := range strings.Lines(list) {
		name, reason, explained := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "- "), " # ")
		if !explained || reason == "" {
			t.Errorf("capability without a reason: %q", line)
		}
		capabilities = append(capabilities, name)
	}
	if got := strings.Join(capabilities, " "); got != "NET_ADMIN SYS_ADMIN BPF PERFMON" {
		t.Errorf("capabilities %s", got)
	}
}

// TestNotes reads the notes of an installation.
func TestNotes(t *testing.T) {
	const windows, loopback = "isthmus-agent-windows was not verified on real Windows", "Prometheus cannot reach the metrics, which listen on"
	const without, services = "NOTE: Windows nodes have no agent", "WARNING: windows.serviceCIDRs is empty"
	const ready, addresses = "Nodes become ready as soon as their agent is:", "Pods get addresses that they ask for"
	for _, c := range []struct {
		flags          string
		wanted, absent []string
	}{
		{"mode=full", []string{ready, addresses, "rollout status daemonset/isthmus-agent\n", without, loopback + " 127.0.0.1:9470", "\nprometheus.podMonitor.enabled to true.\n"}, []string{"WARNING"}},
		{windowsNodes, []string{windows, services, loopback}, []string{without}},
		{windowsNodes + ",windows.mode=overlay", []string{windows}, []string{services}},
		// kube-proxy does not wait for the agent, and the chart refuses the ranges.
		{"mode=policy,windows.enabled=true", []string{windows}, []string{services}},
		// The other network makes nodes ready and gives addresses.
		{"mode=policy", []string{"Policy is in force on a node as soon as its agent is ready:", loopback}, []string{"WARNING", without, ready, addresses}},
		{"mode=observe", []string{"NOTE: mode observe only reports what policy would drop"}, []string{"WARNING", ready, "in force"}},
		{"linux.enabled=false," + windowsNodes, []string{"rollout status daemonset/isthmus-agent-windows\n", "isthmusctl status --all-nodes --agent-namespace isthmus-system\n"}, []string{"daemonset/isthmus-agent ", "/isthmusctl"}},
		{scraped, []string{without}, []string{loopback}},
		{"agent.httpAddress=127.0.0.1:80", []string{loopback + " 127.0.0.1:80", ", and leave agent.httpAddress empty.\n"}, nil},
		{"admissionPolicy=false", []string{"WARNING: with admissionPolicy=false"}, nil},
		{"uninstall=true", []string{"is being removed"}, []string{windows, without, loopback}},
	} {
		out, err := run("install", "isthmus", chart, "--namespace", "isthmus-system", "--dry-run=client", "--set", c.flags)
		if err != nil {
			t.Fatal(err)
		}
		_, notes, _ := strings.Cut(out, "\nNOTES:\n")
		for _, text := range c.wanted {
			if !strings.Contains(notes, text) {
				t.Errorf("--set %s: no %q in\n%s", c.flags, text, notes)
			}
		}
		for _, text := range c.absent {
			if strings.Contains(notes, text) {
				t.Errorf("--set %s: %q in\n%s", c.flags, text, notes)
			}
		}
	}
}

// TestPackage has Helm check the package of the chart that a release contains: chart,
// application and images have the version of the release.
func TestPackage(t *testing.T) {
	out := t.TempDir()
	builder := exec.Command("go", "run", ".", "-chart-only", "-version", "1.2.3-rc.1", "-o", out)
	builder.Dir = deploy + "release"
	if text, err := builder.CombinedOutput(); err != nil {
		t.Fatalf("make the package: %v\n%s", err, text)
	}
	file := filepath.Join(out, "isthmus-1.2.3-rc.1.tgz")
	if text, err := run("lint", "--strict", file); err != nil || !strings.Contains(text, "1 chart(s) linted, 0 chart(s) failed") {
		t.Errorf("%v\n%s", err, text)
	}
	about, err := run("show", "chart", file)
	if err != nil || !strings.Contains(about, "\nversion: 1.2.3-rc.1\n") || !strings.Contains(about, "appVersion: 1.2.3-rc.1\n") {
		t.Errorf("%v\n%s", err, about)
	}
	rendered, err := run("template", "isthmus", file, "--namespace", "isthmus-system", "--include-crds", "--set", windowsNodes)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"image: ghcr.io/isthmus-net/isthmus:1.2.3-rc.1\n", "image: ghcr.io/isthmus-net/isthmus:1.2.3-rc.1-windows\n", "kind: CustomResourceDefinition\n"} {
		if !strings.Contains(rendered, want) {
			t.Errorf("the package renders no %q", want)
		}
	}
	if here := render(t, "--include-crds", "--set", windowsNodes); strings.ReplaceAll(rendered, "1.2.3-rc.1", "0.1.0") != here {
		t.Error("the package renders something else than the chart, besides the version")
	}
}
