// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// etcd is the address of etcd in the namespace of the control plane.
const etcd = "http://127.0.0.1:2379"

// control is the control plane.
type control struct {
	dir string
	// certificate is the certificate of both the authority and the server. Its key also signs the
	// tokens of service accounts.
	certificate, key string
	tokens           map[string]string // by user, as in the names of kubeconfig files
	admin            string            // kubeconfig
	apiServer        *exec.Cmd
}

// startControl starts etcd, the API server, the controller manager and the scheduler.
func (l *lab) startControl(ctx context.Context) (*control, error) {
	c := &control{dir: filepath.Join(l.dir, "control")}
	c.tokens = make(map[string]string)
	l.control = c
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, err
	}
	if err := c.makeCertificate(l.networks); err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	if err := c.makeUsers(l.server(), l.nodes); err != nil {
		return nil, fmt.Errorf("make kubeconfig files: %w", err)
	}
	at := func(name string) string { return filepath.Join(c.dir, name) }
	_, err := l.launch(l.fabric, "etcd", 0, filepath.Join(l.bin, "etcd"), "--data-dir="+at("etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd)
	if err != nil {
		return nil, err
	}
	if err := l.startAPIServer(ctx); err != nil {
		return nil, err
	}
	for _, p := range [][]string{
		{"kube-controller-manager", "--kubeconfig=" + at("controllers.kubeconfig"), "--service-account-private-key-file=" + c.key,
			"--root-ca-file=" + c.certificate, "--cluster-signing-cert-file=" + c.certificate, "--cluster-signing-key-file=" + c.key,
			"--use-service-account-credentials=true", "--allocate-node-cidrs=true", "--cluster-cidr=" + join(l.networks, podsOf),
			"--service-cluster-ip-range=" + join(l.networks, servicesOf), "--node-monitor-grace-period=20s", "--leader-elect=false", "--bind-address=127.0.0.1"},
		{"kube-scheduler", "--kubeconfig=" + at("scheduler.kubeconfig"), "--authentication-kubeconfig=" + at("scheduler.kubeconfig"),
			"--authorization-kubeconfig=" + at("scheduler.kubeconfig"), "--leader-elect=false", "--bind-address=127.0.0.1"},
	} {
		if _, err := l.launch(l.fabric, p[0], 0, append([]string{filepath.Join(l.bin, p[0])}, p[1:]...)...); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// startAPIServer starts the API server and waits until it is ready.
func (l *lab) startAPIServer(ctx context.Context) (err error) {
	c := l.control
	c.apiServer, err = l.launch(l.fabric, "kube-apiserver", 0, filepath.Join(l.bin, "kube-apiserver"),
		"--etcd-servers="+etcd, "--bind-address="+l.controlAddress().String(), "--advertise-address="+l.controlAddress().String(), "--secure-port=6443",
		"--tls-cert-file="+c.certificate, "--tls-private-key-file="+c.key, "--cert-dir="+c.dir, "--token-auth-file="+filepath.Join(c.dir, "tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.key, "--service-account-signing-key-file="+c.key,
		"--service-cluster-ip-range="+join(l.networks, servicesOf), "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP", "--profiling=false")
	if err != nil {
		return err
	}
	return until(ctx, 2*time.Minute, "the API server", func() error {
		_, err := l.kubectl("get", "--raw", "/readyz")
		return err
	})
}

// stopAPIServer kills the API server.
func (c *control) stopAPIServer() {
	c.apiServer.Process.Kill()
	c.apiServer.Wait() // it was killed
}

func (c *control) makeCertificate(all []network) error {
	c.certificate, c.key = filepath.Join(c.dir, "server.crt"), filepath.Join(c.dir, "server.key")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "isthmus e2e"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:    []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}}
	for _, n := range all {
		template.IPAddresses = append(template.IPAddresses, n.fabric.Addr().AsSlice(), n.kubernetes.AsSlice())
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(c.key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600)
}

// makeUsers writes a kubeconfig file with a token for each user.
func (c *control) makeUsers(server string, nodes []*node) error {
	users := []struct{ file, user, group string }{
		{"admin", "admin", "system:masters"}, {"controllers", "system:kube-controller-manager", ""},
		{"scheduler", "system:kube-scheduler", ""}, {"proxy", "system:kube-proxy", ""},
	}
	for _, n := range nodes {
		users = append(users, struct{ file, user, group string }{n.name, "system:node:" + n.name, "system:nodes"})
	}
	var list strings.Builder
	for _, u := range users {
		secret := make([]byte, 16)
		if _, err := rand.Read(secret); err != nil {
			return err
		}
		token := hex.EncodeToString(secret)
		c.tokens[u.file] = token
		fmt.Fprintf(&list, "%s,%s,%s,%s\n", token, u.user, u.file, u.group)
		if err := os.WriteFile(c.kubeconfig(u.file), []byte(kubeconfigOf(server, c.certificate, token)), 0o600); err != nil {
			return err
		}
	}
	c.admin = c.kubeconfig("admin")
	return os.WriteFile(filepath.Join(c.dir, "tokens.csv"), []byte(list.String()), 0o600)
}

// kubeconfigOf returns the text of a kubeconfig file.
func kubeconfigOf(server, authority, token string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}],
users: [{name: u, user: {token: %q}}], contexts: [{name: c, context: {cluster: c, user: u}}]}
`, server, authority, token)
}

func (c *control) kubeconfig(user string) string { return filepath.Join(c.dir, user+".kubeconfig") }

func podsOf(n network) netip.Prefix     { return n.pods }
func servicesOf(n network) netip.Prefix { return n.services }

// startDNS starts CoreDNS in the namespace of the control plane, as the Service kube-dns.
func (l *lab) startDNS(context.Context) error {
	corefile := filepath.Join(l.control.dir, "Corefile")
	text := ".:53 {\n errors\n ready " + netip.AddrPortFrom(l.controlAddress(), 8181).String() + "\n kubernetes cluster.local in-addr.arpa ip6.arpa {\n  kubeconfig " +
		l.control.admin + "\n  pods insecure\n  ttl 5\n }\n cache 5\n}\n"
	if err := os.WriteFile(corefile, []byte(text), 0o600); err != nil {
		return err
	}
	if _, err := l.launch(l.fabric, "coredns", 0, filepath.Join(l.bin, "coredns"), "-conf", corefile); err != nil {
		return err
	}
	addresses := join(l.networks, func(n network) quoted { return quoted(n.dns.String()) })
	manifest := `
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec: {ipFamilyPolicy: PreferDualStack, clusterIP: ` + quoted(l.primary().dns.String()).String() + `, clusterIPs: [` + addresses + `], ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]}
`
	for _, n := range l.networks {
		manifest += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-%s, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: %s
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
endpoints: [{addresses: [%q], conditions: {ready: true}}]
`, strings.ToLower(n.version()), n.version(), n.fabric.Addr())
	}
	return l.apply(manifest)
}

// quoted is a text that join puts in quotes.
type quoted string

func (q quoted) String() string { return strconv.Quote(string(q)) }
