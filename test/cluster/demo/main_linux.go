// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/wine"
)

// place is the directory of the demo. Only one demo runs at a time.
const place = "/run/isthmus-demo"

// mostPods bounds the pods that are attached.
const mostPods = 24

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

type options struct {
	manifests string
	keep      bool
	stop      bool
	noWine    bool
	overlay   bool
}

func run(args []string, out, errOut io.Writer) int {
	var o options
	f := flag.NewFlagSet("demo", flag.ContinueOnError)
	f.SetOutput(errOut)
	f.StringVar(&o.manifests, "manifests", "deploy/examples", "directory of Kubernetes manifests")
	f.BoolVar(&o.keep, "keep", false, "leave the cluster running at the end")
	f.BoolVar(&o.stop, "stop", false, "remove a cluster that was left running")
	f.BoolVar(&o.noWine, "no-wine", false, "do not run the executables for Windows, even where Wine is")
	f.BoolVar(&o.overlay, "overlay", false, "give the Windows node an overlay network, and the Linux nodes segments of their own; else all are on one segment")
	if f.Parse(args) != nil || f.NArg() > 0 {
		return 2
	}
	if os.Getuid() != 0 {
		fmt.Fprintln(errOut, "demo: needs root for network namespaces and BPF: sudo make demo")
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := &demo{options: o, out: out, start: time.Now()}
	if err := d.run(ctx); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted; everything was removed")
		}
		fmt.Fprintln(errOut, "demo:", err)
		return 1
	}
	return 0
}

type demo struct {
	options
	out     io.Writer
	start   time.Time
	cluster *cluster.Cluster
	objects model.Objects
	flows   []*cluster.Flow
}

// say prints what happens, with the time since the beginning.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "%6.1fs  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) run(ctx context.Context) (err error) {
	if err := cluster.Remove(place); err != nil {
		return fmt.Errorf("remove what an earlier demo left: %w", err)
	}
	if d.stop {
		fmt.Fprintln(d.out, "demo: nothing is left of it")
		return nil
	}
	bin := filepath.Join(place, "bin")
	if err := os.MkdirAll(bin, 0o700); err != nil {
		return err
	}
	kept := false
	defer func() {
		if !kept {
			err = errors.Join(err, d.remove())
		}
	}()
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return d.build(ctx, bin) },
		d.takeManifests, d.startNodes, d.attachPods, d.tryFlows, d.edit, d.account, d.result,
	} {
		if err := errors.Join(ctx.Err(), step(ctx)); err != nil {
			return err
		}
	}
	if d.keep {
		kept = true
		d.tell()
		return d.cluster.Release()
	}
	return nil
}

