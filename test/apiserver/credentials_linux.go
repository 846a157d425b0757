// SPDX-License-Identifier: Apache-2.0

package apiserver

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
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// credentials are the files with which the server starts.
type credentials struct {
	certificate, key, tokens string
	// admin is the token of a member of system:masters.
	admin string
}

// newCredentials makes one self-signed certificate, which is both authority and server certificate. Its key also
// signs the tokens of service accounts.
func newCredentials(dir string, at netip.Addr) (credentials, error) {
	c := credentials{certificate: filepath.Join(dir, "api.crt"), key: filepath.Join(dir, "api.key"), tokens: filepath.Join(dir, "tokens.csv")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		return c, err
	}
	c.admin = hex.EncodeToString(secret)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "isthmus test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{at.AsSlice()}, DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return c, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return c, err
	}
	for path, content := range map[string][]byte{
		c.certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		c.key:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
		c.tokens:      []byte(c.admin + ",admin,admin,system:masters\n"),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return c, err
		}
	}
	return c, nil
}

// RESTConfig returns the client configuration of the administrator. It also works outside of the server's network
// namespace.
func (s *Server) RESTConfig() *rest.Config {
	if s.side != nil {
		return s.config(s.keys.admin, s.side.port)
	}
	return s.config(s.keys.admin, s.api.port)
}

func (s *Server) config(token string, port int) *rest.Config {
	c := &rest.Config{Host: "https://" + s.hostPort(port), BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.keys.certificate}}
	if s.cfg.NS != nil {
		c.Dial = func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = s.inside(func() (err error) {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		}
	}
	return c
}

// Kubeconfig writes a kubeconfig file of the administrator.
func (s *Server) Kubeconfig() (path string, err error) { return s.kubeconfig("admin", s.keys.admin) }

// ServiceAccount writes a kubeconfig file of a service account, which it creates if needed. Its rights come from
// role bindings.
func (s *Server) ServiceAccount(ctx context.Context, namespace, name string) (kubeconfig string, err error) {
	token, err := s.token(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	return s.kubeconfig(namespace+"-"+name, token)
}

// ServiceAccountConfig returns the configuration that ServiceAccount writes, for use in this process.
func (s *Server) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	token, err := s.token(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return s.config(token, s.api.port), nil
}

// BoundToken creates a pod of a service account on a node, which need not exist. It
// returns a token as the kubelet of that node requests it, bound to pod and node.
// The pod stays.
func (s *Server) BoundToken(ctx context.Context, namespace, account, node string) (string, error) {
	if _, err := s.token(ctx, namespace, account); err != nil { // this creates the account
		return "", err
	}
	manifest := fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s-%s, namespace: %s}, spec: {nodeName: %s, serviceAccountName: %s, containers: [{name: c, image: none}]}}",
		account, node, namespace, node, account)
	if err := s.Apply(ctx, manifest); err != nil {
		return "", err
	}
	pod, err := s.Get(ctx, manifest)
	if err != nil {
		return "", err
	}
	return s.requestToken(ctx, namespace, account, map[string]any{"boundObjectRef": map[string]any{
		"apiVersion": "v1", "kind": "Pod", "name": pod.GetName(), "uid": string(pod.GetUID())}})
}

// TokenConfig returns the configuration of a client with a token.
func (s *Server) TokenConfig(token string) *rest.Config { return s.config(token, s.api.port) }

// TokenKubeconfig writes a kubeconfig file of a user with a token.
func (s *Server) TokenKubeconfig(user, token string) (path string, err error) {
	return s.kubeconfig(user, token)
}

func (s *Server) token(ctx context.Context, namespace, name string) (string, error) {
	manifest := fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %[1]s}}\n---\n"+
		"{apiVersion: v1, kind: ServiceAccount, metadata: {name: %[2]s, namespace: %[1]s}}\n", namespace, name)
	if err := s.Apply(ctx, manifest); err != nil {
		return "", err
	}
	return s.requestToken(ctx, namespace, name, map[string]any{})
}

func (s *Server) requestToken(ctx context.Context, namespace, name string, spec map[string]any) (string, error) {
	var answer struct {
		Status struct{ Token string }
	}
	path := fmt.Sprintf("/api/v1/namespaces/%s/serviceaccounts/%s/token", namespace, name)
	err := s.call(ctx, "POST", path, map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}, &answer)
	if err != nil {
		return "", fmt.Errorf("request token of service account %s/%s: %w", namespace, name, err)
	}
	return answer.Status.Token, nil
}

func (s *Server) kubeconfig(user, token string) (string, error) {
	authority, err := os.ReadFile(s.keys.certificate) // programs for Windows use other file names
	if err != nil {
		return "", err
	}
	c := api.NewConfig()
	c.Clusters["test"] = &api.Cluster{Server: "https://" + s.hostPort(s.api.port), CertificateAuthorityData: authority}
	c.AuthInfos[user] = &api.AuthInfo{Token: token}
	c.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: user}
	c.CurrentContext = "test"
	path := filepath.Join(s.dir, user+".kubeconfig")
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		return "", fmt.Errorf("write kubeconfig: %w", err)
	}
	return path, nil
}
