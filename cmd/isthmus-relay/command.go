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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"

	"github.com/isthmus-net/isthmus/cmd/daemon"
	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/httpd"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/kube/review"
	"github.com/isthmus-net/isthmus/common/relay"
)

// options are the flags.
type options struct {
	listen             string
	server, client     hubble.Files
	agents             string
	nodes              map[string]string
	access, kubeconfig string
	audiences          []string
	http, page         string
	delay              time.Duration
	export             exportOptions
	log                daemon.Log
}

// run executes the command line and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := &options{}
	root := daemon.Command("isthmus-relay", "Serve the flows of all nodes over Hubble's interface", version, func(c *cobra.Command) error {
		if err := o.check(); err != nil {
			return daemon.UsageError{Err: err}
		}
		return o.serve(c.Context(), stdout, stderr)
	})
	o.register(root.Flags())
	return daemon.Run(ctx, root, args, stdout, stderr)
}

func (o *options) register(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "listen", "127.0.0.1:4245", "ADDRESS:PORT for clients; an address that is not loopback needs --tls-cert and --tls-key")
	f.StringVar(&o.access, "access", "transport", "transport: every client that may connect reads everything, and --tls-ca restricts the clients of other addresses than loopback; token: clients send tokens of the cluster, and RBAC decides what they read")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file for the API server with --access=token; without it the service account of the pod is used")
	f.StringArrayVar(&o.audiences, "token-audience", nil, "audience that tokens must have with --access=token; without any those of the API server (repeatable)")
	f.StringVar(&o.server.Cert, "tls-cert", "", "file of the certificate for clients; read again when it changes")
	f.StringVar(&o.server.Key, "tls-key", "", "file of the key of --tls-cert")
	f.StringVar(&o.server.CA, "tls-ca", "", "file of the authority that issues the certificates of clients with --access=transport, with the DNS name "+clientName)
	f.StringVar(&o.agents, "agents", "", "HOST:PORT of any agent, such as a Service of all agents: it tells the relay which nodes exist")
	f.StringToStringVar(&o.nodes, "node", nil, "NAME=HOST:PORT of the agent of a node, or NAME=unix://PATH, instead of --agents (repeatable)")
	f.StringVar(&o.client.Cert, "agent-cert", "", "file of the certificate for agents, with the DNS name "+hubble.RelayName+"; read again when it changes")
	f.StringVar(&o.client.Key, "agent-key", "", "file of the key of --agent-cert")
	f.StringVar(&o.client.CA, "agent-ca", "", "file of the authority that issues the certificates of agents, with the DNS name "+hubble.ServerName)
	f.StringVar(&o.http, "http-address", "127.0.0.1:9472", "address of /metrics, /healthz and /readyz; empty disables them")
	f.StringVar(&o.page, "page-address", "", "ADDRESS:PORT of web pages about denied flows and reachability, with --access=token; an address that is not loopback needs --tls-cert and --tls-key")
	f.DurationVar(&o.delay, "shutdown-delay", 0, "how long to serve after a signal to stop, while /readyz already fails; at most 1m")
	o.export.register(f)
	o.log.Register(f)
}

// clientName is the DNS name in the certificates of clients.
const clientName = "client.hubble.isthmus.dev"

// check reports everything that is wrong with the flags.
func (o *options) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	complete := func(f hubble.Files) bool { return f.Cert != "" && f.Key != "" && f.CA != "" }
	errs = append(errs, o.checkAccess())
	remote := o.agents != "" && !strings.HasPrefix(o.agents, "unix:")
	for name, address := range o.nodes {
		if name == "" || !isAgent(address) {
			wrong("--node %s=%s: give NAME=HOST:PORT, or NAME=unix:///PATH", name, address)
		}
		remote = remote || !strings.HasPrefix(address, "unix:")
	}
	if o.agents != "" && !isAgent(o.agents) {
		wrong("--agents %q: give HOST:PORT, as isthmus-agents.isthmus-system.svc:4244", o.agents)
	}
	switch {
	case (o.agents == "") == (len(o.nodes) == 0):
		wrong("give either --agents or --node")
	case remote && !complete(o.client):
		wrong("agents serve flows over mutual TLS only: give --agent-cert, --agent-key and --agent-ca")
	}
	if err := daemon.CheckHTTPAddress(o.http); err != nil {
		wrong("%w", err)
	}
	if o.delay < 0 || o.delay > time.Minute {
		wrong("--shutdown-delay %s: give 0s to 1m", o.delay)
	}
	errs = append(errs, o.checkPage(), o.export.check(), o.log.Check())
	return errors.Join(errs...)
}

// isAgent reports whether a text is HOST:PORT or the absolute path of a socket.
func isAgent(text string) bool {
	if path, ok := strings.CutPrefix(text, "unix://"); ok {
		return strings.HasPrefix(path, "/")
	}
	host, number, err := net.SplitHostPort(text)
	port, wrong := strconv.ParseUint(number, 10, 16)
	return err == nil && wrong == nil && host != "" && port > 0
}

