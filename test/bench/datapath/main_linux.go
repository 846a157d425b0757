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
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/cilium/ebpf/rlimit"
)

// benchCPU is the CPU of all measurements that use one CPU only.
const benchCPU = 1

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options are the flags.
type options struct {
	rounds, repeat   int
	parts            string
	jsonFile, plotTo string
	strict           bool
}

func run(args []string, out, errOut io.Writer) int {
	var o options
	flags := flag.NewFlagSet("datapath", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.IntVar(&o.rounds, "rounds", 9, "how often everything is measured; the median counts")
	flags.IntVar(&o.repeat, "repeat", 200_000, "packets of each measurement")
	flags.StringVar(&o.parts, "parts", "programs,growth,events,paths,nodes,foreign", "what is measured")
	flags.StringVar(&o.jsonFile, "json", "", "write one JSON object a line to this file; - is standard output, in place of the table")
	flags.StringVar(&o.plotTo, "plot", "", "draw the paths into this SVG file")
	flags.BoolVar(&o.strict, "strict", false, "fail if a goal is missed")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if os.Getuid() != 0 {
		fmt.Fprintln(errOut, "datapath: needs root to load BPF programs: sudo make bench-datapath")
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rows, err := o.measure(ctx)
	if len(rows) > 0 { // also after an error: they took minutes
		err = errors.Join(err, o.report(rows, out))
	}
	if err == nil && o.strict {
		err = missed(rows)
	}
	if err != nil {
		fmt.Fprintln(errOut, "datapath:", err)
		return 1
	}
	return 0
}

// measure runs the parts in turn. With an error it returns what was measured before it; the parts of program runs return all or nothing.
func (o options) measure(ctx context.Context) (rows []row, err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, err
	}
	// Threads in system calls keep their P, so that the scheduler does not stop them.
	runtime.GOMAXPROCS(8)
	debug.SetGCPercent(-1)
	for part := range strings.SplitSeq(o.parts, ",") {
		var more []row
		switch part {
		case "programs", "growth", "events":
			more, err = o.programs(ctx, part)
		case "paths":
			more, err = o.paths(ctx)
		case "nodes":
			more, err = o.nodes(ctx)
		case "foreign":
			more, err = o.foreign(ctx)
		default:
			err = fmt.Errorf("unknown part %q: -parts takes programs, growth, events, paths, nodes and foreign", part)
		}
		rows = append(rows, more...)
		if err != nil {
			return rows, err
		}
		debug.FreeOSMemory()
	}
	return rows, nil
}

// programs runs the measurements that need no interfaces. Their thread ends afterwards.
func (o options) programs(ctx context.Context, part string) (rows []row, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err = prefer(benchCPU); err != nil {
			return
		}
		if part == "events" {
			rows, err = eventCosts(ctx, o.rounds, o.repeat)
			return
		}
		var b *bench
		if b, err = newBench(o.repeat); err != nil {
			return
		}
		defer b.close()
		if part == "programs" {
			if rows, err = b.programs(ctx, o.rounds); err != nil {
				return
			}
			var more []row
			more, err = uplinks(ctx, o.rounds, o.repeat)
			rows = append(rows, more...)
		} else {
			rows, err = b.growth(ctx, o.rounds)
		}
	}()
	<-done
	return rows, err
}

func (o options) report(rows []row, out io.Writer) error {
	if o.jsonFile == "-" {
		return jsonLines(rows, out)
	}
	table(rows, out)
	if o.jsonFile != "" {
		if err := toFile(o.jsonFile, func(w io.Writer) error { return jsonLines(rows, w) }); err != nil {
			return err
		}
	}
	if o.plotTo != "" {
		return toFile(o.plotTo, func(w io.Writer) error { return plot(rows, w) })
	}
	return nil
}

func toFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
