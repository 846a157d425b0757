// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/inspect"
)

func (e env) bundleCommand() *cobra.Command {
	s := &shared{}
	var file string
	var noDoctor bool
	c := &cobra.Command{
		Use:   "bundle -o FILE",
		Short: "Write what this node knows and enforces to an archive, for support",
		Long: `Write an archive of this node. It holds the status, the settings of the agent, the objects of the cluster that policies
use, and the endpoints. It also holds the decisions that were read back from the data path and their differences from
the intended ones, recent events, metrics, and the findings of doctor. It contains names, labels and addresses, but no
secrets: the agent reads none.

Every command that reads manifests also reads an archive (--manifests FILE). isthmusctl replay FILE runs
queries about the decisions in it. Only root may read the file.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			if file == "" {
				return cli.Usagef("bundle: give the file to write with -o, such as -o %s.tgz", "node")
			}
			b, err := e.dump(c.Context(), s, &isthmusv1.DumpRequest{})
			if err != nil {
				return err
			}
			if !noDoctor {
				if err := addDoctor(c.Context(), b); err != nil {
					return err
				}
			}
			size, err := writeFile(file, b)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(e.Stdout, "%s: node %s, %d pods of %d, %d policies, %d differences, %d bytes\n",
				file, b.About.Node, len(b.Endpoints), len(b.Cluster.Pods), len(b.Cluster.Policies), len(b.Drift), size)
			return err
		}),
	}
	s.registerConnection(c)
	c.Flags().StringVarP(&file, "output", "o", "", "the file to write; it must not exist")
	c.Flags().BoolVar(&noDoctor, "no-doctor", false, "leave out what doctor finds")
	return c
}

func (e env) dumpCommand() *cobra.Command {
	s := &shared{}
	c := &cobra.Command{
		Use:   "dump",
		Short: "Print what this node knows and enforces, as JSON",
		Long: `Print an object with the parts of an archive of isthmusctl bundle: about, cluster, endpoints, installed, drift and
counts. These are the objects of the cluster that policies use, the endpoints, the decisions that were read back from
the data path, their differences from the intended ones, and new flows by rule. It contains names, labels and addresses,
but no secrets.

The form of the parts may change with the version. isthmusctl replay FILE reads an archive, not this object.

Exit status: 0 the agent answered, 2 there is no answer.`,
		Example: `  isthmusctl dump | jq .drift`,
		Args:    cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			b, err := e.dump(c.Context(), s, &isthmusv1.DumpRequest{})
			if err != nil {
				return err
			}
			return b.WriteJSON(e.Stdout)
		}),
	}
	s.registerConnection(c)
	return c
}

// dump requests a Bundle from the agent.
func (e env) dump(ctx context.Context, s *shared, request *isthmusv1.DumpRequest) (b *inspect.Bundle, err error) {
	if s.timeout <= 0 {
		return nil, cli.Usagef("--timeout %s: give a duration above 0", s.timeout)
	}
	err = e.ask(ctx, s, func(ctx context.Context, agent isthmusv1.InspectClient) error {
		stream, err := agent.Dump(ctx, request)
		if err != nil {
			return err
		}
		var packed bytes.Buffer
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if packed.Len()+len(part.GetData()) > inspect.MaxSize {
				return fmt.Errorf("the answer is larger than %d bytes", inspect.MaxSize)
			}
			packed.Write(part.GetData())
		}
		b, err = inspect.Read(&packed)
		return err
	})
	return b, err
}

// addDoctor adds what doctor finds on the machine of this process.
func addDoctor(ctx context.Context, b *inspect.Bundle) error {
	cfg := defaultDoctor()
	cfg.AgentRuns, cfg.VXLANPort, cfg.MetricsPort = true, 4789, 9470
	useSettings(&cfg, b.About.Settings, func(string) bool { return false })
	var text bytes.Buffer
	if err := cli.EncodeKind(&text, "json", "DoctorReport", map[string]any{"findings": cfg.Examine(ctx)}); err != nil {
		return err
	}
	if b.Files == nil {
		b.Files = make(map[string][]byte)
	}
	b.Files["doctor.json"] = text.Bytes()
	return nil
}

// writeFile writes a new file, whole or not at all, and returns its size.
func writeFile(name string, b *inspect.Bundle) (size int64, err error) {
	if _, err := os.Lstat(name); err == nil {
		return 0, fmt.Errorf("%s exists: remove it, or give another file", name)
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".bundle-*") // mode 0600
	if err != nil {
		return 0, fmt.Errorf("create bundle: %w", err)
	}
	defer os.Remove(f.Name())
	if err := errors.Join(b.Write(f), f.Sync()); err != nil {
		return 0, fmt.Errorf("write bundle: %w", errors.Join(err, f.Close()))
	}
	info, err := f.Stat()
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, fmt.Errorf("write bundle: %w", err)
	}
	if err := os.Link(f.Name(), name); err != nil { // does not replace a file
		if err := os.Rename(f.Name(), name); err != nil {
			return 0, fmt.Errorf("write bundle: %w", err)
		}
	}
	return info.Size(), nil
}

// age returns how old a time is, for people.
func age(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return now.Sub(t).Round(time.Second).String() + " ago"
}
