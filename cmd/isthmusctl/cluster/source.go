// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// Source selects where a cluster is read from. Its fields are the values of flags.
type Source struct {
	// Manifests are directories, files, or "-" for stdin.
	Manifests  []string
	Kubeconfig string
	// Context is the context of the kubeconfig file; empty means its current one.
	Context string
	// SkipBad skips documents with errors.
	SkipBad bool
	// AlsoManifests: the command reads manifests beside a cluster.
	AlsoManifests bool
	// Placeholders adds a placeholder pod for every policy that selects no pod.
	Placeholders bool
	// WantServices makes Load read Services from an API server too; from manifests it always does.
	WantServices bool
	// Services and EndpointSlices are those that were loaded, and Places those of all objects.
	Services       []*model.Service
	EndpointSlices []*model.EndpointSlice
	Places         map[string]model.Place
	// Workloads are those of pods that manifests leave to a workload.
	Workloads map[model.PodID]model.WorkloadID
	// AllowEmpty accepts manifests without any object that counts.
	AllowEmpty bool
	// applied: what is read is applied to a cluster, so that Services count.
	applied bool
	// liveOnly: the command has no --manifests.
	liveOnly bool

	timeout time.Duration
	// as and groups are the user and the groups to impersonate.
	as     string
	groups []string
	quiet  bool
	// stored reads manifests as objects that an API server already stores, with looser
	// validation.
	stored bool
	// leftOut counts the errors whose documents were skipped.
	leftOut int
	stdin   func() io.Reader
	// command is the name of the command, for remedies.
	command string
	// implied is true if the kubeconfig file is the one that kubectl finds.
	implied bool
}

// Live returns a source that reads an API server, Services too.
func Live(kubeconfig, context, as string, groups []string, timeout time.Duration) *Source {
	return &Source{Kubeconfig: kubeconfig, Context: context, WantServices: true, timeout: timeout, as: as, groups: groups, liveOnly: true}
}

// Register registers the flags of all sources.
func (s *Source) Register(c *cobra.Command) {
	f := c.Flags()
	const usage = "read the cluster from this directory or file of manifests, or - for stdin (repeatable)"
	f.VarP((*paths)(&s.Manifests), "manifests", "m", usage)
	if c.Name() != "diff" { // kubectl diff -f names the other side
		f.VarP((*paths)(&s.Manifests), "filename", "f", "the same as --manifests")
	}
	f.StringVar(&s.Kubeconfig, "kubeconfig", "", "read the cluster from the API server that this file names (default without --manifests: the file that kubectl uses)")
	f.StringVar(&s.Context, "context", "", "context of the kubeconfig file")
	f.StringVar(&s.as, "as", "", "user name to impersonate for reading the API server")
	f.StringArrayVar(&s.groups, "as-group", nil, "group to impersonate (repeatable)")
	f.DurationVar(&s.timeout, "timeout", 30*time.Second, "how long to wait for the API server")
	s.RegisterReading(c)
}

// paths are the values of flags that add to one list.
type paths []string

func (p *paths) Set(path string) error { *p = append(*p, path); return nil }
func (p *paths) Type() string          { return "stringArray" }
func (p *paths) String() string        { return strings.Join(*p, ", ") }

// RegisterReading registers the flags that control how manifests are read.
func (s *Source) RegisterReading(c *cobra.Command) {
	f := c.Flags()
	s.stdin, s.command = c.InOrStdin, c.Name()
	f.BoolVar(&s.SkipBad, "skip-bad", false, "skip documents with errors; stderr names them, and the exit status is 2")
	f.BoolVarP(&s.quiet, "quiet", "q", false, "print no remarks on stderr about what was assumed or read with warnings")
	RegisterStored(f, &s.stored)
}

// RegisterAllowEmpty registers the flag --allow-empty.
func (s *Source) RegisterAllowEmpty(c *cobra.Command) {
	c.Flags().BoolVar(&s.AllowEmpty, "allow-empty", false, "succeed if the manifests have no objects that count; without it that is an error")
}

// RegisterStored registers the flag --stored.
func RegisterStored(f *pflag.FlagSet, stored *bool) {
	f.BoolVar(stored, "stored", false, "validate manifests as objects that an API server already stores, as in a dump of a live cluster")
}

