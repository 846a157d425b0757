// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	collectorv1 "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	commonv1 "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/slim/otlp/logs/v1"
	resourcev1 "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// method is the call of OTLP for logs.
const method = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"

// never is the pause after a failure that a retry does not repair.
const never time.Duration = -1

// maxText bounds texts of a collector in the log of this process, in bytes.
const maxText = 300

// request returns the request with a batch: a resource for each node.
func (e *Exporter) request(b *batch) *collectorv1.ExportLogsServiceRequest {
	byNode := make(map[string]*logsv1.ScopeLogs)
	r := &collectorv1.ExportLogsServiceRequest{}
	for _, i := range b.items {
		logs := byNode[i.node]
		if logs == nil {
			logs = &logsv1.ScopeLogs{Scope: &commonv1.InstrumentationScope{Name: "github.com/isthmus-net/isthmus", Version: e.cfg.Version}}
			byNode[i.node] = logs
			var a attributes
			a.text("service.name", "isthmus-relay")
			a.text("service.version", e.cfg.Version)
			a.text("k8s.cluster.name", e.cfg.Cluster)
			a.text("k8s.node.name", i.node)
			r.ResourceLogs = append(r.ResourceLogs, &logsv1.ResourceLogs{Resource: &resourcev1.Resource{Attributes: a}, ScopeLogs: []*logsv1.ScopeLogs{logs}})
		}
		logs.LogRecords = append(logs.LogRecords, i.record)
	}
	return r
}

// call sends a request. After a failure, delay is the pause that the collector asks for: 0 for none, never if it refuses
// the request for good.
func (e *Exporter) call(ctx context.Context, r *collectorv1.ExportLogsServiceRequest) (
	answer *collectorv1.ExportLogsServiceResponse, delay time.Duration, err error,
) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer = &collectorv1.ExportLogsServiceResponse{}
	if err = e.conn.Invoke(ctx, method, r, answer); err == nil {
		return answer, 0, nil
	}
	s := status.Convert(err)
	return nil, retryAfter(s), fmt.Errorf("%s: %s", s.Code(), e.harmless(s.Message()))
}

// retryAfter returns the pause after a failure, by the specification of OTLP.
func retryAfter(s *status.Status) time.Duration {
	asked := never
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			asked = min(max(info.GetRetryDelay().AsDuration(), 0), time.Minute)
		}
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
		return max(asked, 0)
	case codes.ResourceExhausted: // without the information, the request is too large
		return asked
	}
	return never
}

// harmless returns a text of the collector for the log: short, and without secrets that the collector repeats.
func (e *Exporter) harmless(text string) string {
	if e.cfg.Headers != nil {
		text = e.cfg.Headers.hide(text)
	}
	if len(text) > maxText {
		text = text[:maxText] + "..."
	}
	return text
}

// Files are the files of TLS, as PEM. CA is the authority of the collector, empty for those of the system. Cert and Key
// are the certificate of this process, if the collector wants one. They are read again for each connection.
type Files struct{ CA, Cert, Key string }

// config reads the files.
func (f Files) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		text, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("read certificate authority: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read certificate authority %s: the file has no certificate in PEM", f.CA)
		}
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("read certificate %s and key %s: %w", f.Cert, f.Key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// transport reads its files at each connection.
type transport struct {
	credentials.TransportCredentials
	files Files
}

// NewTransport returns credentials that verify the collector. It reports files that cannot be used.
func NewTransport(f Files) (credentials.TransportCredentials, error) {
	c, err := f.config()
	if err != nil {
		return nil, err
	}
	return &transport{credentials.NewTLS(c), f}, nil
}

// ClientHandshake connects with the files as of now.
func (t *transport) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, err := t.files.config()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(c).ClientHandshake(ctx, authority, conn)
}

// ServerHandshake implements TransportCredentials.
func (t *transport) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are those of a client")
}

// Clone implements TransportCredentials.
func (t *transport) Clone() credentials.TransportCredentials {
	return &transport{t.TransportCredentials.Clone(), t.files}
}
