// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/isthmus-net/isthmus/common/relay/otlp"
)

// otlpOptions are the flags of the export to a collector.
type otlpOptions struct {
	endpoint, headers, cluster string
	files                      otlp.Files
	insecure                   bool
	queue                      int
}

func (o *otlpOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.endpoint, "otlp-endpoint", "", "HOST:PORT of a collector that gets the exported flows as log records, over OTLP (gRPC with TLS)")
	f.StringVar(&o.files.CA, "otlp-ca", "", "file of the authority that issues the certificate of --otlp-endpoint; without it those of the system; read again for each connection")
	f.StringVar(&o.files.Cert, "otlp-cert", "", "file of a certificate for --otlp-endpoint, if the collector wants one")
	f.StringVar(&o.files.Key, "otlp-key", "", "file of the key of --otlp-cert")
	f.BoolVar(&o.insecure, "otlp-insecure", false, "send without TLS, to a loopback address only")
	f.StringVar(&o.headers, "otlp-headers-file", "", "file with lines NAME: VALUE, the headers of calls to --otlp-endpoint, such as a token; read again for each call; other users must not be able to read it")
	f.StringVar(&o.cluster, "otlp-cluster", "", "value of the attribute k8s.cluster.name")
	f.IntVar(&o.queue, "otlp-queue", 8192, "log records that wait while the collector does not answer; further ones are missed and counted")
}

// check reports everything that is wrong with the flags.
func (o *otlpOptions) check() error {
	if o.endpoint == "" {
		if o.headers != "" || o.cluster != "" || o.files != (otlp.Files{}) || o.insecure {
			return errors.New("--otlp-ca, --otlp-cert, --otlp-key, --otlp-insecure, --otlp-headers-file, --otlp-cluster: they need --otlp-endpoint")
		}
		return nil
	}
	var errs []error
	host, text, err := net.SplitHostPort(o.endpoint)
	port, wrong := strconv.ParseUint(text, 10, 16)
	if err != nil || wrong != nil || host == "" || port == 0 {
		errs = append(errs, fmt.Errorf("--otlp-endpoint %q: give HOST:PORT, as collector.example.org:4317", o.endpoint))
	}
	if a, err := netip.ParseAddr(host); o.insecure && (err != nil || !a.IsLoopback()) {
		errs = append(errs, fmt.Errorf("--otlp-insecure: flows go to other machines over TLS only: remove it, or give a loopback address, as --otlp-endpoint=127.0.0.1:4317"))
	}
	if o.insecure && o.files != (otlp.Files{}) {
		errs = append(errs, errors.New("--otlp-insecure: --otlp-ca, --otlp-cert and --otlp-key have no meaning without TLS: remove them or it"))
	}
	if (o.files.Cert == "") != (o.files.Key == "") {
		errs = append(errs, errors.New("--otlp-cert, --otlp-key: give both or none"))
	}
	if o.queue < 1 || o.queue > otlp.MaxQueue {
		errs = append(errs, fmt.Errorf("--otlp-queue %d: give 1 to %d", o.queue, otlp.MaxQueue))
	}
	return errors.Join(errs...)
}

// open returns what sends records; nil without an endpoint.
func (o *otlpOptions) open(registry prometheus.Registerer, log *slog.Logger) (*otlp.Exporter, error) {
	if o.endpoint == "" {
		return nil, nil
	}
	var transport credentials.TransportCredentials = insecure.NewCredentials()
	var headers *otlp.Headers
	var err error
	if !o.insecure {
		if transport, err = otlp.NewTransport(o.files); err != nil {
			return nil, fmt.Errorf("--otlp-ca, --otlp-cert: %w", err)
		}
	}
	if o.headers != "" {
		if headers, err = otlp.NewHeaders(o.headers, o.insecure); err != nil {
			return nil, fmt.Errorf("--otlp-headers-file: %w", err)
		}
	}
	return otlp.New(otlp.Config{Endpoint: o.endpoint, Transport: transport, Headers: headers, Cluster: o.cluster, Version: version, Queue: o.queue}, registry, log)
}
