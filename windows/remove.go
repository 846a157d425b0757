// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// Remove takes the network of that name away with everything on it. A network
// that does not exist is no error. The host's own network is interrupted for
// some seconds if it was the last on the virtual switch: it is for uninstalling,
// and nothing else in this package removes a network. Each call ends within the
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