// RegisterPlaceholders registers the flag that adds placeholder pods.
func (s *Source) RegisterPlaceholders(c *cobra.Command) {
	c.Flags().BoolVar(&s.Placeholders, "placeholders", false, "add a placeholder pod for every policy that selects no pod, to show its effect")
}

// Check checks the flags. Without any it falls back to the kubeconfig file that kubectl uses.
func (s *Source) Check() error {
	if len(s.Manifests) == 0 && !s.Live() {
		s.implied = watch.DefaultKubeconfig()
	}
	switch {
	case slices.Contains(s.Manifests, ""):
		return cli.Usagef("--manifests: the path is empty: name a directory or a file, or - for stdin")
	case len(s.Manifests) == 0 && !s.Live():
		give := "give --manifests DIR or --kubeconfig FILE"
		if s.liveOnly {
			give = "give --kubeconfig FILE"
		}
		if named := os.Getenv("KUBECONFIG"); named != "" {
			return cli.Usagef("KUBECONFIG %s: no such file: correct it, or %s", named, give)
		}
		return cli.Usagef("no cluster given: %s", give)
	case len(s.Manifests) > 0 && s.Live():
		return cli.Usagef("--manifests and --kubeconfig or --context: give one of them")
	case s.Live() && s.Placeholders:
		return cli.Usagef("--placeholders: works with --manifests only")
	case s.Live() && s.stored:
		return cli.Usagef("--stored: works with --manifests only; objects of an API server are always validated so")
	case s.Live() && s.SkipBad && !s.AlsoManifests:
		return cli.Usagef("--skip-bad: works with --manifests only; of the objects of an API server nothing is left out, what is invalid is a warning")
	case !s.Live() && (s.as != "" || len(s.groups) > 0):
		return cli.Usagef("--as and --as-group: work with an API server only")
	case s.as == "" && len(s.groups) > 0:
		return cli.Usagef("--as-group: give --as, too")
	case s.timeout <= 0:
		return cli.Usagef("--timeout %s: give a duration above 0", s.timeout)
	}
	return nil
}

// Live reports whether the cluster is read from an API server. It is valid after Check.
func (s *Source) Live() bool { return s.Kubeconfig != "" || s.Context != "" || s.implied }

// Load reads the cluster. For a directory it adds a node and an address to pods without one,
// so that every pod takes part.
func (s *Source) Load(ctx context.Context) (*model.Snapshot, Problems, error) {
	if s.Live() {
		return s.loadAPI(ctx)
	}
	o, p, err := s.Read(ctx, s.Manifests...)
	if err != nil {
		return nil, p, err
	}
	if s.Placeholders {
		addPlaceholders(&o)
	}
	p.Assumed = Assumptions(complete.Place(&o))
	s.Services, s.EndpointSlices, s.Places, s.Workloads = o.Services, o.EndpointSlices, o.Places, o.Workloads
	return o.Snapshot(), p, nil
}

// addPlaceholders adds a placeholder pod for every policy that selects no pod.
func addPlaceholders(o *model.Objects) {
	snapshot := o.Snapshot()
	for _, p := range complete.Unselecting(snapshot, snapshot.SortedPolicies()) {
		if pod, ns, ok := policy.PlaceholderPod(snapshot, p); ok {
			o.Pods = append(o.Pods, pod)
			o.Namespaces = append(o.Namespaces, ns)
		}
	}
}

// Assumptions describes the additions, one line each.
func Assumptions(p complete.Placed) []string {
	var said []string
	if len(p.Nodes) > 0 {
		said = append(said, fmt.Sprintf("nodes that no manifest describes: %s", cli.Shorten(p.Nodes, 5)))
	}
	if p.Bound > 0 {
		said = append(said, fmt.Sprintf("nodes for %d pods that are bound to none", p.Bound))
	}
	if p.Addressed > 0 {
		said = append(said, fmt.Sprintf("addresses for %d pods that have none", p.Addressed))
	}
	return said
}

