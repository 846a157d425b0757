// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/relay/export"
	"github.com/isthmus-net/isthmus/common/relay/otlp"
)

// exportOptions are the flags of the export of flows.
type exportOptions struct {
	file         string
	megabytes    int
	keep         int
	window       time.Duration
	allow, deny  []string
	allowed, not []*flow.FlowFilter
	otlp         otlpOptions
}

// Limits of the flags.
const (
	maxMegabytes = 10000
	maxKeep      = 100
	maxWindow    = 10 * time.Minute
	maxFilters   = 64
)

func (o *exportOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.file, "export-file", "", "also write the flows of all nodes to a file, as lines of JSON: a path, or - for the standard output")
	f.IntVar(&o.megabytes, "export-file-max-mb", 100, "size in megabytes at which --export-file is replaced")
	f.IntVar(&o.keep, "export-file-keep", 5, "older files of --export-file to keep, with the suffixes .1 to .N")
	f.DurationVar(&o.window, "export-aggregate", 0, "time over which the export combines the flows between the same workloads, such as 15s; 0 writes each flow")
	f.StringArrayVar(&o.allow, "export-allow", nil, "export flows that match one of these filters only, in JSON as of hubble observe --print-raw-filters (repeatable)")
	f.StringArrayVar(&o.deny, "export-deny", nil, "do not export flows that match one of these filters (repeatable)")
	o.otlp.register(f)
}

// check reports everything that is wrong with the flags.
func (o *exportOptions) check() error {
	if o.file == "" && o.otlp.endpoint == "" {
		if len(o.allow)+len(o.deny) > 0 || o.window != 0 {
			return errors.New("--export-allow, --export-deny, --export-aggregate: they need --export-file or --otlp-endpoint")
		}
		return o.otlp.check()
	}
	errs := []error{o.otlp.check()}
	if o.file != "" && o.file != "-" && !filepath.IsAbs(o.file) {
		errs = append(errs, fmt.Errorf("--export-file %q: give an absolute path, or - for the standard output", o.file))
	}
	if o.megabytes < 1 || o.megabytes > maxMegabytes {
		errs = append(errs, fmt.Errorf("--export-file-max-mb %d: give 1 to %d", o.megabytes, maxMegabytes))
	}
	if o.keep < 0 || o.keep > maxKeep {
		errs = append(errs, fmt.Errorf("--export-file-keep %d: give 0 to %d", o.keep, maxKeep))
	}
	if o.window != 0 && (o.window < time.Second || o.window > maxWindow) {
		errs = append(errs, fmt.Errorf("--export-aggregate %s: give 1s to %s, or 0", o.window, maxWindow))
	}
	errs = append(errs, o.parseFilters())
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if _, err := hubble.NewFilter(o.allowed, o.not); err != nil {
		return fmt.Errorf("--export-allow, --export-deny: %w", err)
	}
	return nil
}

// parseFilters reads the filters.
func (o *exportOptions) parseFilters() error {
	var errs []error
	for flag, texts := range map[string][]string{"export-allow": o.allow, "export-deny": o.deny} {
		if len(texts) > maxFilters {
			errs = append(errs, fmt.Errorf("--%s: %d filters: give at most %d", flag, len(texts), maxFilters))
		}
		var filters []*flow.FlowFilter
		for _, text := range texts {
			f, err := export.ParseFilter(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
			}
			filters = append(filters, f)
		}
		if flag == "export-allow" {
			o.allowed = filters
		} else {
			o.not = filters
		}
	}
	return errors.Join(errs...)
}

// exports are what runs to export flows.
type exports struct {
	lines *export.Exporter // nil without an export
	otlp  *otlp.Exporter   // nil without a collector
	close func() error
}

// open opens the outputs of the export.
func (o *exportOptions) open(registry prometheus.Registerer, stdout io.Writer, log *slog.Logger) (*exports, error) {
	x := &exports{close: func() error { return nil }}
	if o.file == "" && o.otlp.endpoint == "" {
		return x, nil
	}
	var err error
	if x.otlp, err = o.otlp.open(registry, log); err != nil {
		return nil, err
	}
	var out io.Writer
	switch o.file {
	case "":
	case "-":
		out = stdout
	default:
		file, err := export.OpenFile(o.file, int64(o.megabytes)<<20, o.keep)
		if err != nil {
			return nil, fmt.Errorf("--export-file: %w", err)
		}
		out, x.close = file, file.Close
	}
	cfg := export.Config{Allow: o.allowed, Deny: o.not, Window: o.window}
	if x.otlp != nil {
		cfg.Also = x.otlp.Add
	}
	if x.lines, err = export.New(cfg, out, registry, log); err != nil {
		return nil, errors.Join(fmt.Errorf("--export-allow, --export-deny: %w", err), x.close())
	}
	return x, nil
}

// run exports until the context is done. The collector then gets what was combined last.
func (x *exports) run(ctx context.Context, follow export.Follow) {
	if x.lines == nil {
		return
	}
	if x.otlp == nil {
		x.lines.Run(ctx, follow)
		return
	}
	sending, end := context.WithCancel(context.WithoutCancel(ctx))
	var sender sync.WaitGroup
	sender.Go(func() { x.otlp.Run(sending) })
	x.lines.Run(ctx, follow)
	end()
	sender.Wait()
}
