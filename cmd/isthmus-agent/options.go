// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/isthmus-net/isthmus/cmd/daemon"
	"github.com/isthmus-net/isthmus/cmd/daemon/pages"
	"github.com/isthmus-net/isthmus/cni/install"
	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/agent/pool"
	"github.com/isthmus-net/isthmus/common/agent/rulemeter"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// options are the flags.
type options struct {
	// settings are the flags on the command line, which a Bundle shows.
	settings    []string
	nodeName    string
	manifests   string
	kubeconfig  string
	report      []string
	mode        string
	stateDir    string
	lockTimeout time.Duration
	socket      string
	httpAddress string
	podCIDRs    []string
	quarantine  time.Duration
	audit       time.Duration
	log         daemon.Log

	cniPlugin, cniBinDir, cniConfDir string

	otherEngine string // Linux

	limits compile.Limits
	// ruleMetrics is the maximum number of rules with metrics.
	ruleMetrics int

	reservedPorts []string

	bpffs      string        // Linux
	uplink     string        // Linux
	fabric     fabric.Config // Linux; of Windows the mode, the VNI and the port
	fabricMode string
	hybrid     []string
	forwarding string         // Linux
	fromNode   string         // Linux
	exceptions []string       // Linux
	mapEntries map[string]int // Linux
	xdp        string         // Linux
	neverDeny  []string       // Linux
	flows      flowOptions    // Linux
	hubble     hubbleOptions

	hnsNetwork   string   // Windows
	hnsMode      string   // Windows
	hnsSets      string   // Windows
	clusterCIDRs []string // Windows
	serviceCIDRs []string // Windows
	keepRoutes   []string // Windows

	hnsTimeout     time.Duration // Windows
	hnsParallel    int           // Windows
	ruleCounters   time.Duration // Windows
	endpointPool   string        // Windows
	windowsService bool          // Windows

	// The ranges and addresses of list flags, parsed by check.
	prefixes, cluster, services, hostRoutes, overlay []netip.Prefix
	exempt                                           []netip.Addr
	reserved                                         []agent.PortRange
	pool                                             pool.Size
}

// The values of --mode.
const (
	modeFull   = "full"
	modePolicy = "policy"
	// modeObserve is modePolicy, but packets of pods pass unless their namespace asks for enforcement.
	modeObserve = "observe"
)

// besides reports whether another CNI plugin makes the interfaces of pods.
func (o *options) besides() bool { return o.mode == modePolicy || o.mode == modeObserve }

// observation returns which pods are observed. HNS cannot report what an ACL would deny, so Windows enforces always, and reports
// namespaces that ask for observation.
func (o *options) observation(goos string) model.Observation {
	switch {
	case goos == "windows" && o.besides():
		return model.ObserveRefused
	case o.mode == modePolicy:
		return model.ObserveSome
	case o.mode == modeObserve:
		return model.ObserveAll
	}
	return model.ObserveNone
}

// The values of --other-engine.
const (
	engineRefuse = "refuse"
	engineIgnore = "ignore"
)

// fullOnly are the flags that have no meaning with --mode=policy.
var fullOnly = []string{"pod-cidr", "quarantine", "fabric", "forwarding", "host-ports-from-node", "reserved-host-ports", "vni",
	"vxlan-port", "hybrid-overlay", "masquerade", "masquerade-exception", "mtu", "uplink", "hns-network",
	"hns-mode", "hns-sets", "hns-parallel", "rule-counters", "endpoint-pool",
	"cluster-cidr", "service-cidr", "keep-route"}

// reportNone is the value of --report that excludes others; reports are the other values.
const reportNone = "none"

// reservedPorts are those of etcd, the API server, the kubelet, kube-proxy, the controller manager and the
// scheduler. While one of them restarts, its port would otherwise look free.
var reservedPorts = []string{"2379-2381", "6443", "10248-10250", "10255-10259"}

