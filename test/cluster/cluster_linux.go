// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
	"github.com/isthmus-net/isthmus/test/wine"
)

// Config describes a cluster.
type Config struct {
	// Dir is an empty directory for everything: namespaces, sockets, state, logs, a bpffs. Its path must be
	// short, because of sockets.
	Dir string
	// Bin is a directory with the executables of Build, and with Wine also those of wine.Build.
	Bin string
	// Linux and Windows are the numbers of nodes. Windows nodes are emulated.
	Linux, Windows int
	// Wine lets Windows nodes run the executables for Windows under Wine, with HNS in a separate process.
	// Otherwise they run the same packages in one Linux process (winnode).
	Wine bool
	// Overlay gives Windows nodes overlay networks instead of bridged ones.
	Overlay bool
	// Segments is the number of segments over which the Linux nodes are distributed; Windows nodes are on the
	// first. 0 means one.
	Segments int
	// IPv6Only gives nodes and pods no IPv4; the rest of the world has both. It excludes Windows nodes.
	IPv6Only bool
	// Tries is the number of flows that Try opens concurrently; 0 means 48.
	Tries int
	// AgentFlags are passed to the agents of Linux nodes, WindowsFlags to those of
	// Windows nodes.
	AgentFlags, WindowsFlags []string
	// NodeFlags are further flags of the agents of Linux nodes, by name of the node.
	NodeFlags map[string][]string
	// OtherCNI is set if the pods' interfaces are those of another CNI: the nodes' runtimes use the first
	// configuration of their directories (Node.ConfDir) and run plugins from this one. Agents install theirs.
	OtherCNI string
	// HostPorts are the host ports of pods, by name of the pod.
	HostPorts map[string][]HostPort
	// Bandwidth holds the limits of pods' annotations, by name of the pod.
	Bandwidth map[string]Bandwidth
}

// Cluster is a running cluster.
type Cluster struct {
	cfg       Config
	fabric    *fabric
	Nodes     []*Node
	Manifests *Manifests
	// kubeconfig is empty for agents that watch the manifests.
	kubeconfig string
	pods       []*Pod
	servers    traffic.Servers

	mu    sync.Mutex
	tried map[netip.Addr]int // flows by their source
}

// New makes the fabric and the namespaces of the nodes. It starts no process.
func New(cfg Config) (*Cluster, error) {
	c := &Cluster{cfg: cfg}
	if err := c.prepare(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) prepare() error {
	for _, d := range []string{"ns", "bpf", "manifests", "cni"} {
		if err := os.MkdirAll(filepath.Join(c.cfg.Dir, d), 0o700); err != nil {
			return err
		}
	}
	if err := unix.Mount("bpf", c.BPFFS(), "bpf", 0, ""); err != nil {
		return fmt.Errorf("mount a bpffs at %s: %w (are you root?)", c.BPFFS(), err)
	}
	c.Manifests = &Manifests{dir: filepath.Join(c.cfg.Dir, "manifests")}
	var err error
	if c.fabric, err = newFabric(filepath.Join(c.cfg.Dir, "ns"), max(1, c.cfg.Segments)); err != nil {
		return err
	}
	for n := 1; n <= c.cfg.Linux+c.cfg.Windows; n++ {
		system := model.Linux
		name := fmt.Sprintf("linux%d", n)
		if n > c.cfg.Linux {
			system, name = model.Windows, fmt.Sprintf("win%d", n-c.cfg.Linux)
		}
		segment := 0
		if system == model.Linux {
			segment = (n - 1) % c.fabric.segments
		}
		node := &Node{segment: segment, cluster: c, Number: n, Name: name, OS: system, Dir: filepath.Join(c.cfg.Dir, name),
			PodCIDRs: c.podCIDRs(n, system == model.Windows && c.cfg.Overlay)}
		c.Nodes = append(c.Nodes, node)
		if err := node.prepare(); err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
	}
	return c.connectPeers()
}

// podCIDRs are the ranges of node n. Overlay networks of Windows have IPv4 only.
func (c *Cluster) podCIDRs(n int, only4 bool) []netip.Prefix {
	ranges := []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(n), 0}), 24)}
	if !only4 {
		ranges = append(ranges, netip.MustParsePrefix(fmt.Sprintf("fd44:0:0:%x::/64", n)))
	}
	return c.families(ranges)
}

// families returns the prefixes of the IP versions that the nodes have.
func (c *Cluster) families(all []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(all, func(p netip.Prefix) bool { return c.cfg.IPv6Only && p.Addr().Is4() })
}

// connectPeers gives the rest of the world routes to pods through their nodes. Agents make the routes of nodes.
func (c *Cluster) connectPeers() error {
	for _, n := range c.Nodes {
		if n.OS == model.Windows && c.cfg.Overlay {
			continue // reached by tunnels only
		}
		if err := c.fabric.reach(n); err != nil {
			return err
		}
	}
	return nil
}

// BPFFS is the directory of the nodes' pins, with one directory per node.
func (c *Cluster) BPFFS() string { return filepath.Join(c.cfg.Dir, "bpf") }

// Outside returns the namespace of the rest of the world, and its addresses.
func (c *Cluster) Outside() (*netns.NS, []netip.Addr) {
	return c.fabric.ns, addressesOf(fabricAddresses(0))
}

// UseAPI makes agents that start later follow an API server instead of the directory of manifests, and passes to
// apply what would be written there. Methods that read manifests or edit those of the user do not work then.
func (c *Cluster) UseAPI(kubeconfig string, apply func(manifests string) error) {
	c.kubeconfig, c.Manifests.apply = kubeconfig, apply
}

// Start writes the Node objects and starts every agent; it returns when all are
// ready.
func (c *Cluster) Start(ctx context.Context) error {
	if err := c.Manifests.WriteNodes(c.Nodes); err != nil {
		return err
	}
	if err := c.BootWindows(ctx); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if err := n.Start(); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	for _, n := range c.Nodes {
		if err := n.waitReady(ctx); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	return nil
}

// Release stops the goroutines of this process and leaves the cluster running.
func (c *Cluster) Release() error { return c.servers.Close() }

// Close stops the agents and removes everything that New and Start made, also after they failed.
func (c *Cluster) Close() error {
	errs := []error{c.servers.Close()}
	for _, n := range c.Nodes {
		errs = append(errs, n.stop(), n.shutDown())
	}
	return errors.Join(append(errs, Remove(c.cfg.Dir))...)
}

// Remove removes the traces of a cluster in a directory, also of one whose
// process is gone: agents by their pid files, namespaces, the bpffs, the files.
func Remove(dir string) error {
	var errs []error
	pids, _ := filepath.Glob(filepath.Join(dir, "*", "agent.pid"))
	for _, path := range pids {
		errs = append(errs, killByFile(path))
	}
	nodes, _ := filepath.Glob(filepath.Join(dir, "win*"))
	for _, path := range nodes {
		errs = append(errs, wine.Remove(path))
	}
	mounts, _ := filepath.Glob(filepath.Join(dir, "ns", "*"))
	for _, path := range append(mounts, filepath.Join(dir, "bpf")) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Build compiles the commands that a cluster needs into the directory bin, an absolute path. top
// is the top of the repository. The commands have no debug information: linking is most of the
// work.
func Build(ctx context.Context, top, bin string, out io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", bin+"/",
		"./cmd/isthmus-agent", "./cmd/isthmus-cni", "./cmd/isthmusctl", "./test/cluster/winnode")
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build commands: %w", err)
	}
	return nil
}

// patience bounds the time that a node needs to become ready on a busy machine.
const patience = 30 * time.Second
