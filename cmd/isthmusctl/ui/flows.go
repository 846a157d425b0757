// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/relay/denied"
)

// flowFlags say where denied flows are read: from a relay, or from the agent of this machine.
type flowFlags struct {
	relay, ca, serverName, token string
	socket                       string
}

func (f *flowFlags) register(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.relay, "relay", "", "read denied flows of all nodes from this relay: tls://HOST:PORT, or HOST:PORT without TLS at a loopback address")
	flags.StringVar(&f.ca, "relay-ca", "", "with --relay tls://: file of the authority that issued the relay's certificate; without it those of this machine")
	flags.StringVar(&f.serverName, "relay-server-name", "", "with --relay tls://: DNS name in the relay's certificate; without it the host of --relay")
	flags.StringVar(&f.token, "relay-token-file", "", "with --relay tls://: file of a token of the cluster, which decides which flows are shown; read again for each page")
	flags.StringVar(&f.socket, "socket", socket.Default, "without --relay: the agent's socket, for denied flows of this node")
}

// check rejects flags that do not fit together.
func (f *flowFlags) check(c *cobra.Command) error {
	address, secure := strings.CutPrefix(f.relay, "tls://")
	if f.relay == "" || !secure {
		for _, name := range []string{"relay-ca", "relay-server-name", "relay-token-file"} {
			if c.Flags().Changed(name) {
				return cli.Usagef("--%s: works with --relay tls://HOST:PORT only", name)
			}
		}
	}
	if f.relay == "" {
		if f.socket == "" {
			return cli.Usagef("--socket: name the agent's socket, such as %s", socket.Default)
		}
		return nil
	}
	if c.Flags().Changed("socket") {
		return cli.Usagef("--relay and --socket: give one of them")
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return cli.Usagef("--relay %q: give tls://HOST:PORT, such as tls://localhost:4245", f.relay)
	}
	if !secure && !loopback(host) {
		return cli.Usagef("--relay %s: other machines send flows over TLS only: give tls://%s", f.relay, address)
	}
	return nil
}

// loopback reports whether a host is this machine.
func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// open returns where denied flows are read, and says whose they are. The caller closes it.
func (f *flowFlags) open(e cli.Env) (*denied.Source, string, error) {
	if f.relay == "" {
		c := denied.Config{Name: "the agent of this machine", Dial: func(ctx context.Context) (net.Conn, error) { return e.Dial(ctx, socket.Hubble(f.socket)) },
			Hint: "for the flows of all nodes start isthmusctl ui with --relay tls://HOST:PORT, --relay-ca and --relay-token-file; for those of a node run it there as root, on Windows as an administrator"}
		s, err := denied.Open(c)
		return s, "Flows of this machine's node only. For those of all nodes start isthmusctl ui with --relay.", err
	}
	address, secure := strings.CutPrefix(f.relay, "tls://")
	c := denied.Config{Name: "the relay " + address, Dial: func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", address) },
		Hint: "check --relay, and that the port is forwarded"}
	if secure {
		c.Hint = "check --relay, --relay-ca, --relay-server-name and the token in --relay-token-file, and that the port is forwarded"
		var err error
		if c.TLS, err = f.tls(address); err != nil {
			return nil, "", err
		}
	}
	if f.token != "" {
		t := &tokenFile{path: f.token}
		if _, err := t.read(); err != nil {
			return nil, "", err
		}
		c.Token = t.read
	}
	s, err := denied.Open(c)
	return s, "Flows of the relay " + address + ".", err
}

// tls returns the settings of connections to a relay.
func (f *flowFlags) tls(address string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: f.serverName}
	if c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(address) // check has read it
	}
	if f.ca == "" {
		return c, nil
	}
	text, err := os.ReadFile(f.ca)
	if err != nil {
		return nil, fmt.Errorf("--relay-ca: %w", err)
	}
	if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--relay-ca %s: it has no certificate in PEM", f.ca)
	}
	return c, nil
}

// maxToken bounds a token, in bytes.
const maxToken = 64 << 10

// tokenFile is a file whose token may change. What is no regular file, such as a pipe, is read once.
type tokenFile struct {
	path string

	mutex sync.Mutex
	last  string
}

// read returns the token, or the last one if the file has none any more.
func (t *tokenFile) read() (string, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if i, err := os.Stat(t.path); t.last != "" && (err != nil || !i.Mode().IsRegular()) {
		return t.last, nil
	}
	text, err := readAtMost(t.path, maxToken)
	if token := string(bytes.TrimSpace(text)); err == nil && token != "" {
		t.last = token
	}
	switch {
	case t.last != "":
		return t.last, nil
	case err == nil:
		err = errors.New("the file is empty")
	}
	return "", fmt.Errorf("--relay-token-file %s: %w", t.path, err)
}

// readAtMost reads a file, which must not have more bytes than most.
func readAtMost(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("the file has more than %d bytes", most)
	}
	return text, err
}
