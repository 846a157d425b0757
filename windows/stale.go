// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hostport"
)

// removeStale removes endpoints that hold an address of the wanted one.
func (b *Backend) removeStale(ctx context.Context, n *hns.Network, want hns.Endpoint, cause error) error {
	list, err := b.listEndpoints(ctx, n.ID)
	if err != nil {
		return err
	}
	for i := range list {
		e := &list[i]
		if !sharesAddress(e, &want) {
			continue
		}
		if _, ours := b.config.parseEndpointName(e.Name); !ours && !e.Remote() {
			return fmt.Errorf("create hns endpoint: address %s belongs to endpoint %q of another component: remove it: %w", addressTexts(&want), e.Name, cause)
		}
		b.log.Warn("removing a stale endpoint", "endpoint", e.Name, "addresses", addressTexts(e), "remote", e.Remote())
		b.config.Step("remove stale endpoint")
		if err := b.remove(ctx, e); err != nil {
			return fmt.Errorf("remove stale endpoint %q: %w", e.Name, err)
		}
	}
	return nil
}

// portTaken handles an error of HNS that a port of a new endpoint is in use. It removes one of our
// endpoints that has the port and is in no namespace, and returns nil: the caller retries. Otherwise the
// error names the owner of the port, or where to look.
func (b *Backend) portTaken(ctx context.Context, n *hns.Network, want hns.Endpoint, cause error) error {
	ports := hostport.Mapped(want.Policies)
	if len(ports) == 0 {
		return fmt.Errorf("create hns endpoint: no range of ports is left for outbound NAT, or Windows reserves them: "+
			"check netsh int ipv4 show excludedportrange and vfpctrl /list-nat-range, and restart the hns service: %w", cause)
	}
	list, err := b.listEndpoints(ctx, n.ID)
	if err != nil {
		return errors.Join(cause, err)
	}
	for i := range list {
		e := &list[i]
		if !slices.ContainsFunc(hostport.Mapped(e.Policies), func(p string) bool { return slices.Contains(ports, p) }) {
			continue
		}
		if _, ours := b.config.parseEndpointName(e.Name); !ours || e.HostComputeNamespace != "" {
			return fmt.Errorf("create hns endpoint: a host port of the pod (%s) is in use on this node by endpoint %q: free it or use another host port: %w", strings.Join(ports, ", "), e.Name, cause)
		}
		b.log.Warn("removing a stale endpoint that has a host port", "endpoint", e.Name)
		b.config.Step("remove stale endpoint")
		if err := b.remove(ctx, e); err != nil {
			return fmt.Errorf("remove stale endpoint %q: %w", e.Name, err)
		}
		return nil
	}
	return fmt.Errorf("create hns endpoint: a host port of the pod (%s) is in use on this node, but by no HNS endpoint: a program uses it, Windows reserves it "+
		"(netsh int ipv4 show excludedportrange), or HNS did not free it and must be restarted; or use another host port: %w", strings.Join(ports, ", "), cause)
}

// removeRemotes removes remote endpoints with an address of the wanted one. The address is in this node's
// range, so they are stale. Some HNS versions allow both to exist, and packets then go to the wrong one.
func (b *Backend) removeRemotes(ctx context.Context, want hns.Endpoint, list []hns.Endpoint) error {
	for i := range list {
		e := &list[i]
		if !e.Remote() || !sharesAddress(e, &want) {
			continue
		}
		b.log.Warn("removing a stale remote endpoint", "endpoint", e.Name, "addresses", addressTexts(e))
		b.config.Step("remove stale endpoint")
		if err := b.remove(ctx, e); err != nil {
			return fmt.Errorf("remove the remote endpoint that has the pod's address: %w", err)
		}
	}
	return nil
}

// undo removes the endpoint of a failed call, also if the call did not answer in time.
func (b *Backend) undo(ctx context.Context, network, name string) error {
	ctx, cancel := cleanup(ctx)
	defer cancel()
	b.disown(name)
	return b.removeNamed(ctx, network, name)
}

// disown records that an endpoint is unwanted although the call that creates it may still be running.
func (b *Backend) disown(name string) {
	if b.hns.Unfinished()[hns.NewEndpointObject(name)] {
		b.orphans[name] = true
	}
}

// orphanRetry is the interval in which the removal of orphans is tried again after an error: their addresses stay reserved
// meanwhile, and a call that HNS does not answer holds up requests.
const orphanRetry = 30 * time.Second

// removeOrphans removes the endpoints that calls have created after they timed out.
func (b *Backend) removeOrphans(ctx context.Context) {
	if len(b.orphans) == 0 {
		b.orphanFault = ""
		return
	}
	if time.Now().Before(b.orphansDue) {
		return
	}
	err := b.tryRemoveOrphans(ctx)
	was := b.orphanFault
	if b.orphanFault = ""; err != nil {
		b.orphansDue = time.Now().Add(orphanRetry) // the calls may have taken longer
		b.orphanFault = fmt.Sprintf("endpoints that a failed call of hns left are not removed yet: %v", err)
	}
	if err != nil && was == "" {
		b.log.Warn("remove endpoints that a failed call of hns left; retrying", "error", err)
	}
}

func (b *Backend) tryRemoveOrphans(ctx context.Context) error {
	unfinished := b.hns.Unfinished()
	n, err := b.findNetwork(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for name := range b.orphans {
		if unfinished[hns.NewEndpointObject(name)] {
			continue
		}
		if n != nil {
			err = b.removeNamed(ctx, n.ID, name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove orphan %s: %w", name, err))
			continue
		}
		delete(b.orphans, name)
	}
	return errors.Join(errs...)
}