// remove removes everything that the demo made.
func (d *demo) remove() error {
	if d.cluster == nil {
		return cluster.Remove(place)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return errors.Join(d.cluster.DetachAll(ctx), d.cluster.Close())
}

func (d *demo) build(ctx context.Context, bin string) (err error) {
	d.say("building isthmus-agent, isthmus-cni and the emulated Windows node")
	if err := cluster.Build(ctx, ".", bin, d.out); err != nil {
		return err
	}
	missing := wine.Missing()
	if d.noWine {
		missing = "left out"
	}
	if missing == "" {
		d.say("building the same for Windows: Wine is here to run isthmus-agent.exe and isthmus-cni.exe on the Windows node")
		if err := wine.Build(ctx, ".", bin); err != nil {
			return err
		}
	} else {
		d.say("the Windows node runs what isthmus-agent.exe is made of, as a program for Linux; Wine: %s", missing)
	}
	// A bridged network of Windows has no tunnels to another segment.
	segments := 1
	if d.overlay {
		segments = 2
	}
	d.cluster, err = cluster.New(cluster.Config{Dir: place, Bin: bin, Linux: 2, Windows: 1, Segments: segments, Overlay: d.overlay, Wine: missing == ""})
	return err
}

func (d *demo) takeManifests(ctx context.Context) error {
	rejected, warnings, err := d.cluster.Manifests.Take(ctx, d.manifests)
	if err != nil {
		return err
	}
	for _, e := range rejected {
		d.say("rejected, as an API server would: %s", e)
	}
	if len(warnings) > 0 {
		d.say("%d warnings, the first: %s", len(warnings), warnings[0])
	}
	return nil
}

func (d *demo) startNodes(ctx context.Context) (err error) {
	d.say("starting three nodes")
	if err := d.cluster.Start(ctx); err != nil {
		return err
	}
	for _, n := range d.cluster.Nodes {
		s, err := n.Status(ctx)
		if err != nil {
			return err
		}
		d.say("  %-7s %-8s %-26s pods from %v", n.Name, n.OS, s.Platform, n.PodCIDRs)
	}
	if d.objects, err = d.cluster.Manifests.Objects(ctx); err != nil {
		return err
	}
	known := len(d.objects.Namespaces)
	if made := cluster.Populate(&d.objects, max(mostPods/2, min(len(d.objects.Pods), mostPods))); made > 0 {
		d.say("added %d pods that the policies speak of", made)
		return d.cluster.Manifests.WriteNamespaces(d.objects.Namespaces[known:])
	}
	return nil
}

func (d *demo) attachPods(ctx context.Context) error {
	pods, err := d.cluster.Schedule(d.objects, mostPods)
	if err != nil {
		return err
	}
	d.say("attaching %d pods by CNI ADD; each answers when its policy is in force", len(pods))
	var times []time.Duration
	for _, p := range pods {
		if err := ctx.Err(); err != nil {
			return err
		}
		attached, took, err := d.cluster.Attach(ctx, p)
		if err != nil {
			return err
		}
		times = append(times, took)
		d.say("  %-34s %-7s %v", attached.PodID, attached.Node.Name, attached.IPs)
	}
	slices.Sort(times)
	if len(times) > 0 {
		d.say("CNI ADD took %s at the median, %s at most", times[len(times)/2].Round(time.Millisecond/10), times[len(times)-1].Round(time.Millisecond/10))
	}
	if err := d.cluster.Serve(); err != nil {
		return err
	}
	return d.cluster.Settle(ctx)
}

func (d *demo) tryFlows(ctx context.Context) (err error) {
	if d.flows, err = d.cluster.Flows(ctx); err != nil {
		return err
	}
	d.say("trying %d flows: real connections between namespaces", len(d.flows))
	err = d.cluster.Try(ctx, d.flows, func(done int) {
		if done%500 == 0 {
			d.say("  %d of %d", done, len(d.flows))
		}
	})
	if err != nil {
		return err
	}
	var m cluster.Matrix
	for _, f := range d.flows {
		family := "4"
		if f.Dst.Is6() {
			family = "6"
		}
		m.Add(f.From.Name, fmt.Sprintf("%s %s/%d", f.To.PodID, f.Protocol, f.Port), family, f.Got == model.Allow, f.Want == model.Allow)
	}
	fmt.Fprintln(d.out)
	m.Print(d.out)
	fmt.Fprintln(d.out)
	return nil
}

func (d *demo) edit(ctx context.Context) error {
	for _, e := range []struct {
		kind string
		do   func(context.Context, []*cluster.Flow) (*cluster.Edit, error)
	}{{"policy", d.cluster.EditPolicy}, {"label", d.cluster.EditLabel}} {
		edit, err := e.do(ctx, d.flows)
		if err != nil {
			return fmt.Errorf("change a %s: %w", e.kind, err)
		}
		if edit == nil {
			d.say("no flow depends on one %s alone, so none is changed", e.kind)
			continue
		}
		f := edit.Flow
		d.say("with a connection open from %s to %s port %d: %s", f.From.Name, f.To.PodID, f.Port, edit.What)
		d.say("  closed to new connections after %s; the open one %s", edit.Stopped.Round(time.Millisecond), either(edit.Cut, "stopped too", "WENT ON"))
		d.say("  taken back: open again after %s; the old connection %s", edit.Resumed.Round(time.Millisecond), either(edit.Continued, "goes on", "IS GONE"))
		if !edit.Cut || !edit.Continued {
			return fmt.Errorf("the open connection did not follow the change of a %s", e.kind)
		}
	}
	return nil
}

func either(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

// account compares the counters of the data paths with the flows that were sent.
func (d *demo) account(ctx context.Context) error {
	accounts, err := d.cluster.Accounts(ctx)
	if err != nil {
		return err
	}
	d.say("the data paths account for every flow:")
	for _, n := range d.cluster.Nodes {
		s, err := n.Status(ctx)
		if err != nil {
			return err
		}
		decided := "HNS counts no verdicts"
		if a, ok := accounts[n.Name]; ok {
			in, out := a[model.Ingress], a[model.Egress]
			decided = fmt.Sprintf("ingress %d allowed %d denied, egress %d allowed %d denied", in[model.Allow], in[model.Deny], out[model.Allow], out[model.Deny])
		}
		d.say("  %-7s %s; %d endpoints share %d tables", n.Name, decided, s.Endpoints, s.Tables)
		for _, u := range s.Unsupported {
			d.say("    not exact: %s", u)
		}
	}
	return nil
}

// result prints the summary line.
func (d *demo) result(context.Context) error {
	allowed, denied, differ := 0, 0, 0
	for _, f := range d.flows {
		if f.Got == model.Allow {
			allowed++
		} else {
			denied++
		}
		if f.Got != f.Want {
			differ++
			d.say("DIFFERS: %s to %s, %s: cluster %s; reference egress %s, ingress %s", f.From.Name, f.To.PodID, f.Flow, f.Got, f.Egress, f.Ingress)
		}
	}
	pods, policies := 0, len(d.objects.Policies)
	for _, s := range d.cluster.Sources() {
		if s.Pod != nil {
			pods++
		}
	}
	fmt.Fprintf(d.out, "demo: nodes=3 (linux=2 windows=1) pods=%d policies=%d flows=%d allowed=%d denied=%d differ=%d\n",
		pods, policies, len(d.flows), allowed, denied, differ)
	if differ > 0 {
		return fmt.Errorf("%d flows differ from the reference", differ)
	}
	return nil
}

// tell prints how to inspect a cluster that keeps running.
func (d *demo) tell() {
	fmt.Fprintf(d.out, `
The cluster is left running in %[1]s.
  enter a node:         nsenter --net=%[1]s/ns/linux1
  enter a pod:          nsenter --net=%[1]s/ns/pod-NAMESPACE-NAME
  what a node enforces: %[1]s/bin/isthmusctl --socket %[1]s/linux1/agent.sock endpoints
  look into a map:      bpftool map dump pinned %[1]s/bpf/linux1/v4/conn_index4
  change a policy:      edit the files in %[1]s/manifests
  what an agent says:   tail -f %[1]s/linux1/agent.log
  stop it:              make demo-stop
`, place)
}
