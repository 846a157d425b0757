// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/isthmus-net/isthmus/cmd/daemon"
	"github.com/isthmus-net/isthmus/common/httpd"
	"github.com/isthmus-net/isthmus/common/kube/nodecidr"
)

// options are the flags.
type options struct {
	cfg              nodecidr.Config
	ranges, reserved []string
	httpAddress      string
	log              daemon.Log
	leaseDuration    time.Duration
}

// run executes the command line and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := &options{cfg: nodecidr.Defaults()}
	root := daemon.Command("isthmus-controller", "Assign pod ranges to nodes without any", version, func(c *cobra.Command) error {
		if err := o.check(); err != nil {
			return daemon.UsageError{Err: err}
		}
		return o.serve(c.Context(), stderr)
	})
	o.register(root.Flags())
	return daemon.Run(ctx, root, args, stdout, stderr)
}

func (o *options) register(f *pflag.FlagSet) {
	f.StringVar(&o.cfg.Kubeconfig, "kubeconfig", "", "kubeconfig file for the API server; without it the service account of the pod is used")
	f.StringArrayVar(&o.ranges, "cluster-cidr", nil, "range of all nodes' pods, divided into blocks for nodes; the first range of a family with a free block is used (repeatable)")
	f.StringArrayVar(&o.reserved, "reserved-cidr", nil, "range excluded from blocks, such as that of the services (repeatable)")
	f.IntVar(&o.cfg.Ranges.Mask4, "node-mask-ipv4", o.cfg.Ranges.Mask4, "prefix length of a node's IPv4 block")
	f.IntVar(&o.cfg.Ranges.Mask6, "node-mask-ipv6", o.cfg.Ranges.Mask6, "prefix length of a node's IPv6 block")
	f.StringVar(&o.cfg.Namespace, "namespace", o.cfg.Namespace, "namespace of the Lease")
	f.StringVar(&o.cfg.Lease, "lease", o.cfg.Lease, "name of the Lease that elects one of several controllers")
	f.StringVar(&o.cfg.Identity, "identity", "", "unique identity of this controller; empty selects the host name and a random suffix")
	f.DurationVar(&o.leaseDuration, "lease-duration", o.cfg.Duration, "time after the last renewal until another controller takes over; at least 3s")
	f.StringVar(&o.httpAddress, "http-address", "127.0.0.1:9471", "address of /metrics, /healthz and /readyz; empty disables them")
	o.log.Register(f)
}

// check reports everything that is wrong with the flags.
func (o *options) check() error {
	var errs []error
	parse := func(flag string, texts []string) (all []netip.Prefix) {
		for _, text := range texts {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("--%s %q: use an address and a prefix length, like 10.244.0.0/16", flag, text))
				continue
			}
			all = append(all, p)
		}
		return all
	}
	o.cfg.Ranges.Ranges, o.cfg.Ranges.Reserved = parse("cluster-cidr", o.ranges), parse("reserved-cidr", o.reserved)
	if len(o.ranges) == 0 {
		errs = append(errs, errors.New("--cluster-cidr: give at least one range"))
	}
	errs = append(errs, o.log.Check())
	if o.leaseDuration < 3*time.Second {
		errs = append(errs, fmt.Errorf("--lease-duration %s: use 3s or more", o.leaseDuration))
	}
	if o.cfg.Identity == "" {
		host, _ := os.Hostname()
		o.cfg.Identity = host + "_" + rand.Text()
	}
	o.cfg.Duration, o.cfg.RenewDeadline, o.cfg.RetryPeriod = o.leaseDuration, o.leaseDuration*2/3, o.leaseDuration*2/15
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return errors.Join(o.cfg.Validate(), daemon.CheckHTTPAddress(o.httpAddress))
}

// serve runs the controller until the context is done.
func (o *options) serve(ctx context.Context, stderr io.Writer) error {
	log := o.log.Logger(stderr)
	controller, err := nodecidr.New(o.cfg, log)
	if err != nil {
		return err
	}
	log.Info("controller starts", "version", version, "ranges", o.ranges)
	if o.httpAddress != "" {
		listener, err := net.Listen("tcp", o.httpAddress)
		if err != nil {
			return fmt.Errorf("listen on --http-address: %w", err)
		}
		serving, stop := context.WithCancel(context.WithoutCancel(ctx))
		served := make(chan struct{})
		go func() {
			defer close(served)
			if err := httpd.Serve(serving, listener, controller.Handler(), httpd.Defaults()); err != nil {
				log.Error("serve metrics and health", "error", err)
			}
		}()
		defer func() { stop(); <-served }()
	}
	err = controller.Run(ctx)
	daemon.LogEnd(log, "controller has stopped; nodes keep their pod ranges", err)
	return err
}
