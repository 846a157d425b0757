// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/statefile"
)

// Remove deletes the network of that name with everything on it. A missing network is not an error. If it
// was the last network on the virtual switch, the host's own network is interrupted for some seconds. It is
// for uninstalling; nothing else in this package deletes a network. Each call to HNS ends within the
// deadline; 0 is the default of hns.Guard.
func Remove(ctx context.Context, client hns.Client, name string, deadline time.Duration) error {
	client = hns.Guard(client, hns.GuardConfig{Deadline: deadline})
	list, err := listed(func() ([]hns.Network, error) { return client.Networks(ctx) })
	if err != nil {
		return fmt.Errorf("list hns networks: %w", remedied(err))
	}
	for _, n := range list {
		if !strings.EqualFold(n.Name, name) {
			continue
		}
		if err := client.DeleteNetwork(ctx, n.ID); err != nil && !errors.Is(err, hns.ErrGone) {
			return fmt.Errorf("delete hns network %s: %w", name, remedied(err))
		}
	}
	return nil
}

// ForgetPrepared removes the list of prepared endpoints, which are gone with their network.
func ForgetPrepared(file string) error {
	if err := statefile.Remove(file); err != nil {
		return fmt.Errorf("remove the list of prepared endpoints: %w", err)
	}
	return nil
}
