// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"

	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/wine"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// BootWindows creates the Windows machines of all nodes under Wine, as Start does otherwise. Their HNS then has no
// objects, and programs can make them before an agent starts.
func (c *Cluster) BootWindows(ctx context.Context) error {
	var all sync.WaitGroup
	errs := make([]error, len(c.Nodes))
	for i, n := range c.Nodes {
		all.Go(func() { errs[i] = n.bootWindows(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// bootWindows creates the Windows machine of a node under Wine and starts its HNS, which outlives agents. It
// ignores other nodes, and those that have one.
func (n *Node) bootWindows(ctx context.Context) (err error) {
	if n.OS != model.Windows || !n.cluster.cfg.Wine || n.machine != nil {
		return nil
	}
	if n.machine, err = wine.Enter(ctx, n.NS, n.Dir, n.cluster.cfg.Bin); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	return n.machine.StartEmulator(hns.Server2022, append(n.hostFlags(), "--translate")...)
}

// HNSFile is the file with all objects of the node's HNS, as the emulator stores them.
func (n *Node) HNSFile() string { return n.machine.File("hns.json") }

// shutDown ends the Windows machine of a node under Wine.
func (n *Node) shutDown() error {
	if n.machine == nil {
		return nil
	}
	defer func() { n.machine = nil }()
	return n.machine.Close()
}

// executable returns the command of isthmus-agent.exe, with its default state directory and pipe. Flags with file
// names have Windows paths.
func (n *Node) executable(args []string) *exec.Cmd {
	return n.agentExecutable(append(args, n.networkFlags()...))
}

func (n *Node) agentExecutable(args []string) *exec.Cmd {
	for i, arg := range args {
		if filepath.IsAbs(arg) {
			args[i] = wine.Path(arg)
		}
	}
	return n.machine.Command(context.Background(), filepath.Join(n.cluster.cfg.Bin, "isthmus-agent.exe"), args...)
}

// uninstallUnderWine runs the agent's command that removes everything from a node.
func (n *Node) uninstallUnderWine() (output string, err error) {
	return n.machine.Output(n.agentExecutable(append([]string{"uninstall"}, n.cniFlags()...)))
}

// Executable runs a program for Windows on a node under Wine. It must be started
// in the node's namespace.
func (n *Node) Executable(ctx context.Context, exe string, args ...string) *exec.Cmd {
	return n.machine.Command(ctx, exe, args...)
}

// statusUnderWine runs isthmusctl.exe, because Linux programs cannot open the pipes of Wine.
func (n *Node) statusUnderWine(ctx context.Context) (*isthmusv1.GetNodeResponse, error) {
	text, err := n.machine.Output(n.machine.Command(ctx, filepath.Join(n.cluster.cfg.Bin, "isthmusctl.exe"), "status", "-o", "json"))
	if err != nil {
		return nil, fmt.Errorf("isthmusctl.exe status: %w: %s", err, text)
	}
	status := &isthmusv1.GetNodeResponse{}
	// Besides the message the form has apiVersion and kind.
	return status, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal([]byte(text), status)
}