// checkAccess reports what is wrong with the flags that decide who reads what.
func (o *options) checkAccess() error {
	a, err := netip.ParseAddrPort(o.listen)
	if err != nil {
		return fmt.Errorf("--listen %q: give ADDRESS:PORT, as 127.0.0.1:4245", o.listen)
	}
	f := o.server
	switch o.access {
	case accessToken:
		switch {
		case f.CA != "":
			return errors.New("--tls-ca: with --access=token clients need no certificate: remove it")
		case (f.Cert == "") != (f.Key == ""):
			return errors.New("--tls-cert, --tls-key: give both or none")
		case !a.Addr().IsLoopback() && f.Cert == "":
			return fmt.Errorf("--listen %s: other machines send tokens over TLS only: give --tls-cert and --tls-key, or a loopback address", o.listen)
		}
		return nil
	case accessTransport:
		switch {
		case o.kubeconfig != "" || len(o.audiences) > 0:
			return errors.New("--kubeconfig, --token-audience: they need --access=token")
		case f != hubble.Files{} && (f.Cert == "" || f.Key == "" || f.CA == ""):
			return errors.New("--tls-cert, --tls-key, --tls-ca: give all three or none")
		case !a.Addr().IsLoopback() && f == hubble.Files{}:
			return fmt.Errorf("--listen %s: other machines read flows over mutual TLS only: give --tls-cert, --tls-key and --tls-ca, or a loopback address", o.listen)
		}
		return nil
	}
	return fmt.Errorf("--access %q: give transport or token", o.access)
}

// checkPage reports what is wrong with --page-address.
func (o *options) checkPage() error {
	if o.page == "" {
		return nil
	}
	a, err := netip.ParseAddrPort(o.page)
	switch {
	case err != nil:
		return fmt.Errorf("--page-address %q: give ADDRESS:PORT, as 127.0.0.1:4246, or nothing", o.page)
	case o.access != accessToken:
		return errors.New("--page-address: browsers send tokens: give --access=token")
	case !a.Addr().IsLoopback() && o.server.Cert == "":
		return fmt.Errorf("--page-address %s: other machines send tokens over TLS only: give --tls-cert and --tls-key, or a loopback address", o.page)
	}
	return nil
}

// The values of --access.
const (
	accessTransport = "transport"
	accessToken     = "token"
)

// credentials returns the TLS credentials for agents and for clients; nil without certificates.
func (o *options) credentials(log *slog.Logger) (agents, clients credentials.TransportCredentials, err error) {
	if o.client != (hubble.Files{}) {
		identity, err := hubble.NewIdentity(o.client, log)
		if err != nil {
			return nil, nil, fmt.Errorf("--agent-cert: %w", err)
		}
		agents = identity.Client(hubble.ServerName)
	}
	if o.server != (hubble.Files{}) {
		identity, err := hubble.NewIdentity(o.server, log)
		if err != nil {
			return nil, nil, fmt.Errorf("--tls-cert: %w", err)
		}
		if clients = identity.Public(); o.access == accessTransport {
			clients = identity.Server(clientName)
		}
	}
	return agents, clients, nil
}

// checker returns the access checker for clients; nil if every client may read everything.
func (o *options) checker() (*access.Checker, error) {
	if o.access != accessToken {
		return nil, nil
	}
	api, err := review.New(review.Config{Kubeconfig: o.kubeconfig, UserAgent: "isthmus-relay", Audiences: o.audiences})
	if err != nil {
		return nil, err
	}
	return access.NewChecker(api, nil), nil
}

// serve runs the relay until the context is done.
func (o *options) serve(ctx context.Context, stdout, stderr io.Writer) error {
	log := o.log.Logger(stderr)
	agents, clients, err := o.credentials(log)
	if err != nil {
		return err
	}
	checker, err := o.checker()
	if err != nil {
		return err
	}
	pool := relay.NewPool(agents, log)
	defer pool.Close()
	if err := pool.Set(o.nodes); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen on --listen: %w", err)
	}
	r := relay.New(pool, checker, version, log)
	serving, end := o.delayed(ctx, r, log)
	defer end()
	beside, err := o.beside(serving, r, stdout, log)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	discovered := make(chan error, 1)
	go func() {
		var err error
		if o.agents != "" {
			if err = pool.Discover(serving, o.agents); err != nil {
				end()
			}
		}
		discovered <- err
	}()
	log.Info("relay starts", "version", version, "listen", o.listen, "access", o.access)
	err = r.Serve(serving, hubble.Listener{Listener: listener, Credentials: clients})
	end()
	err = errors.Join(err, <-discovered)
	beside()
	daemon.LogEnd(log, "relay has stopped", err)
	return err
}

// delayed returns a context that ends --shutdown-delay after another one, in which the relay is not ready.
func (o *options) delayed(ctx context.Context, r *relay.Relay, log *slog.Logger) (context.Context, context.CancelFunc) {
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		r.Stopping()
		log.Info("relay stops", "delay", o.delay)
		time.AfterFunc(o.delay, end)
	})
	return serving, end
}

// beside starts what runs beside the server of flows, until the context is done. wait waits for its end.
func (o *options) beside(ctx context.Context, r *relay.Relay, stdout io.Writer, log *slog.Logger) (wait func(), err error) {
	exports, err := o.export.open(r.Metrics(), stdout, log)
	if err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	if o.http != "" {
		listener, err := net.Listen("tcp", o.http)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen on --http-address: %w", err), exports.close())
		}
		running.Go(func() {
			if err := httpd.Serve(ctx, listener, r.Handler(), httpd.Defaults()); err != nil {
				log.Error("serve metrics and health", "error", err)
			}
		})
	}
	if o.page != "" {
		if err := o.servePage(ctx, r, &running, log); err != nil {
			return nil, errors.Join(err, exports.close())
		}
	}
	running.Go(func() { r.Watch(ctx) })
	running.Go(func() { exports.run(ctx, r.Follow) })
	return func() {
		running.Wait()
		if err := exports.close(); err != nil {
			log.Error("close the export of flows", "error", err)
		}
	}, nil
}
