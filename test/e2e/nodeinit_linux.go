// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/e2e/cgroups"
	"github.com/isthmus-net/isthmus/test/netns"
)

// nodeCommand is the first argument of this program when it is the first process of a node.
const nodeCommand = "node"

// nodeSpec is the second argument, in JSON.
type nodeSpec struct {
	Name, Dir, Bin, Logs        string
	Addresses                   []netip.Addr
	Networks                    string // a value of -ip
	Kubeconfig, ProxyKubeconfig string
	Images                      []string
}

// runNode is the first process of a node, in separate namespaces. It returns only with an error.
// When it ends, the kernel ends all processes of the node.
func runNode(text string) error {
	var s nodeSpec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(s.Name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := s.mounts(); err != nil {
		return err
	}
	if err := netns.Forward(); err != nil {
		return err
	}
	networks, err := networksOf(s.Networks)
	if err != nil {
		return err
	}
	if err := s.configure(networks); err != nil {
		return err
	}
	if err := s.spawn("containerd", "containerd", "--config", s.file("containerd.toml")); err != nil {
		return err
	}
	if err := s.importImages(); err != nil {
		return err
	}
	err = s.spawn("kubelet", filepath.Join(s.Bin, "kubelet"), "--config="+s.file("kubelet.json"), "--kubeconfig="+s.Kubeconfig,
		"--hostname-override="+s.Name, "--node-ip="+s.nodeIPs(), "--node-labels=topology.kubernetes.io/zone="+s.Name) // each node is a zone
	if err != nil {
		return err
	}
	err = s.spawn("kube-proxy", filepath.Join(s.Bin, "kube-proxy"), "--kubeconfig="+s.ProxyKubeconfig, "--proxy-mode=nftables",
		"--cluster-cidr="+join(networks, podsOf), "--hostname-override="+s.Name, "--conntrack-max-per-core=0")
	if err != nil {
		return err
	}
	for { // orphaned processes become children of this one
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch err {
		case nil:
			fmt.Printf("process %d has ended: %v\n", pid, status)
		case syscall.ECHILD:
			return fmt.Errorf("all processes of the node have ended")
		}
	}
}

// nodeIPs is the value of the kubelet's flag --node-ip.
func (s nodeSpec) nodeIPs() string {
	var words []string
	for _, a := range s.Addresses {
		words = append(words, a.String())
	}
	return strings.Join(words, ",")
}

func (s nodeSpec) file(name string) string { return filepath.Join(s.Dir, name) }

// mounts gives the node its own copies of the directories that its software writes, and its own
// /proc and /sys.
func (s nodeSpec) mounts() error {
	var err error
	mount := func(source, target, fstype string, flags uintptr) {
		if err == nil {
			if e := unix.Mount(source, target, fstype, flags, ""); e != nil {
				err = fmt.Errorf("mount %s at %s: %w", source, target, e)
			}
		}
	}
	mkdir := func(dir string) {
		if err == nil {
			err = os.MkdirAll(dir, 0o755)
		}
	}
	mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE)
	mount("proc", "/proc", "proc", 0)
	// A new sysfs shows the interfaces of this network namespace. The cgroups are moved there.
	held := s.file("cgroup")
	mkdir(held)
	mount(cgroups.Root, held, "", unix.MS_BIND|unix.MS_REC)
	mount("sysfs", "/sys", "sysfs", 0)
	mount(held, cgroups.Root, "", unix.MS_BIND|unix.MS_REC)
	if err == nil {
		err = unix.Unmount(held, unix.MNT_DETACH)
	}
	mount("bpf", "/sys/fs/bpf", "bpf", 0)
	for _, target := range []string{"/run", "/var/lib", "/var/log/pods", "/var/log/containers", "/etc/cni/net.d", "/opt/cni/bin"} {
		own := s.file("root" + target)
		mkdir(own)
		mkdir(target)
		mount(own, target, "", unix.MS_BIND)
	}
	mkdir("/run/lock")
	// The runtime needs this plugin with every network.
	if err == nil {
		err = exec.Command("cp", "/usr/lib/cni/loopback", "/opt/cni/bin/").Run()
	}
	mount("", "/", "", unix.MS_REC|unix.MS_SHARED)
	return err
}

// configure writes the configuration files of containerd and kubelet.
func (s nodeSpec) configure(all []network) error {
	containerd := `version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + pauseImage + `"
disable_apparmor = true
restrict_oom_score_adj = true
`
	kubelet, err := json.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": map[string]any{"anonymous": map[string]bool{"enabled": true}, "webhook": map[string]bool{"enabled": false}},
		"authorization":  map[string]string{"mode": "AlwaysAllow"},
		"address":        s.Addresses[0].String(), "clusterDNS": []string{all[0].dns.String()}, "clusterDomain": "cluster.local", "resolvConf": s.file("resolv.conf"),
		"containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock", "cgroupDriver": "cgroupfs", "cgroupRoot": "/" + s.Name,
		"failCgroupV1": false, "failSwapOn": false, "enforceNodeAllocatable": []string{}, "serializeImagePulls": false, "maxPods": 110,
		// The disk of a test machine may be nearly full.
		"evictionHard":                map[string]string{"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"},
		"imageGCHighThresholdPercent": 100, "nodeStatusUpdateFrequency": "4s",
	})
	if err != nil {
		return err
	}
	for name, content := range map[string]string{
		"containerd.toml": containerd, "kubelet.json": string(kubelet), "resolv.conf": "nameserver " + all[0].dns.String() + "\n"} {
		if err := os.WriteFile(s.file(name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// spawn starts a program with a log. The last loop of runNode waits for it.
func (s nodeSpec) spawn(name string, args ...string) error {
	log, err := os.Create(filepath.Join(s.Logs, s.Name+"-"+name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	return nil
}

// importImages imports the images into containerd, because the nodes reach no registry.
func (s nodeSpec) importImages() error {
	ctr := func(args ...string) ([]byte, error) {
		return exec.Command("ctr", append([]string{"--namespace=k8s.io"}, args...)...).CombinedOutput()
	}
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		out, err := ctr("version")
		if err == nil {
			break
		}
		if time.Since(began) > time.Minute {
			return fmt.Errorf("wait for containerd: %w: %s", err, strings.TrimSpace(string(out)))
		}
	}
	for _, image := range s.Images {
		if out, err := ctr("images", "import", image); err != nil {
			return fmt.Errorf("import %s: %w: %s", image, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
