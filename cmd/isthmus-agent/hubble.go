// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"github.com/isthmus-net/isthmus/cmd/daemon"
	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/hubble/explainer"
)

// hubbleOptions are the flags about Hubble's interface.
type hubbleOptions struct {
	listen  string
	files   hubble.Files
	history int
}

func (o *hubbleOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "hubble-listen", "", "ADDRESS:PORT, or :PORT for all addresses, on which relays read the flows of this node, and the objects that policy depends on, over mutual TLS; without it only root reads them, on the socket")
	f.StringVar(&o.files.Cert, "hubble-cert", "", "file of the certificate for --hubble-listen, with the DNS name "+hubble.ServerName+"; read again when it changes")
	f.StringVar(&o.files.Key, "hubble-key", "", "file of the key of --hubble-cert")
	f.StringVar(&o.files.CA, "hubble-ca", "", "file of the authority that issues the certificates of relays, with the DNS name "+hubble.RelayName)
	f.IntVar(&o.history, "hubble-history", hubble.DefaultHistory, "number of flows that the agent keeps for Hubble clients: about 0.5 MB for 1,000")
}

// port returns the port of --hubble-listen, or 0.
func (o *hubbleOptions) port() uint16 {
	address := o.listen
	if strings.HasPrefix(address, ":") {
		address = "0.0.0.0" + address
	}
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return 0
	}
	return a.Port()
}

func (o *hubbleOptions) check() error {
	var errs []error
	if o.history < hubble.MinHistory || o.history > hubble.MaxHistory {
		errs = append(errs, fmt.Errorf("--hubble-history %d: give %d to %d", o.history, hubble.MinHistory, hubble.MaxHistory))
	}
	switch f := o.files; {
	case o.listen == "" && f != (hubble.Files{}):
		errs = append(errs, errors.New("--hubble-cert, --hubble-key and --hubble-ca have no effect without --hubble-listen: give it or remove them"))
	case o.listen == "":
	case o.port() == 0:
		errs = append(errs, fmt.Errorf("--hubble-listen %q: give ADDRESS:PORT, or :PORT for all addresses, as :4244", o.listen))
	case f.Cert == "" || f.Key == "" || f.CA == "":
		errs = append(errs, errors.New("--hubble-listen: flows are served over mutual TLS only: give --hubble-cert, --hubble-key and --hubble-ca"))
	}
	return errors.Join(errs...)
}

// hubbleService opens the socket and, if configured, the port of Hubble's interface.
func (o *options) hubbleService(node *agent.Agent, log *slog.Logger) (service, error) {
	explains := explainer.New(explainer.Config{Snapshot: node.Snapshot, Dump: node.Dump, Brief: node.Brief, Lists: readLists()})
	server, err := hubble.New(hubble.Config{
		Beside: explains.Register, Newest: node.Newest(), Node: o.nodeName, Version: version, History: o.hubble.history, Port: o.hubble.port(),
		Source: node.Flows, Snapshot: node.Snapshot}, log)
	if err != nil {
		return service{}, daemon.UsageError{Err: err}
	}
	local, err := socket.Listen(socket.Hubble(o.socket))
	if err != nil {
		return service{}, err
	}
	listeners := []hubble.Listener{{Listener: local}}
	if o.hubble.listen != "" {
		identity, err := hubble.NewIdentity(o.hubble.files, log)
		if err != nil {
			return service{}, errors.Join(fmt.Errorf("--hubble-listen: %w", err), local.Close())
		}
		remote, err := net.Listen("tcp", o.hubble.listen)
		if err != nil {
			return service{}, errors.Join(fmt.Errorf("listen on --hubble-listen: %w", err), local.Close())
		}
		listeners = append(listeners, hubble.Listener{Listener: remote, Credentials: identity.Server(hubble.RelayName)})
	}
	return service{"hubble", func(ctx context.Context) error { return server.Serve(ctx, listeners...) }}, nil
}