// metadataServices are the addresses of cloud metadata services: those of most clouds, of Azure, and of AWS
// over IPv6.
var metadataServices = []string{"169.254.169.254/32", "168.63.129.16/32", "fd00:ec2::254/128"}

var reports = []string{"conditions", "events", "node", reportNone}

// linuxOnly and windowsOnly are the flags that have a meaning on that OS only.
var (
	linuxOnly = []string{"bpffs", "uplink", "mtu", "map-entries", "xdp-devices", "never-deny",
		"forwarding", "host-ports-from-node", "masquerade-exception", "other-engine"}
	windowsOnly = []string{"hns-network", "hns-mode", "hns-sets", "hns-timeout", "hns-parallel", "rule-counters", "endpoint-pool", "cluster-cidr",
		"service-cidr", "keep-route", "windows-service"}
)

// maxParallel is windows.MaxParallel.
const maxParallel = 8

func (o *options) register(f *pflag.FlagSet) {
	// The kubelet names its Node object by the same rule (as of 2026-11). Without a host name --node-name is
	// required.
	host, _ := os.Hostname()
	host = strings.ToLower(strings.TrimSpace(host))
	defaults := agent.Defaults()
	f.StringVar(&o.nodeName, "node-name", host, "name of this node's Node object")
	pages.SetDefault(f, "node-name", "the host name")
	f.StringVar(&o.manifests, "manifests", "", "directory of manifests to watch instead of an API server")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file for the API server; without it and --manifests the service account of the pod is used")
	f.StringSliceVar(&o.report, "report", reports[:3], "what to write to the API server about policies that are not enforced exactly: "+
		"conditions (of policies), events, node (a condition of the Node), or none")
	f.StringVar(&o.httpAddress, "http-address", "127.0.0.1:9470", "address of /metrics, /healthz and /readyz; empty disables them")
	f.IntVar(&o.ruleMetrics, "rule-metrics", 0, "maximum number of rules of policy whose new flows are metrics, isthmus_rule_hits_total (on Windows packets, isthmus_rule_packets_total, which needs --rule-counters); 0 disables them")
	f.StringArrayVar(&o.podCIDRs, "pod-cidr", nil, "pod range of this node, instead of those of its Node object (repeatable)")
	f.DurationVar(&o.quarantine, "quarantine", defaults.Quarantine, "minimum time before the address of a deleted pod is reused")
	f.DurationVar(&o.audit, "audit-interval", defaults.AuditEvery, "interval of comparing installed with intended state and repairing differences; 0 disables it")
	f.StringSliceVar(&o.reservedPorts, "reserved-host-ports", reservedPorts, "ports of the node, of any protocol, that pods cannot use as hostPort; those of --vxlan-port and --hubble-listen are always included")
	o.registerNode(f)
	o.registerCNI(f)
	o.flows.register(f)
	o.hubble.register(f)
	f.StringVar(&o.fabricMode, "fabric", string(o.fabric.Mode), "connectivity to pods of other nodes: auto (routes on the segment, beyond it VXLAN on Linux), routes (routers of the network know the rest), vxlan (Linux, and --hns-mode=overlay), or none")
	f.StringVar(&o.forwarding, "forwarding", "direct", "Linux: forwarding of packets between pods of different nodes: direct (eBPF fast path that bypasses the host stack and netfilter where possible), or stack")
	f.StringVar(&o.fromNode, "host-ports-from-node", "all", "Linux: the node's own connections to host ports that are forwarded to pods: all, loopback (those to 127.0.0.0/8), or none")
	f.Uint32Var(&o.fabric.VNI, "vni", o.fabric.VNI, "VXLAN network identifier, the same on all nodes; Windows supports 4096 to 65535")
	f.Uint16Var(&o.fabric.Port, "vxlan-port", o.fabric.Port, "UDP port of VXLAN, the same on all nodes; Windows supports only 4789")
	f.StringArrayVar(&o.hybrid, "hybrid-overlay", nil, "IPv4 range of the pods of OVN-Kubernetes nodes, which its hybrid overlay connects with this node; needs --vni=4097 and --fabric auto or vxlan, and on Windows --hns-mode=overlay (repeatable)")
	f.BoolVar(&o.fabric.Masquerade, "masquerade", o.fabric.Masquerade, "masquerade pod traffic that leaves the cluster")
	f.StringArrayVar(&o.exceptions, "masquerade-exception", nil, "Linux: range outside the cluster to which pod traffic is not masqueraded (repeatable)")
	f.IntVar(&o.fabric.MTU, "mtu", 0, "Linux: MTU of the pods' interfaces; 0 derives it from the uplink and tunnels")
	f.StringVar(&o.uplink, "uplink", "", "Linux: interface to the other nodes; empty selects that of the default route")
	f.StringToIntVar(&o.mapEntries, "map-entries", nil, "Linux: capacity of a BPF map, as NAME=NUMBER (repeatable; other maps keep their size, or get the default)")
	o.limits = compile.DefaultLimits()
	for _, l := range o.limitFlags() {
		f.IntVar(l.value, "limit-"+l.name, *l.value, "maximum number of "+l.help+"; traffic beyond it is denied and reported")
	}
	f.StringVar(&o.xdp, "xdp-devices", "auto", "Linux: devices that enforce deny lists with XDP: comma-separated names; auto: those of the default routes, while deny lists exist; off")
	f.StringArrayVar(&o.neverDeny, "never-deny", nil, "Linux: address exempt from all deny lists, such as the API server's; addresses of nodes are always exempt (repeatable)")
	f.StringVar(&o.hnsMode, "hns-mode", "l2bridge", "Windows: l2bridge or overlay")
	f.StringVar(&o.hnsSets, "hns-sets", "auto", "Windows: use address sets (HNS 13 and newer) in ACLs: auto (on l2bridge), on, or off (ACL lists then change whenever pods come or go)")
	f.DurationVar(&o.hnsTimeout, "hns-timeout", 2*time.Minute, "Windows: timeout of one HNS call")
	f.DurationVar(&o.ruleCounters, "rule-counters", 0, "Windows: interval at which vfpctrl.exe is run for each pod, to count packets by rule of policy; 10s or more, 0 disables it")
	f.IntVar(&o.hnsParallel, "hns-parallel", 4, fmt.Sprintf("Windows: pods that are attached in parallel, 1 to %d", maxParallel))
	f.StringVar(&o.endpointPool, "endpoint-pool", "off", "Windows: HNS endpoints that are prepared for pods to come: auto (as many as pods start within a minute), a number, or off")
	f.StringArrayVar(&o.clusterCIDRs, "cluster-cidr", nil, "Windows: range of all nodes' pods; traffic to destinations outside of this and --service-cidr is masqueraded (repeatable; without it the ranges follow from the Nodes)")
	f.BoolVar(&o.windowsService, "windows-service", false, "Windows: run as a service that logs to the event log")
	f.StringArrayVar(&o.serviceCIDRs, "service-cidr", nil, "Windows: range of the services, besides those of ServiceCIDR objects (repeatable)")
	f.StringArrayVar(&o.keepRoutes, "keep-route", metadataServices, "Windows: destination whose route is restored if the host loses it when the HNS network is created (repeatable)")
}

