// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/httpd"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/relay"
	"github.com/isthmus-net/isthmus/common/relay/web"
)

// servePage starts to serve web pages until the context is done.
func (o *options) servePage(ctx context.Context, r *relay.Relay, running *sync.WaitGroup, log *slog.Logger) error {
	handler, err := web.New(r, r)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.page)
	if err != nil {
		return fmt.Errorf("listen on --page-address: %w", err)
	}
	if o.server.Cert != "" {
		identity, err := hubble.NewIdentity(o.server, log)
		if err != nil {
			return errors.Join(fmt.Errorf("--tls-cert: %w", err), listener.Close())
		}
		listener = tls.NewListener(listener, identity.Web())
	}
	limits := httpd.Defaults()
	limits.Write = time.Minute // the first page about a large cluster
	limits.Connections = 256   // a browser opens six
	running.Go(func() {
		if err := httpd.Serve(ctx, listener, handler, limits); err != nil {
			log.Error("serve web pages", "error", err)
		}
	})
	return nil
}