// Read reads directories, files and stdin without adding anything. It returns an error only if it can read
// nothing at all.
func (s *Source) Read(ctx context.Context, paths ...string) (model.Objects, Problems, error) {
	var p Problems
	o, warnings, errs := s.parse(ctx, paths)
	for _, w := range warnings {
		p.Warnings = append(p.Warnings, w.String())
		p.WarnedAt = append(p.WarnedAt, place(paths, w.File, w.Line))
	}
	for _, e := range errs {
		if slices.Contains(paths, e.File) && e.Document == 0 { // not one document: the directory, or a limit on all of them
			return o, p, fmt.Errorf("read manifests: %w", e)
		}
		p.Bad = append(p.Bad, e.Error())
		p.BadAt = append(p.BadAt, place(paths, e.File, e.Line))
	}
	for name, at := range o.Places {
		o.Places[name] = place(paths, at.File, at.Line)
	}
	count := len(o.Namespaces) + len(o.Nodes) + len(o.Pods) + len(o.Policies) + len(o.DenyLists)
	if s.applied {
		count += len(o.Services)
	}
	if !s.AllowEmpty && len(errs) == 0 && count == 0 {
		return o, p, fmt.Errorf("%s: no policies, pods, workloads, namespaces, nodes or deny lists%s", strings.ReplaceAll(strings.Join(paths, ", "), stdinName, stdinFile), wherefrom(paths))
	}
	return o, p, ctx.Err()
}

// wherefrom ends the message about manifests without objects.
func wherefrom(paths []string) string {
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return " in .yaml, .yml or .json files: name a directory that has some"
		}
	}
	return ": give manifests that have some"
}

// place returns a position with a path that leads there from the working directory.
func place(paths []string, file string, line int) model.Place {
	if len(paths) == 1 && file != paths[0] && file != stdinFile {
		file = filepath.Join(paths[0], filepath.FromSlash(file))
	}
	return model.Place{File: file, Line: line}
}

// parse reads all manifests. Errors name files below the only directory by their paths there.
func (s *Source) parse(ctx context.Context, paths []string) (model.Objects, []manifests.Warning, []manifests.DocumentError) {
	paths, bundled, err := fromBundles(paths)
	if err != nil {
		return model.Objects{}, nil, []manifests.DocumentError{*err}
	}
	o, warnings, errs := s.parseManifests(ctx, paths)
	return merge(bundled, o), warnings, errs
}

func (s *Source) parseManifests(ctx context.Context, paths []string) (model.Objects, []manifests.Warning, []manifests.DocumentError) {
	if len(paths) == 0 {
		return model.Objects{}, nil, nil
	}
	reading := s.reading()
	for _, path := range paths {
		if strings.Contains(path, "://") {
			return model.Objects{}, nil, []manifests.DocumentError{{File: path,
				Detail: fmt.Sprintf("URLs are not read: download it first: curl -fsSL %s %s", quoted(path), s.use())}}
		}
		if err := unbuilt(path, s.use()); err != nil {
			return model.Objects{}, nil, []manifests.DocumentError{{File: path, Detail: strings.TrimPrefix(err.Error(), path+": ")}}
		}
	}
	if len(paths) == 1 && paths[0] != stdinName {
		if info, err := os.Stat(paths[0]); err != nil || info.IsDir() {
			o, warnings, errs := reading.Dir(ctx, paths[0])
			return o, append(warnings, overlays(paths[0], s.use())...), chartErrors(paths[0], s.use(), errs)
		}
	}
	var files []manifests.File
	var errs []manifests.DocumentError
	read := make(map[string]bool)
	for _, path := range paths {
		if path == stdinName {
			f, err := piped(stdinFile, s.stdin(), reading.Limits)
			if err != nil {
				errs = append(errs, manifests.DocumentError{File: stdinName, Detail: err.Error()})
			}
			files = append(files, f)
			continue
		}
		if info, err := os.Stat(path); err == nil && !info.IsDir() && !info.Mode().IsRegular() { // /dev/stdin, a named pipe
			f, err := open(path, reading.Limits)
			if err != nil {
				errs = append(errs, manifests.DocumentError{File: path, Detail: err.Error()})
			}
			files = append(files, f)
			continue
		}
		more, wrong := manifests.ReadFiles(ctx, path, reading.Limits)
		more = slices.DeleteFunc(more, func(f manifests.File) bool { // of two paths that overlap
			name := real(f.Name)
			known := read[name]
			read[name] = true
			return known
		})
		files, errs = append(files, more...), append(errs, wrong...)
	}
	o, warnings, wrong := reading.ParseFiles(files)
	for _, path := range paths {
		for _, w := range overlays(path, s.use()) {
			w.File = filepath.Join(path, w.File)
			warnings = append(warnings, w)
		}
	}
	return o, warnings, chartErrors("", s.use(), append(errs, wrong...))
}