// registerNode declares the flags about directories, sockets and logs of the node.
func (o *options) registerNode(f *pflag.FlagSet) {
	o.fabric = fabric.Defaults()
	f.StringVar(&o.mode, "mode", modeFull, "full (Isthmus makes the interfaces of pods), policy (another CNI plugin makes them, Isthmus only enforces policy) or on Linux observe (as policy, but nothing is dropped, only reported)")
	f.StringVar(&o.stateDir, "state-dir", defaultStateDir(), "directory of the endpoint records")
	f.DurationVar(&o.lockTimeout, "lock-timeout", 30*time.Second, "how long to wait for another agent that still uses the same directories; a stopping agent takes up to 15 s")
	f.StringVar(&o.socket, "socket", socket.Default, "socket for isthmus-cni and isthmusctl")
	o.log.Register(f)
	f.StringVar(&o.bpffs, "bpffs", "/sys/fs/bpf/isthmus", "Linux: directory for pinned maps and programs")
	f.StringVar(&o.hnsNetwork, "hns-network", "isthmus", "Windows: name of the HNS network")
}

// registerCNI declares the flags about the files of the container runtime.
func (o *options) registerCNI(f *pflag.FlagSet) {
	f.StringVar(&o.cniBinDir, "cni-bin-dir", "", "install isthmus-cni in this directory of the container runtime; empty if it is installed already")
	f.StringVar(&o.cniConfDir, "cni-conf-dir", "", "install the CNI configuration in this directory as soon as the agent is ready, or with --mode=policy add isthmus-cni to the one that the runtime uses; requires --cni-bin-dir")
	f.StringVar(&o.cniPlugin, "cni-plugin", defaultPlugin(), "path of the isthmus-cni to install")
	pages.SetDefault(f, "cni-plugin", "isthmus-cni in the directory of the agent")
	f.StringVar(&o.otherEngine, "other-engine", engineRefuse, "Linux, with --mode=policy: network policy engine of another project on this node: refuse (report it, and do not begin to enforce policy beside it), or ignore (both enforce: a flow needs the consent of both)")
}

