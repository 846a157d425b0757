// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"

	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/relay"
)

// options are the flags.
type options struct {
	listen              string
	server, client      hubble.Files
	agents              string
	nodes               map[string]string
	logLevel, logFormat string
}

// usageError reports an invalid command line.
type usageError struct{ error }

// run executes the command line and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := command(stdout, stderr)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "isthmus-relay: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	var usage usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

func command(stdout, stderr io.Writer) *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:           "isthmus-relay",
		Short:         "Serve the flows of all nodes over Hubble's interface",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageError{err}
			}
			return o.serve(c.Context(), stderr)
		},
	}
	o.register(root.Flags())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w: see isthmus-relay --help", err)}
	})
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(stdout, "isthmus-relay %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
			return err
		},
	})
	return root
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q: see %s --help", args[0], c.CommandPath())}
	}
	return nil
}

func (o *options) register(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "listen", "127.0.0.1:4245", "ADDRESS:PORT for clients; an address that is not loopback needs --tls-cert, --tls-key and --tls-ca")
	f.StringVar(&o.server.Cert, "tls-cert", "", "file of the certificate for clients; read again when it changes")
	f.StringVar(&o.server.Key, "tls-key", "", "file of the key of --tls-cert")
	f.StringVar(&o.server.CA, "tls-ca", "", "file of the authority that issues the certificates of clients, with the DNS name "+clientName)
	f.StringVar(&o.agents, "agents", "", "HOST:PORT of any agent, such as a Service of all agents: it tells the relay which nodes exist")
	f.StringToStringVar(&o.nodes, "node", nil, "NAME=HOST:PORT of the agent of a node, or NAME=unix://PATH, instead of --agents (repeatable)")
	f.StringVar(&o.client.Cert, "agent-cert", "", "file of the certificate for agents, with the DNS name "+hubble.RelayName+"; read again when it changes")
	f.StringVar(&o.client.Key, "agent-key", "", "file of the key of --agent-cert")
	f.StringVar(&o.client.CA, "agent-ca", "", "file of the authority that issues the certificates of agents, with the DNS name "+hubble.ServerName)
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
}

// clientName is the DNS name in the certificates of clients.
const clientName = "client.hubble.isthmus.dev"

// check reports everything that is wrong with the flags.
func (o *options) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	complete := func(f hubble.Files) bool { return f.Cert != "" && f.Key != "" && f.CA != "" }
	none := hubble.Files{}
	a, err := netip.ParseAddrPort(o.listen)
	switch {
	case err != nil:
		wrong("--listen %q: give ADDRESS:PORT, as 127.0.0.1:4245", o.listen)
	case o.server != none && !complete(o.server):
		wrong("--tls-cert, --tls-key, --tls-ca: give all three or none")
	case !a.Addr().IsLoopback() && o.server == none:
		wrong("--listen %s: other machines read flows over mutual TLS only: give --tls-cert, --tls-key and --tls-ca, or a loopback address", o.listen)
	}
	remote := o.agents != "" && !strings.HasPrefix(o.agents, "unix:")
	for name, address := range o.nodes {
		if name == "" || address == "" {
			wrong("--node %s=%s: give NAME=HOST:PORT", name, address)
		}
		remote = remote || !strings.HasPrefix(address, "unix:")
	}
	switch {
	case (o.agents == "") == (len(o.nodes) == 0):
		wrong("give either --agents or --node")
	case remote && !complete(o.client):
		wrong("agents serve flows over mutual TLS only: give --agent-cert, --agent-key and --agent-ca")
	}
	if err := new(slog.LevelVar).UnmarshalText([]byte(o.logLevel)); err != nil {
		wrong("--log-level %q: give debug, info, warn or error", o.logLevel)
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		wrong("--log-format %q: give text or json", o.logFormat)
	}
	return errors.Join(errs...)
}

func (o *options) logger(w io.Writer) *slog.Logger {
	level := new(slog.LevelVar)
	_ = level.UnmarshalText([]byte(o.logLevel)) // validated before
	h := &slog.HandlerOptions{Level: level}
	if o.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, h))
	}
	return slog.New(slog.NewTextHandler(w, h))
}

// serve runs the relay until the context is done.
func (o *options) serve(ctx context.Context, stderr io.Writer) error {
	log := o.logger(stderr)
	var agents, clients credentials.TransportCredentials
	if o.client != (hubble.Files{}) {
		identity, err := hubble.NewIdentity(o.client, log)
		if err != nil {
			return fmt.Errorf("--agent-cert: %w", err)
		}
		agents = identity.Client(hubble.ServerName)
	}
	if o.server != (hubble.Files{}) {
		identity, err := hubble.NewIdentity(o.server, log)
		if err != nil {
			return fmt.Errorf("--tls-cert: %w", err)
		}
		clients = identity.Server(clientName)
	}
	pool := relay.NewPool(agents, log)
	defer pool.Close()
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen on --listen: %w", err)
	}
	if err := pool.Set(o.nodes); err != nil {
		return errors.Join(err, listener.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	discovered := make(chan error, 1)
	go func() {
		var err error
		if o.agents != "" {
			if err = pool.Discover(ctx, o.agents); err != nil {
				cancel()
			}
		}
		discovered <- err
	}()
	log.Info("relay starts", "version", version, "listen", o.listen)
	err = relay.New(pool, version, log).Serve(ctx, hubble.Listener{Listener: listener, Credentials: clients})
	cancel()
	err = errors.Join(err, <-discovered)
	log.Info("relay has stopped", "error", err)
	return err
}
