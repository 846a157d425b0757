// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bandwidth"
	"github.com/isthmus-net/isthmus/linux/fabric"
	"github.com/isthmus-net/isthmus/linux/foreign"
	"github.com/isthmus-net/isthmus/linux/hostport"
	"github.com/isthmus-net/isthmus/linux/kubeproxy"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/xdp"
)

// Remove removes everything that a Backend creates: veth pairs and their qdiscs, the fabric,
// nftables rules, programs and maps, including the XDP programs on uplinks. Interfaces that
// another CNI plugin made stay, without programs. No Backend may be open. Missing objects are not
// an error. Sysctls stay, because other software may depend on them.
func Remove(_ context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	found, err := link.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range found {
		errs = append(errs, link.DeleteByName(f.Name))
	}
	errs = append(errs, link.DropAllClassifiers(), foreign.Remove(cfg.StateDir), bandwidth.Sweep(), fabric.Cleanup(),
		hostport.Remove(), link.DropNodeClassifiers(nil))
	if err := errors.Join(errs...); err != nil {
		return err // programs stay as long as pods may use them
	}
	if err := kubeproxy.DropRule(); err != nil {
		return err
	}
	if err := xdp.Remove(filepath.Join(cfg.BPFFS, loader.LayoutVersion)); err != nil {
		return fmt.Errorf("remove the programs of uplinks: %w", err)
	}
	if err := loader.Remove(cfg.BPFFS); err != nil {
		return fmt.Errorf("remove programs and maps: %w", err)
	}
	// The bpffs stays mounted if the directory is its mount point.
	if err := os.Remove(cfg.BPFFS); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("remove directory of pins (does it hold the data path of another version?): %w", err)
	}
	return nil
}
