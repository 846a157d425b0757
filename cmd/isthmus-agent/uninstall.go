// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/daemon"
	"github.com/isthmus-net/isthmus/cni/install"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/endpoint"
)

// uninstaller holds the flags of uninstall.
type uninstaller struct {
	options
	force, wait bool
}

func (e env) uninstallCommand() *cobra.Command {
	u := &uninstaller{}
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove Isthmus from this node; the agent must not run",
		Long: `Remove Isthmus from this node: CNI configuration and plugin, the data
path with its programs, maps, interfaces and routes, and the records. It refuses
while the agent runs, or while pods are attached: they would lose their network,
and the runtime could no longer remove them. Delete or drain them first. It also
refuses while a migration by isthmusctl migrate is not complete. Remains of an
earlier attempt are removed, too. It is not an error if nothing is left.

--config takes the file of the agent. Settings that uninstall does not have are ignored.`,
		Args: daemon.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := daemon.ReadConfig(c.Flags(), c.Parent().Flags()); err != nil {
				return daemon.UsageError{Err: err}
			}
			if err := u.checkNode(c.Flags(), runtime.GOOS); err != nil {
				return daemon.UsageError{Err: err}
			}
			if err := e.uninstall(c.Context(), u); err != nil {
				return err
			}
			if u.wait {
				<-c.Context().Done()
			}
			return nil
		},
	}
	f := c.Flags()
	daemon.RegisterConfig(f)
	u.registerNode(f)
	u.registerCNI(f)
	f.BoolVar(&u.force, "force", false, "remove Isthmus even if pods are attached; restart the node afterwards to remove them")
	f.BoolVar(&u.wait, "wait", false, "after success, wait for SIGTERM instead of exiting, as pods of a DaemonSet must")
	return c
}

// uninstall holds the agent's sockets and directories meanwhile, so that no agent starts.
func (e env) uninstall(ctx context.Context, u *uninstaller) error {
	log := u.log.Logger(e.stderr)
	held, err := socket.Open(u.socket)
	if err != nil {
		return fmt.Errorf("uninstall while no agent runs: %w", err)
	}
	defer held.Close()
	backend := e.backend(&u.options, func(string) {}, log)
	// Missing directories are not created.
	locks, err := u.lock(ctx, backend, existing(append(backend.directories, u.recordDir())), log)
	if err != nil {
		return fmt.Errorf("uninstall while no agent runs: %w", err)
	}
	defer locks.release()
	if err := u.unused(backend); err != nil && !u.force {
		return err
	}
	// The configuration is removed first: from then on the runtime starts no pods.
	if files, wanted := u.installation(); wanted {
		if err := files.Remove(); err != nil {
			return err
		}
		log.Info("CNI files are removed", "bin", files.BinDir, "conf", files.ConfDir)
		others, err := install.Confs(files.ConfDir)
		if err != nil {
			return err
		}
		log.Info("CNI configurations of other networks are kept", "names", strings.Join(others, " "))
	}
	if backend.remove != nil {
		if err := backend.remove(ctx); err != nil {
			return err
		}
	}
	locks.release() // Windows cannot remove an open file
	if err := os.RemoveAll(u.stateDir); err != nil {
		return fmt.Errorf("remove records: %w", err)
	}
	if err := held.Close(); err != nil {
		return fmt.Errorf("remove sockets: %w", err)
	}
	if dir := filepath.Dir(u.socket); runtime.GOOS != "windows" {
		// A directory with other files stays.
		if err := os.Remove(dir); err != nil {
			log.Info("directory of the sockets is kept", "error", err)
		}
	}
	log.Info("Isthmus is removed from this node")
	return nil
}

// unused returns an error if pods are attached, or while isthmusctl migrate changes pods: their records may still
// be those of another network.
func (u *uninstaller) unused(backend opener) error {
	if err := migrating(u.stateDir); err != nil {
		return err
	}
	records, err := u.records()
	if err != nil {
		return err
	}
	if err := u.recorded(backend, records); err != nil {
		return err
	}
	// A released record only keeps its address in quarantine. A pod of another CNI plugin keeps its network.
	records = slices.DeleteFunc(records, func(r endpoint.Record) bool { return r.State == endpoint.Released || r.Kind == endpoint.Foreign })
	if len(records) == 0 {
		return nil
	}
	return fmt.Errorf("%d pods are attached, the first is %s: start the agent, delete them or drain the node, and try again, or use --force and restart the node afterwards", len(records), records[0].Pod())
}

// records returns those of all pods; none if there is no directory.
func (u *uninstaller) records() ([]endpoint.Record, error) {
	dir := u.recordDir()
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	store, err := endpoint.Open(dir)
	if err != nil {
		return nil, err
	}
	records, _, err := store.Load()
	return records, err
}

// recorded returns an error if a pod has an interface of the data path but no record: the records are then in another directory.
func (u *uninstaller) recorded(backend opener, records []endpoint.Record) error {
	if backend.attached == nil {
		return nil
	}
	names, err := backend.attached()
	if err != nil {
		return err
	}
	for _, r := range records {
		delete(names, r.ID())
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%d interfaces of pods, the first is %s, have no record in %s: give --state-dir as the agent has it, or use --force and restart the node afterwards",
		len(names), slices.Min(slices.Collect(maps.Values(names))), u.recordDir())
}