// defaultPlugin returns the path of isthmus-cni in the agent's directory.
func defaultPlugin() string {
	name := "isthmus-cni"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	self, err := os.Executable()
	if err != nil {
		return name // check rejects it if it is needed
	}
	return filepath.Join(filepath.Dir(self), name)
}

// installation returns what to install, and whether the flags request it.
func (o *options) installation() (install.Config, bool) {
	return install.Config{Plugin: o.cniPlugin, BinDir: o.cniBinDir, ConfDir: o.cniConfDir, Socket: o.socket,
		Chained: o.besides()}, o.cniBinDir != "" || o.cniConfDir != ""
}

// limitFlag is one of the compiler's limits.
type limitFlag struct {
	name, help string
	value      *int
	most       int
}

func (o *options) limitFlags() []limitFlag {
	const many = 1 << 26
	return []limitFlag{
		{"peer-classes", "sets of peers that the policies on this node distinguish", &o.limits.PeerClasses, many},
		{"port-classes", "sets of ports that the policies on this node distinguish", &o.limits.PortClasses, compile.DefaultLimits().PortClasses},
		{"rows", "rows in all tables of this node", &o.limits.Rows, many},
		{"tables", "tables of this node", &o.limits.Tables, many},
		{"addresses", "addresses of pods and nodes with an individual class", &o.limits.Addresses, many},
	}
}

