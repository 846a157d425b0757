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
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/test/corpus"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// version is set by the linker.
var version = "devel"

// The exit codes.
const (
	exitAsAssumed = iota
	exitOtherwise // an assumption is wrong; the report names it
	exitUsage
	exitFailed // the checks could not run
)

const usage = `isthmus-conformance checks what Isthmus assumes about HNS on this node and
writes report.txt and report.json, to be sent back. Stop isthmus-agent first.

  isthmus-conformance --network isthmus --address 10.1.2.200 [--pods GUID,GUID] [--out DIR]
  isthmus-conformance --table DIR

The second form checks nothing. It prints the reports below a directory as tables.

Exit codes: 0 everything as assumed, 1 something is not, 2 wrong usage,
3 the checks could not run.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, openHNS))
}

// options are the flags.
type options struct {
	network string
	address netip.Addr
	pods    []string
	out     string
	table   string
	timeout time.Duration
	sending time.Duration // bounds the corpus by packets
	corpus  bool
}

func parse(args []string, w io.Writer) (options, error) {
	var o options
	var address, pods string
	f := flag.NewFlagSet("isthmus-conformance", flag.ContinueOnError)
	f.SetOutput(w)
	f.Usage = func() {
		fmt.Fprint(w, usage)
		f.PrintDefaults()
	}
	f.StringVar(&o.network, "network", "isthmus", "name of an l2bridge or overlay network of HNS")
	f.StringVar(&address, "address", "", "an unused IPv4 address of the network, for the endpoint that is written to")
	f.StringVar(&pods, "pods", "", "GUIDs of the HCN namespaces of two running pods on the network, for checks that need packets; their policies are changed meanwhile")
	f.StringVar(&o.out, "out", ".", "directory for report.txt and report.json")
	f.DurationVar(&o.sending, "packet-time", 30*time.Minute, "with --pods: send packets of the corpus for at most this long; 0 for none")
	f.BoolVar(&o.corpus, "corpus", true, "compare the corpus, which takes minutes; false only asks the questions")
	f.StringVar(&o.table, "table", "", "print the reports in the directories below this one as Markdown, and end")
	f.DurationVar(&o.timeout, "timeout", 90*time.Minute, "give up after this long")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.table != "" {
		if f.NFlag() > 1 || f.NArg() > 0 {
			return o, errors.New("--table: give no other flags and no arguments")
		}
		return o, nil
	}
	var err error
	if o.address, err = netip.ParseAddr(address); err != nil || !o.address.Is4() {
		return o, fmt.Errorf("--address %q: give a free IPv4 address of network %s", address, o.network)
	}
	if pods != "" {
		o.pods = strings.Split(pods, ",")
		if len(o.pods) != 2 || o.pods[0] == "" || o.pods[1] == "" || hns.SameID(o.pods[0], o.pods[1]) {
			return o, fmt.Errorf("--pods %q: give the GUIDs of two namespaces, separated by a comma", pods)
		}
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q: there are no arguments besides flags", f.Arg(0))
	}
	if o.sending < 0 {
		return o, fmt.Errorf("--packet-time %s: give 0 or more", o.sending)
	}
	if o.timeout <= 0 {
		return o, fmt.Errorf("--timeout %s: give a time above 0", o.timeout)
	}
	return o, nil
}

func run(ctx context.Context, args []string, w io.Writer, open func() (hns.Client, wire, error)) int {
	o, err := parse(args, w)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(w, "isthmus-conformance:", err)
		return exitUsage
	}
	if o.table != "" {
		hosts, err := readHosts(o.table)
		fmt.Fprint(w, tables(hosts))
		if err != nil {
			fmt.Fprintln(w, "\nisthmus-conformance:", err)
			return exitFailed
		}
		return exitAsAssumed
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	report, err := ask(ctx, o, open)
	if report != nil {
		err = errors.Join(err, report.write(o.out))
		fmt.Fprint(w, report.text())
	}
	if err != nil {
		fmt.Fprintln(w, "isthmus-conformance:", err)
		return exitFailed
	}
	fmt.Fprintf(w, "send back %s and report.json\n", filepath.Join(o.out, "report.txt"))
	if !report.asAssumed() {
		return exitOtherwise
	}
	return exitAsAssumed
}

// ask runs all checks. After an error the report contains the results so far.
func ask(ctx context.Context, o options, open func() (hns.Client, wire, error)) (r *Report, err error) {
	client, packets, err := open()
	if err != nil {
		return nil, err
	}
	cases, err := corpus.Embedded()
	if err != nil {
		return nil, err
	}
	guarded := hns.Guard(client, hns.GuardConfig{Deadline: 5 * time.Minute, Observe: func(hns.Call) {}})
	b, err := newBench(ctx, guarded, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close(ctx)) }()
	r = &Report{Program: version, Windows: release(), HNS: b.version.String(), Network: string(b.network.Type), Time: time.Now().UTC()}
	if r.Answers, err = b.probe(ctx); err != nil {
		return r, err
	}
	if b.host, err = thisHost(); err != nil {
		return r, err
	}
	unit, err := b.counterUnit(ctx, o.pods)
	r.Answers = append(r.Answers, unit)
	if err != nil {
		return r, fmt.Errorf("question %s: %w", unit.ID, err)
	}
	r.Sent.Why = "no packets were sent: see the answers without packets"
	more, err := b.probePackets(ctx, o.pods, packets, func(p *pair) (err error) {
		if !o.corpus {
			r.Sent.Why = "no packets were sent: --corpus=false"
			return nil
		}
		r.Sent, err = p.sendCorpus(ctx, cases, o.sending)
		return err
	})
	r.Answers = append(r.Answers, more...)
	if r.QuestionsOnly = !o.corpus; err != nil || r.QuestionsOnly {
		return r, err
	}
	r.Corpus, err = b.corpus(ctx, cases)
	return r, err
}
