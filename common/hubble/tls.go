// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"

	"google.golang.org/grpc/credentials"
)

// ServerName is the DNS name in the certificates of agents. RelayName is the name in the certificates of
// clients that may read the flows of agents.
const (
	ServerName = "agent.hubble.isthmus.dev"
	RelayName  = "relay.hubble.isthmus.dev"
)

// Files are the files of a certificate, its key, and the authority of the other side, as PEM. Without an authority
// only Public serves.
type Files struct{ Cert, Key, CA string }

// pair is the content of Files.
type pair struct {
	cert  tls.Certificate
	roots *x509.CertPool
}

// Identity is the certificate of this process and the authority of the other side. It reads the files again
// after they have changed. While they are unreadable or do not fit together, the last ones remain in use.
type Identity struct {
	files Files
	log   *slog.Logger

	mutex  sync.Mutex
	stamps [3]string // of the files in use
	pair   *pair
}

// NewIdentity reads the files. The errors name the file.
func NewIdentity(f Files, log *slog.Logger) (*Identity, error) {
	i := &Identity{files: f, log: log}
	var err error
	if i.stamps, err = f.stamps(); err != nil {
		return nil, err
	}
	i.pair, err = f.read()
	return i, err
}

// stamps changes with the content of the files.
func (f *Files) stamps() (all [3]string, err error) {
	for i, name := range []string{f.Cert, f.Key, f.CA} {
		if name == "" {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return all, fmt.Errorf("read certificate files: %w", err)
		}
		all[i] = fmt.Sprint(info.ModTime().UnixNano(), info.Size())
	}
	return all, nil
}

func (f *Files) read() (*pair, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("read certificate %s and key %s: %w", f.Cert, f.Key, err)
	}
	p := &pair{cert: cert, roots: x509.NewCertPool()}
	if f.CA == "" {
		return p, nil
	}
	text, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("read certificate authority: %w", err)
	}
	if !p.roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("read certificate authority %s: the file has no certificate in PEM", f.CA)
	}
	return p, nil
}

// current returns the content of the files, read again if they have changed.
func (i *Identity) current() *pair {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	stamps, err := i.files.stamps()
	if err == nil && stamps != i.stamps {
		var p *pair
		if p, err = i.files.read(); err == nil {
			i.pair, i.stamps = p, stamps
		}
	}
	if err != nil {
		i.log.Warn("read certificates again; the last ones remain in use", "error", err)
	}
	return i.pair
}

// Server returns credentials that accept clients whose certificate has the name.
func (i *Identity) Server(clientName string) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			p := i.current()
			return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{p.cert},
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: p.roots, VerifyConnection: named(clientName)}, nil
		}})
}

// Public returns credentials that accept all clients. The server must authenticate them by other means.
func (i *Identity) Public() credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &i.current().cert, nil }})
}

// Web returns the configuration of a server of web pages, which accepts all clients as Public does.
func (i *Identity) Web() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &i.current().cert, nil }}
}

// Client returns credentials that accept servers whose certificate has the name.
func (i *Identity) Client(serverName string) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, ServerName: serverName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &i.current().cert, nil },
		InsecureSkipVerify:   true, // VerifyConnection verifies with the authorities as of now
		VerifyConnection: func(s tls.ConnectionState) error {
			between := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				between.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{DNSName: serverName, Roots: i.current().roots, Intermediates: between})
			return err
		}})
}

// named accepts connections whose verified certificate has a DNS name.
func named(name string) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("the client has no certificate")
		}
		if c := s.PeerCertificates[0]; !slices.Contains(c.DNSNames, name) {
			return fmt.Errorf("the certificate of the client has the names %q: it needs %s", c.DNSNames, name)
		}
		return nil
	}
}