// check reports everything that is wrong with the flags on an OS.
func (o *options) check(f *pflag.FlagSet, goos string) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.nodeName == "" {
		wrong("--node-name is empty: give the name of this node's Node object")
	} else if strings.Trim(o.nodeName, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" || len(o.nodeName) > 253 {
		wrong("--node-name %q: names of Node objects have lower-case letters, digits, - and . only", o.nodeName)
	}
	if o.manifests != "" && o.kubeconfig != "" {
		wrong("--manifests and --kubeconfig exclude each other: give one of them")
	}
	for _, r := range o.report {
		if !slices.Contains(reports, r) || r == reportNone && len(o.report) > 1 {
			wrong("--report %q: give some of conditions, events and node, or none", strings.Join(o.report, ","))
			break
		}
	}
	o.fabric.Mode = fabric.Mode(o.fabricMode)
	if o.forwarding != "direct" && o.forwarding != "stack" {
		wrong("--forwarding %q: give direct or stack", o.forwarding)
	}
	if !slices.Contains([]string{"all", "loopback", "none"}, o.fromNode) {
		wrong("--host-ports-from-node %q: give all, loopback or none", o.fromNode)
	}
	o.reserved = []agent.PortRange{{First: o.fabric.Port, Last: o.fabric.Port}}
	if p := o.hubble.port(); p != 0 {
		o.reserved = append(o.reserved, agent.PortRange{First: p, Last: p})
	}
	for _, text := range o.reservedPorts {
		r, err := agent.ParsePortRange(text)
		if err != nil {
			wrong("--reserved-host-ports: %w", err)
		}
		o.reserved = append(o.reserved, r)
	}
	for _, l := range o.limitFlags() {
		if *l.value < 1 || *l.value > l.most {
			wrong("--limit-%s %d: give a number from 1 to %d", l.name, *l.value, l.most)
		}
	}
	if err := checkMapEntries(o.mapEntries); err != nil {
		wrong("--map-entries: %w", err)
	}
	errs = append(errs, o.flows.check(), o.hubble.check())
	if o.quarantine < 0 {
		wrong("--quarantine %s: give 0 or more", o.quarantine)
	}
	if o.ruleMetrics < 0 || o.ruleMetrics > rulemeter.MaxLimit {
		wrong("--rule-metrics %d: give 0 to %d", o.ruleMetrics, rulemeter.MaxLimit)
	}
	if o.audit < 0 || o.audit > 0 && o.audit < time.Second {
		wrong("--audit-interval %s: give 1s or more, or 0", o.audit)
	}
	errs = append(errs, o.readAddresses(), o.checkHNS(), o.checkSources())
	errs = append(errs, o.fabric.Validate(), o.fabric.ValidateHybrid(o.overlay))
	if goos == "windows" {
		errs = append(errs, o.checkWindowsFabric())
	}
	return errors.Join(append(errs, o.checkNode(f, goos))...)
}

// checkSources reports everything that is wrong with the flags about directories, addresses and devices that exist outside of the agent.
func (o *options) checkSources() error {
	all := daemon.CheckHTTPAddress(o.httpAddress)
	if info, err := os.Stat(o.manifests); o.manifests != "" && err == nil && !info.IsDir() {
		all = errors.Join(all, fmt.Errorf("--manifests %s: is a file: give its directory", o.manifests))
	}
	names := strings.FieldsFunc(o.xdp, func(r rune) bool { return r == ',' || r == ' ' })
	if len(names) == 0 {
		all = errors.Join(all, fmt.Errorf("--xdp-devices %q: give auto, off, or device names separated by commas", o.xdp))
	}
	return all
}

// checkHNS reports everything that is wrong with the flags about HNS.
func (o *options) checkHNS() (all error) {
	wrong := func(format string, args ...any) { all = errors.Join(all, fmt.Errorf(format, args...)) }
	if o.hnsMode != "l2bridge" && o.hnsMode != "overlay" {
		wrong("--hns-mode %q: give l2bridge or overlay", o.hnsMode)
	}
	if !slices.Contains([]string{"auto", "on", "off"}, o.hnsSets) {
		wrong("--hns-sets %q: give auto, on or off", o.hnsSets)
	}
	if o.hnsTimeout < time.Second {
		wrong("--hns-timeout %s: give 1s or more", o.hnsTimeout)
	}
	if o.ruleCounters != 0 && o.ruleCounters < 10*time.Second {
		wrong("--rule-counters %s: give 10s or more, or 0", o.ruleCounters)
	}
	if o.hnsParallel < 1 || o.hnsParallel > maxParallel {
		wrong("--hns-parallel %d: give 1 to %d", o.hnsParallel, maxParallel)
	}
	var err error
	if o.pool, err = pool.ParseSize(o.endpointPool); err != nil {
		wrong("--endpoint-pool: %w", err)
	}
	return all
}

