// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	commonv1 "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/slim/otlp/logs/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/hubble/hubbletest"
	"github.com/isthmus-net/isthmus/common/model"
)

// otlpServer decodes the log records that it gets, from clients with a token.
type otlpServer struct {
	address, token string
	stop           func()
	mutex          sync.Mutex
	records        []*logsv1.LogRecord
	resources      []*commonv1.KeyValue
}

// serveOTLP starts an otlpServer.
func serveOTLP(t *testing.T, address, token string, c credentials.TransportCredentials) *otlpServer {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(c))
	o := &otlpServer{address: l.Addr().String(), token: token, stop: sync.OnceFunc(s.Stop)}
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "opentelemetry.proto.collector.logs.v1.LogsService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: o.export}}}, o)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(o.stop)
	return o
}

func (o *otlpServer) export(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var r collectorv1.ExportLogsServiceRequest
	if err := decode(&r); err != nil {
		return nil, err
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if got := metadata.ValueFromIncomingContext(ctx, "authorization"); !slices.Equal(got, []string{"Bearer " + o.token}) {
		return nil, status.Errorf(codes.Unauthenticated, "no such token: %q", got)
	}
	for _, l := range r.GetResourceLogs() {
		o.resources = l.GetResource().GetAttributes()
		for _, s := range l.GetScopeLogs() {
			o.records = append(o.records, s.GetLogRecords()...)
		}
	}
	return &collectorv1.ExportLogsServiceResponse{}, nil
}

func text(list []*commonv1.KeyValue, key string) string {
	for _, a := range list {
		if a.GetKey() == key {
			if s, ok := a.GetValue().GetValue().(*commonv1.AnyValue_IntValue); ok {
				return fmt.Sprint(s.IntValue)
			}
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// flows returns the flows of the records, in the words of the file export.
func (o *otlpServer) flows() (all []string) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	for _, r := range o.records {
		a := r.GetAttributes()
		if r.GetEventName() == "isthmus.flow" {
			all = append(all, fmt.Sprintf("%s/%s %s*%s %s %d", text(a, "source.k8s.namespace.name"), text(a, "source.k8s.pod.name"), text(a, "destination.port"), text(a, "isthmus.flow.count"),
				text(a, "isthmus.verdict"), r.GetTimeUnixNano()))
		}
	}
	return all
}

// received returns the number of records.
func (o *otlpServer) received() int {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return len(o.records)
}

// TestProcessSendsToCollector runs a relay with a collector that starts late, stops and starts again. Each flow arrives once, as
// the agent has reported it. Clients get flows meanwhile.
func TestProcessSendsToCollector(t *testing.T) {
	authority, api := hubbletest.NewAuthority(t), newAPIServer(t)
	address, endpoint := freePort(t), freePort(t)
	store := serveFlows(t, authority, address)
	const token = "token-of-the-collector"
	headers := filepath.Join(t.TempDir(), "headers")
	if err := os.WriteFile(headers, []byte("authorization: Bearer "+token), 0o600); err != nil {
		t.Fatal(err)
	}
	files := authority.Write(t.TempDir(), "localhost", x509.ExtKeyUsageServerAuth)
	identity, err := hubble.NewIdentity(files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, authority, api, address, "--otlp-endpoint="+strings.Replace(endpoint, "127.0.0.1", "localhost", 1), "--otlp-ca="+files.CA,
		"--otlp-headers-file="+headers, "--otlp-cluster=prod", `--export-deny={"destination_port":["22"]}`)
	p.probed(http.StatusOK, "ok")
	var want []string
	add := func(ports ...uint16) {
		for _, port := range ports {
			e := event("web", port)
			store.Add([]model.FlowEvent{e})
			if port != 22 {
				want = append(want, fmt.Sprintf("shop/web %d*1 forwarded %d", port, e.Time.UnixNano()))
			}
		}
	}
	eventually(t, "the relay follows", func() (bool, string) {
		store.Add([]model.FlowEvent{event("web", 1)})
		_, text := p.get("/metrics")
		return !strings.Contains(text, "isthmus_relay_export_flows_total 0\n"), text
	})
	add(2, 22, 3)
	eventually(t, "calls fail", func() (bool, string) {
		_, text := p.get("/metrics")
		return !strings.Contains(text, `isthmus_relay_otlp_calls_total{result="retried"} 0`), text
	})
	last := func(o *otlpServer) func() (bool, string) {
		return func() (bool, string) {
			got := slices.DeleteFunc(o.flows(), func(s string) bool { return strings.HasPrefix(s, "shop/web 1*") })
			return slices.Equal(got, want), fmt.Sprintf("%q, want %q", got, want)
		}
	}
	collector := serveOTLP(t, endpoint, token, identity.Public())
	eventually(t, "the first flows", last(collector))
	if r := collector.resources; text(r, "k8s.node.name") != "n1" || text(r, "k8s.cluster.name") != "prod" || text(r, "service.name") != "isthmus-relay" {
		t.Errorf("resource %v", r)
	}
	eventually(t, "the relay knows what has arrived", func() (bool, string) { // else it would send this again
		_, text := p.get("/metrics")
		return strings.Contains(text, fmt.Sprintf("isthmus_relay_otlp_sent_total %d\n", collector.received())), text
	})
	collector.stop()
	want = nil
	add(4, 5)
	collector = serveOTLP(t, endpoint, token, identity.Public())
	add(6)
	eventually(t, "flows of the time without a collector", last(collector))
	add(7)
	eventually(t, "the export has it", func() (bool, string) { // a stop sends what the relay has
		_, text := p.get("/metrics")
		return strings.Contains(text, "isthmus_relay_otlp_queue 1\n") || len(collector.flows()) == len(want), text
	})
	p.stop()
	eventually(t, "the last flow", last(collector))
	if log := p.output.Bytes(); bytes.Contains(log, []byte(token)) {
		t.Errorf("the token is in the log\n%s", log)
	}
}
