// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/hubble/hubbletest"
)

// write writes a file and returns its name.
func write(t *testing.T, file, text string) string {
	t.Helper()
	next := file + ".next" // replaced at once, as kubelets do
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestParseHeaders(t *testing.T) {
	for text, want := range map[string]string{
		"authorization: Bearer abc\n\n# comment\nX-Tenant : shop:1\n": "map[authorization:Bearer abc x-tenant:shop:1]",
		"":                       "there is no header",
		"# nothing\n":            "there is no header",
		"authorization\n":        "line 1: give NAME: VALUE",
		"a: b\nauthorization:\n": "line 2: give NAME: VALUE",
		"a b: c":                 "line 1: the name is no text header",
		"grpc-timeout: 1":        "line 1: the name is no text header",
		"a-bin: x":               "line 1: the name is no text header",
		":authority: x":          "line 1: the name is no text header",
		"a: x\ny: caf\u00e9\n":   "line 2: the value has characters",
		"a: x\x00":               "line 1: the value has characters",
		"a: x\nA: y":             "line 2: the header appears twice",
		strings.Repeat("h: x\n", 1) + many(maxHeaders): "more than 32 headers",
	} {
		got, err := parseHeaders(text)
		if text := fmt.Sprint(got) + fmt.Sprint(err); !strings.Contains(text, want) {
			t.Errorf("%q: %s, want %s", text, text, want)
		}
	}
}

func many(n int) (text string) {
	for i := range n {
		text += fmt.Sprintf("h%d: x\n", i)
	}
	return text
}

// FuzzParseHeaders checks that accepted headers can be sent, and that errors do not repeat values.
func FuzzParseHeaders(f *testing.F) {
	f.Add("authorization: Bearer secretsecret\n", "x")
	f.Add("a: b", "secretsecret\nmore")
	f.Fuzz(func(t *testing.T, text, value string) {
		all, err := parseHeaders(text + "\nname: " + value)
		for name, v := range all {
			if !headerName.MatchString(name) || v == "" || strings.TrimFunc(v, func(r rune) bool { return r >= ' ' && r <= '~' }) != "" {
				t.Errorf("%q: %q", name, v)
			}
		}
		if v := strings.TrimSpace(value); err != nil && len(v) > 12 && strings.Contains(err.Error(), v) && !strings.Contains("line 1: give NAME: VALUE there is no header: give lines of NAME: VALUE", v) {
			t.Errorf("the error repeats the value: %v", err)
		}
	})
}

func TestHeaderFile(t *testing.T) {
	onLinux(t)
	dir := t.TempDir()
	good := write(t, filepath.Join(dir, "good"), "authorization: Bearer abcdefgh")
	open := write(t, filepath.Join(dir, "open"), "authorization: Bearer abcdefgh")
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		good: "", open: "every user may read or write", filepath.Join(dir, "none"): "no such file", dir: "no regular file",
		write(t, filepath.Join(dir, "large"), strings.Repeat("x", maxHeaderFile+1)): "no regular file of at most 16384 bytes",
		write(t, filepath.Join(dir, "bad"), "hush hush secret"):                     "line 1: give NAME: VALUE",
	} {
		_, err := NewHeaders(file, false)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush")) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
}

// files returns the files with which a client accepts a server, and shows its own certificate.
func files(f hubble.Files) Files { return Files{CA: f.CA, Cert: f.Cert, Key: f.Key} }

// TestTLS sends records over TLS, with a token from a file that is replaced, to a collector that wants a certificate and
// repeats tokens in its errors. No token is in the log.
func TestTLS(t *testing.T) {
	onLinux(t)
	dir := t.TempDir()
	authority := hubbletest.NewAuthority(t)
	server, err := hubble.NewIdentity(authority.Write(t.TempDir(), "localhost", x509.ExtKeyUsageServerAuth), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c := newCollector(t, "127.0.0.1:0", server.Server("otlp.client"))
	endpoint := strings.Replace(c.address, "127.0.0.1", "localhost", 1)
	const first, second = "first-secret-token", "second-secret-token"
	file := write(t, filepath.Join(dir, "headers"), "authorization: Bearer "+first+"\nx-tenant: shop\n")
	c.setAnswer(func(int) (*collectorv1.ExportLogsServiceResponse, error) {
		if got := strings.Join(c.headers.Get("authorization"), ""); got != "Bearer "+second {
			return nil, status.Errorf(codes.Unavailable, "unknown token %s in %q", strings.TrimPrefix(got, "Bearer "), got)
		}
		return nil, nil
	})
	client := authority.Write(t.TempDir(), "otlp.client", x509.ExtKeyUsageClientAuth)
	transport, err := NewTransport(files(client))
	if err != nil {
		t.Fatal(err)
	}
	headers, err := NewHeaders(file, false)
	if err != nil {
		t.Fatal(err)
	}
	e := run(t, Config{Endpoint: endpoint, Transport: transport, Headers: headers})
	e.Add(answer(0))
	eventually(t, "the first token is refused", func() (bool, string) { return strings.Contains(e.log.String(), "unknown token"), e.log.String() })
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	before := e.counted()["calls_total retried"]
	eventually(t, "calls wait for the file", func() (bool, string) {
		return e.counted()["calls_total retried"] > before+3, e.log.String()
	})
	write(t, file, "authorization: Bearer "+second)
	eventually(t, "the record", func() (bool, string) {
		ids, _ := c.received()
		return len(ids) == 1, e.log.String()
	})
	e.stop()
	if text := e.log.String(); strings.Contains(text, "secret-token") || !strings.Contains(text, "unknown token (hidden)") {
		t.Errorf("log\n%s", text)
	}
	if tenant := c.headers.Get("x-tenant"); len(tenant) != 0 { // the new file has none
		t.Errorf("tenant %q", tenant)
	}
}

// TestTLSRefusals checks that no record goes to a server that is not the collector.
func TestTLSRefusals(t *testing.T) {
	onLinux(t)
	authority, other := hubbletest.NewAuthority(t), hubbletest.NewAuthority(t)
	client := authority.Write(t.TempDir(), "otlp.client", x509.ExtKeyUsageClientAuth)
	server := func(a *hubbletest.Authority, name string) *collector {
		i, err := hubble.NewIdentity(a.Write(t.TempDir(), name, x509.ExtKeyUsageServerAuth), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return newCollector(t, "127.0.0.1:0", i.Public())
	}
	transport, err := NewTransport(files(client))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*collector{"another authority": server(other, "localhost"), "another name": server(authority, "example.org"), "no TLS": newCollector(t, "127.0.0.1:0", insecure.NewCredentials())} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := run(t, Config{Endpoint: strings.Replace(c.address, "127.0.0.1", "localhost", 1), Transport: transport})
			e.Add(answer(0))
			eventually(t, name, func() (bool, string) { return e.counted()["calls_total retried"] > 1, e.log.String() })
			if ids, _ := c.received(); len(ids) > 0 {
				t.Error("records were sent")
			}
		})
	}
	for want, f := range map[string]Files{"read certificate authority": {CA: "/nonexistent"}, "no certificate in PEM": {CA: client.Key}, "read certificate": {Cert: client.CA, Key: client.Key}} {
		if _, err := NewTransport(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", f, err, want)
		}
	}
	// Headers never go over a connection without TLS.
	headers, err := NewHeaders(write(t, filepath.Join(t.TempDir(), "h"), "a: secret"), false)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := New(Config{Endpoint: "127.0.0.1:1", Transport: insecure.NewCredentials(), Headers: headers, Queue: 1}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler)); err == nil {
		_, _, err = e.call(context.Background(), e.request(&batch{}))
		t.Errorf("headers without TLS are accepted: %v", err)
	}
}

// onLinux skips a test of files that are used as on Linux, where isthmus-relay runs.
func onLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("isthmus-relay runs on Linux")
	}
}
