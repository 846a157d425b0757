// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/isthmus-net/isthmus/test/hnsemu/host"
	"github.com/isthmus-net/isthmus/test/hnsemu/service"
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/hns"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// options are the flags.
type options struct {
	listen, control, version, state, calls string
	managementIP, managementMAC, adapter   string
	reading, flows                         string
	dropICMPErrors, translate, countFlows  bool
	latency                                float64
	strict                                 host.Strict
}

func run(ctx context.Context, args []string, out io.Writer) int {
	var o options
	f := flag.NewFlagSet("hnsemu", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.listen, "listen", "127.0.0.1:47700", "where the DLLs connect to")
	f.StringVar(&o.control, "control", "", "Unix socket for tests; empty for none")
	f.StringVar(&o.version, "hns", hns.Server2022.String(), "version of HNS: 9.5, 13.3, 15.5 or another")
	f.StringVar(&o.state, "state", "", "file that keeps the objects; empty keeps them in memory")
	f.StringVar(&o.calls, "calls", "", "file that gets every call as a line of JSON; empty for none")
	f.StringVar(&o.managementIP, "management-ip", "", "the node's address")
	f.StringVar(&o.managementMAC, "management-mac", "", "the node's hardware address, as 00-15-5D-00-00-01")
	f.StringVar(&o.adapter, "adapter", "Ethernet", "name of the physical adapter")
	f.StringVar(&o.reading, "reading", hns.Reading{}.String(), "how ACLs are read where HNS is not documented")
	f.StringVar(&o.flows, "flows", "again", "what a change of ACLs does to flows: stay, again or forgotten")
	f.BoolVar(&o.dropICMPErrors, "drop-icmp-errors", false, "ICMP errors need a rule")
	f.BoolVar(&o.countFlows, "count-flows", false, "MatchedPackets of a rule counts the first packet of each flow only")
	f.BoolVar(&o.translate, "translate", false, "move packets through NAT, port mappings and load balancers: changes the routing of this network namespace, which must be the node's own")
	f.BoolVar(&o.strict.Gradual, "gradual", false, "change the ACLs of one write one by one, and let packets meet each list")
	f.BoolVar(&o.strict.Reorder, "reorder", false, "answer with policies, addresses and members of sets in the opposite order")
	f.BoolVar(&o.strict.Respell, "respell", false, "answer with addresses in another spelling")
	f.BoolVar(&o.strict.UpdateReplacesAll, "update-replaces-all", false, "an Update of an endpoint replaces all its policies, not only those of the types in the request")
	f.Float64Var(&o.latency, "latency", 0, "slow down calls: 1 for what has been seen on Windows")
	if f.Parse(args) != nil {
		return 2
	}
	if err := serve(ctx, o, out); err != nil {
		fmt.Fprintln(out, "hnsemu:", err)
		return 1
	}
	return 0
}

// vfp reads the flags that select the undocumented behaviour of VFP.
func (o options) vfp() (vfp.Options, error) {
	settings := vfp.Options{DropICMPErrors: o.dropICMPErrors, CountFlows: o.countFlows}
	all := hns.Readings()
	i := slices.IndexFunc(all, func(r hns.Reading) bool { return r.String() == o.reading })
	if i < 0 {
		return settings, fmt.Errorf("--reading %q: give one such as %s", o.reading, all[len(all)-1])
	}
	settings.Rules = all[i]
	i = slices.Index([]string{"stay", "again", "forgotten"}, o.flows)
	if i < 0 {
		return settings, fmt.Errorf("--flows %q: give stay, again or forgotten", o.flows)
	}
	settings.Change = vfp.ChangeReading(i)
	return settings, nil
}

func serve(ctx context.Context, o options, out io.Writer) error {
	log := slog.New(slog.NewTextHandler(out, nil))
	var v hns.Version
	if _, err := fmt.Sscanf(o.version, "%d.%d", &v.Major, &v.Minor); err != nil {
		return fmt.Errorf("--hns %q: give MAJOR.MINOR", o.version)
	}
	settings, err := o.vfp()
	if err != nil {
		return err
	}
	config := host.Config{Version: v, Adapter: o.adapter, ManagementIP: o.managementIP, ManagementMAC: o.managementMAC,
		File: o.state, Translate: o.translate, Options: settings, Strict: o.strict, Log: log}
	if o.calls != "" {
		calls, err := os.OpenFile(o.calls, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("open --calls: %w", err)
		}
		defer calls.Close()
		config.Calls = calls
	}
	h, err := host.New(config)
	if err != nil {
		return err
	}
	defer h.Close()
	s := h.Service
	if o.latency > 0 {
		for _, f := range service.Latency(o.latency) {
			s.Target().Faults.Set(f)
		}
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen on --listen: %w", err)
	}
	if o.control != "" {
		c, err := net.Listen("unix", o.control)
		if err != nil {
			return errors.Join(fmt.Errorf("listen on --control: %w", err), l.Close())
		}
		web := &http.Server{Handler: h.Control()}
		go web.Serve(c) // Serve returns when Close is called
		defer web.Close()
	}
	log.Info("hns emulator starts", "hns", v.String(), "listen", l.Addr().String())
	defer s.Target().Calm() // Serve would otherwise wait for calls that a fault holds
	context.AfterFunc(ctx, s.Target().Calm)
	return s.Serve(ctx, l)
}