// readAddresses parses the flags that hold addresses and prefixes, and reports everything that is wrong with
// them.
func (o *options) readAddresses() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, s := range o.neverDeny {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			wrong("--never-deny %q: give an IPv4 or IPv6 address", s)
			continue
		}
		o.exempt = append(o.exempt, a)
	}
	for _, list := range []struct {
		flag   string
		texts  []string
		parsed *[]netip.Prefix
	}{{"pod-cidr", o.podCIDRs, &o.prefixes}, {"cluster-cidr", o.clusterCIDRs, &o.cluster},
		{"service-cidr", o.serviceCIDRs, &o.services}, {"keep-route", o.keepRoutes, &o.hostRoutes},
		{"masquerade-exception", o.exceptions, &o.fabric.Exceptions}, {"hybrid-overlay", o.hybrid, &o.overlay}} {
		for _, s := range list.texts {
			p, err := netip.ParsePrefix(s)
			if err != nil || p != p.Masked() {
				wrong("--%s %q: give ADDRESS/BITS without host bits", list.flag, s)
				continue
			}
			if p.Addr().Is4In6() {
				wrong("--%s %q: no packet has such an address: write an IPv4 range, as 10.0.0.0/8", list.flag, s)
				continue
			}
			*list.parsed = append(*list.parsed, p)
		}
	}
	return errors.Join(errs...)
}

// checkWindowsFabric reports which flags about other nodes do not fit the kind of HNS network.
func (o *options) checkWindowsFabric() error {
	overlay := o.hnsMode == "overlay"
	switch {
	case !overlay && len(o.hybrid) > 0:
		return errors.New("--hybrid-overlay: l2bridge networks have no tunnels: use --hns-mode=overlay, or remove the flag")
	case overlay && o.fabric.Mode != fabric.Auto && o.fabric.Mode != fabric.VXLAN:
		return fmt.Errorf("--fabric %s: overlay networks of HNS are tunnels: give auto or vxlan, or use --hns-mode=l2bridge", o.fabric.Mode)
	case overlay:
		return o.fabric.ValidateForWindows()
	case o.fabric.Mode == fabric.VXLAN:
		return errors.New("--fabric vxlan: l2bridge networks have no tunnels: give auto, routes or none, or use --hns-mode=overlay")
	}
	return nil
}

// checkNode reports everything that is wrong with the flags of registerNode and registerCNI, and with flags
// that have no meaning on an OS.
func (o *options) checkNode(f *pflag.FlagSet, goos string) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case o.mode != modeFull && !o.besides():
		wrong("--mode %q: give full, policy or observe", o.mode)
	case o.mode == modeObserve && goos != "linux":
		wrong("--mode %s: the data path of %s cannot report what policy would drop: give policy or full", o.mode, goos)
	case o.besides():
		for _, name := range fullOnly {
			if f.Changed(name) {
				wrong("--%s has no meaning with --mode=%s: the other CNI plugin decides it: remove it", name, o.mode)
			}
		}
	}
	if o.otherEngine != engineRefuse && o.otherEngine != engineIgnore {
		wrong("--other-engine %q: give refuse or ignore", o.otherEngine)
	} else if !o.besides() && f.Changed("other-engine") {
		wrong("--other-engine has no meaning with --mode=%s: remove it", o.mode)
	}
	if !filepath.IsAbs(o.stateDir) {
		wrong("--state-dir %q: give an absolute path", o.stateDir)
	}
	if o.lockTimeout < 0 {
		wrong("--lock-timeout %s: give 0 or more", o.lockTimeout)
	}
	if cfg, wanted := o.installation(); wanted {
		if err := cfg.Validate(); err != nil {
			wrong("%w: give --cni-bin-dir and --cni-conf-dir, or neither", err)
		}
	}
	errs = append(errs, o.log.Check())
	for flags, only := range map[*[]string]string{&linuxOnly: "linux", &windowsOnly: "windows"} {
		for _, name := range *flags {
			if f.Changed(name) && goos != only {
				wrong("--%s has no meaning on %s: remove it", name, goos)
			}
		}
	}
	return errors.Join(errs...)
}
