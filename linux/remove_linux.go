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

	"github.com/isthmus-net/isthmus/linux/fabric"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/xdp"
)

// Remove takes everything away that a Backend makes: pairs and their queues, the fabric, rules
// of nftables, programs and maps, those of XDP on uplinks among them. No Backend
// may be open. What is gone already is no error. Sysctls stay: others may have
// come to rely on them.
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
	errs = append(errs, link.SweepLimits(), fabric.Cleanup(), link.DropNodeClassifiers(nil))
	if err := errors.Join(errs...); err != nil {
		return err // programs stay as long as there may be pods behind them
	}
	if err := link.DropEgressFilter(); err != nil {
		return err
	}
	if err := xdp.Remove(filepath.Join(cfg.BPFFS, loader.LayoutVersion)); err != nil {
		return fmt.Errorf("remove the programs of uplinks: %w", err)
	}
	if err := loader.Remove(cfg.BPFFS); err != nil {
		return fmt.Errorf("remove programs and maps: %w", err)
	}
	// A bpffs of its own stays mounted.
	if err := os.Remove(cfg.BPFFS); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("remove directory of pins (is another version's data path in it?): %w", err)
	}
	return nil
}