// stdinName is the path that means stdin, and stdinFile its name in messages.
const (
	stdinName = "-"
	stdinFile = "stdin"
)

// Files above maxWhole bytes are read piece by piece: a dump of all objects of a cluster is one file. maxPiece bounds a
// document, and an item of a list.
const (
	maxWhole = 4 << 20
	maxPiece = 32 << 20
)

// piped returns a text of unknown length as a file.
func piped(name string, in io.Reader, limits manifests.Limits) (manifests.File, error) {
	data, err := io.ReadAll(io.LimitReader(in, limits.StreamBytes+1))
	if err != nil || int64(len(data)) <= limits.StreamBytes {
		return manifests.File{Name: name, Data: data}, err
	}
	rest := io.NopCloser(io.MultiReader(bytes.NewReader(data), in))
	return manifests.File{Name: name, Open: func() (io.ReadCloser, error) { return rest, nil }}, nil
}

// open opens a file that is not a regular one, such as a pipe.
func open(path string, limits manifests.Limits) (manifests.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return manifests.File{Name: path}, err
	}
	return piped(path, f, limits)
}

// use returns the end of a command line that passes its output to this command.
func (s *Source) use() string {
	if s.command == "diff" {
		return "> built.yaml, and name built.yaml"
	}
	return fmt.Sprintf("| isthmusctl %s -m -", s.command)
}

func (s *Source) reading() manifests.Reading {
	limits := manifests.DefaultLimits()
	limits.FileBytes, limits.StreamBytes = maxPiece, maxWhole
	return manifests.Reading{Limits: limits, Stored: s.stored}
}

// loadAPI waits for the first complete state of an API server.
func (s *Source) loadAPI(ctx context.Context) (*model.Snapshot, Problems, error) {
	api, err := s.openAPI()
	if err != nil {
		return nil, Problems{}, err
	}
	whole, done := context.WithTimeout(ctx, s.timeout)
	defer done()
	ctx, cancel := context.WithCancel(whole)
	defer cancel()
	var snapshot *model.Snapshot
	var found []string
	refused := make(chan error, 1)
	go func() { refused <- untilRefused(ctx, api, cancel) }()
	err = api.Run(ctx, func(first *model.Snapshot) {
		if snapshot == nil {
			snapshot, found = first, api.Problems()
			cancel()
		}
	})
	cancel()
	if why := <-refused; err == nil && snapshot == nil {
		err = why
	}
	switch {
	case err != nil:
		return nil, Problems{}, fmt.Errorf("read from the API server: %w", err)
	case snapshot == nil:
		return nil, Problems{}, fmt.Errorf("read from the API server: no complete answer within %s: raise --timeout: %s",
			s.timeout, missing(api))
	}
	if s.WantServices {
		if s.Services, s.EndpointSlices, err = api.Services(whole); err != nil {
			found = append(found, fmt.Sprintf("API server: Services are not known, so the answer leaves them out: %v", err))
		}
	}
	return snapshot, Problems{Warnings: found}, nil
}

// untilRefused waits until the context is done, and ends it when the API server denies
// access or cannot be reached.
func untilRefused(ctx context.Context, api *watch.APIServer, end context.CancelFunc) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
		err := api.Refused()
		if err == nil {
			err = api.Unreachable()
		}
		if err != nil {
			end()
			return err
		}
	}
}

// Open loads the cluster for commands whose answer is wrong without all documents. Documents
// with errors end the command, unless --skip-bad is set.
func (s *Source) Open(ctx context.Context, stderr io.Writer) (*model.Snapshot, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	snapshot, p, err := s.Load(ctx)
	if err != nil {
		return nil, err
	}
	return snapshot, s.Report(stderr, p)
}

// Name names the source in a few words.
func (s *Source) Name() string {
	switch {
	case !s.Live():
		return strings.Join(s.Manifests, ", ")
	case s.Context != "":
		return "the cluster of context " + s.Context
	}
	return "the cluster of the kubeconfig file"
}
