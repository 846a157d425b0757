// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/netns"
)

// node is a machine of the cluster.
type node struct {
	name, dir string
	number    int
	// addresses are in the order of the lab's networks.
	addresses []netip.Addr
	ns        *netns.NS
	init      *exec.Cmd
}

func (l *lab) newNode(i int) *node {
	name := l.name + strconv.Itoa(i)
	n := &node{name: name, number: i, dir: filepath.Join(l.dir, name), ns: netns.At(filepath.Join(l.dir, name+".ns"))}
	for _, of := range l.networks {
		n.addresses = append(n.addresses, of.node(i))
	}
	return n
}

// startNode connects the node to the fabric and starts its first process.
func (l *lab) startNode(n *node) error {
	var err error
	if n.ns, err = netns.New(n.ns.Path()); err != nil {
		return err
	}
	if err := l.cgroups().MakeNode(n.name); err != nil {
		return err
	}
	lines := []string{
		// A restarted node has the same MAC address.
		fmt.Sprintf("ip link add eth0 address 02:00:00:00:00:%02x type veth peer name %s", n.number, n.name),
		"ip link set " + n.name + " netns " + l.fabric.Path(), "ip link set lo up", "ip link set eth0 up",
	}
	for i, of := range l.networks {
		lines = append(lines, fmt.Sprintf("ip address add %s/%d dev eth0%s", n.addresses[i], of.fabric.Bits(), noDetection(of)),
			fmt.Sprintf("ip route add %s via %s", of.everywhere(), of.fabric.Addr()))
	}
	for _, line := range lines {
		if _, err := l.in(n.ns, strings.Fields(line)...); err != nil {
			return err
		}
	}
	if _, err := l.in(l.fabric, "ip", "link", "set", n.name, "master", "fabric", "up"); err != nil {
		return err
	}
	spec := nodeSpec{Name: n.name, Addresses: n.addresses, Networks: l.ip, Dir: n.dir, Bin: l.bin, Logs: l.report,
		Kubeconfig: l.control.kubeconfig(n.name), ProxyKubeconfig: l.control.kubeconfig("proxy")}
	if spec.Images, err = filepath.Glob(filepath.Join(l.images, "*.tar")); err != nil {
		return err
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	n.init, err = l.launch(n.ns, n.name, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID|syscall.CLONE_NEWUTS, self, nodeCommand, string(text))
	return err
}

// waitForNode waits until the API server has the node and its pod range, and adds the route of the
// control plane to it.
func (l *lab) waitForNode(ctx context.Context, n *node) error {
	var cidrs string
	err := until(ctx, 3*time.Minute, "node "+n.name+" (see its logs in "+l.report+")", func() (err error) {
		if ended(n.init.Process) {
			return final{errors.New("the program that runs the node has ended")}
		}
		cidrs, err = l.kubectl("get", "node", n.name, "-o", "jsonpath={.spec.podCIDRs[*]}")
		if have := len(strings.Fields(cidrs)); err == nil && have < len(l.networks) {
			err = fmt.Errorf("it has %d pod ranges", have)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, text := range strings.Fields(cidrs) {
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		for _, a := range n.addresses {
			if a.Is6() != cidr.Addr().Is6() {
				continue
			}
			if _, err := l.in(l.fabric, "ip", "route", "replace", cidr.String(), "via", a.String()); err != nil {
				return err
			}
		}
	}
	return nil
}

// ended reports whether a child process has ended. It leaves the exit status for Wait.
func ended(p *os.Process) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, p.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0
}

// inside runs a command in all namespaces of the node.
func (n *node) inside(args ...string) (string, error) {
	flags := []string{"--target=" + strconv.Itoa(n.init.Process.Pid), "--mount", "--net", "--uts", "--pid", "--"}
	return output(exec.Command("nsenter", append(flags, args...)...))
}
