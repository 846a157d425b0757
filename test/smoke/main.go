// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"time"
)

// version is set by the linker.
var version = "devel"

// The exit codes.
const (
	exitPassed = iota
	exitFailed // a step failed; the report names it
	exitUsage
)

const usage = `isthmus-smoke runs isthmus-agent, isthmus-cni and isthmus-conformance on this Windows
host, as administrator, and removes what they made. It writes smoke.json and the
reports of isthmus-conformance.

  isthmus-smoke [--adapter NAME] [--mode l2bridge|overlay|nat] [--out DIR]

Without --adapter, HNS puts the network on the host's own adapter, and the host
loses its connections for seconds. A NAT network has no adapter. isthmus-agent
makes none: with --mode nat only isthmus-conformance and the calls of HNS run.

  isthmus-smoke --remove [--network NAME]

removes the network of a run that was killed, with its endpoints.

Exit codes: 0 all steps passed, 1 a step failed, 2 wrong usage.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, openHost))
}

// options are the flags.
type options struct {
	bin, out      string
	network, mode string
	adapter       string
	pods, address string
	timeout       time.Duration
	packetTime    time.Duration
	remove        bool
	podCIDR       netip.Prefix
	node          netip.Addr
}

func parse(args []string, w io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("isthmus-smoke", flag.ContinueOnError)
	f.SetOutput(w)
	f.Usage = func() {
		fmt.Fprint(w, usage)
		f.PrintDefaults()
	}
	f.StringVar(&o.bin, "bin", "", "directory of the executables; empty for that of this program")
	f.StringVar(&o.out, "out", ".", "directory for smoke.json, the agent's log and the reports of isthmus-conformance")
	f.StringVar(&o.network, "network", "isthmus-smoke", "name of the HNS network, which may not exist")
	f.StringVar(&o.mode, "mode", "l2bridge", "l2bridge, overlay or nat")
	f.StringVar(&o.adapter, "adapter", "", "network adapter for the HNS network, such as a loopback adapter; empty for the host's own")
	f.StringVar(&o.pods, "pod-cidr", "10.244.3.0/24", "range of the pods, a /24 that the host does not use")
	f.StringVar(&o.address, "node-address", "192.0.2.13", "address of the Node object")
	f.BoolVar(&o.remove, "remove", false, "only remove --network, which a run that was killed has left")
	f.DurationVar(&o.timeout, "timeout", 90*time.Minute, "give up after this long")
	f.DurationVar(&o.packetTime, "packet-time", 30*time.Minute, "isthmus-conformance sends packets of the corpus for at most this long; 0 for none")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q: there are no arguments besides flags", f.Arg(0))
	}
	if o.mode != "l2bridge" && o.mode != "overlay" && o.mode != "nat" {
		return o, fmt.Errorf("--mode %q: give l2bridge, overlay or nat", o.mode)
	}
	if o.mode == "nat" && o.adapter != "" {
		return o, fmt.Errorf("--adapter %q: a NAT network has none, leave it out", o.adapter)
	}
	if o.network == "" {
		return o, errors.New("--network: give a name")
	}
	var err error
	if o.podCIDR, err = netip.ParsePrefix(o.pods); err != nil || !o.podCIDR.Addr().Is4() || o.podCIDR.Bits() != 24 || o.podCIDR != o.podCIDR.Masked() {
		return o, fmt.Errorf("--pod-cidr %q: give an IPv4 range of 24 bits, such as 10.244.3.0/24", o.pods)
	}
	if o.node, err = netip.ParseAddr(o.address); err != nil {
		return o, fmt.Errorf("--node-address %q: give an address", o.address)
	}
	if o.timeout <= 0 {
		return o, fmt.Errorf("--timeout %s: give a time above 0", o.timeout)
	}
	if o.packetTime < 0 {
		return o, fmt.Errorf("--packet-time %s: give 0 or more", o.packetTime)
	}
	if o.bin == "" {
		self, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("find this program: %w: give --bin", err)
		}
		o.bin = filepath.Dir(self)
	}
	return o, nil
}

func run(ctx context.Context, args []string, w io.Writer, open func() (host, error)) int {
	o, err := parse(args, w)
	if errors.Is(err, flag.ErrHelp) {
		return exitPassed
	}
	if err != nil {
		fmt.Fprintln(w, "isthmus-smoke:", err)
		return exitUsage
	}
	h, err := open()
	if err != nil {
		fmt.Fprintln(w, "isthmus-smoke:", err)
		return exitFailed
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	s := newSmoke(o, h, w)
	if o.remove {
		if err := s.removeNetwork(ctx); err != nil {
			fmt.Fprintln(w, "isthmus-smoke:", err)
			return exitFailed
		}
		return exitPassed
	}
	s.all(ctx)
	if err := s.report.write(o.out); err != nil {
		s.report.Failed++
		fmt.Fprintln(w, "isthmus-smoke:", err)
	}
	fmt.Fprintln(w, s.report.line())
	if s.report.Failed > 0 {
		return exitFailed
	}
	return exitPassed
}
