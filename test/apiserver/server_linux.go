// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/isthmus-net/isthmus/test/kubernetes"
	"github.com/isthmus-net/isthmus/test/netns"
)

// Config configures an API server.
type Config struct {
	// Address is the address of the listener; 127.0.0.1 if it is not valid.
	Address netip.Addr
	// NS is the network namespace of the processes; nil for that of the caller.
	NS *netns.NS
}

// Server is a running API server with its etcd.
type Server struct {
	cfg  Config
	dir  string
	bin  string
	keys credentials
	// client has the rights of the administrator.
	client *http.Client
	etcd   *process
	api    *front
	// side is another API server over the same etcd, or nil.
	side *front
	args []string
	// etcdArgs are the flags of etcd.
	etcdArgs []string
}

// front is a kube-apiserver; process is nil while it does not run.
type front struct {
	*process
	port int
}

// Start builds the programs if needed, starts them, and returns when the API server is ready and serves the
// cluster-wide policies. It reports slow steps to out.
func Start(ctx context.Context, cfg Config, out io.Writer) (*Server, error) {
	bin, err := kubernetes.Build(ctx, out, "etcd", "kube-apiserver")
	if err != nil {
		return nil, err
	}
	if !cfg.Address.IsValid() {
		cfg.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	memory := "/dev/shm"
	if _, err := os.Stat(memory); err != nil {
		memory = ""
	}
	dir, err := os.MkdirTemp(memory, "isthmus-apiserver-")
	if err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	s := &Server{cfg: cfg, dir: dir, bin: bin}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) (err error) {
	if s.keys, err = newCredentials(s.dir, s.cfg.Address); err != nil {
		return err
	}
	var ports []int
	if err := s.inside(func() (err error) { ports, err = freePorts(s.cfg.Address, 3); return err }); err != nil {
		return err
	}
	s.api = &front{port: ports[0]}
	client, peer := "http://"+s.hostPort(ports[1]), "http://"+s.hostPort(ports[2])
	// A single member with temporary data: elect immediately, and do not wait for the disk.
	s.etcdArgs = []string{"--data-dir", filepath.Join(s.dir, "etcd"), "--unsafe-no-fsync", "--log-level", "error",
		"--heartbeat-interval", "10", "--election-timeout", "100", "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer, "--quota-backend-bytes", "4294967296"}
	if s.etcd, err = s.launch("etcd", s.etcdArgs...); err != nil {
		return err
	}
	s.args = []string{"--etcd-servers=" + client, "--bind-address=" + s.cfg.Address.String(), "--advertise-address=" + s.cfg.Address.String(),
		"--tls-cert-file=" + s.keys.certificate, "--tls-private-key-file=" + s.keys.key,
		"--cert-dir=" + s.dir, "--token-auth-file=" + s.keys.tokens, "--authorization-mode=RBAC", "--profiling=false",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + s.keys.key,
		"--service-account-signing-key-file=" + s.keys.key, "--service-cluster-ip-range=10.96.0.0/16,fd96::/108",
		// All installers of clusters set this, and HostProcess containers need it.
		"--allow-privileged=true",
		// No Endpoints with a loopback address; no service account that a controller would have to make.
		"--endpoint-reconciler-type=none", "--disable-admission-plugins=ServiceAccount"}
	if s.client, err = rest.HTTPClientFor(s.RESTConfig()); err != nil {
		return fmt.Errorf("prepare client: %w", err)
	}
	if err := s.StartAPI(ctx); err != nil {
		return err
	}
	return s.installDefinitions(ctx)
}

func (s *Server) hostPort(port int) string {
	return netip.AddrPortFrom(s.cfg.Address, uint16(port)).String()
}

// inside calls f in the server's network namespace.
func (s *Server) inside(f func() error) error {
	if s.cfg.NS == nil {
		return f()
	}
	return s.cfg.NS.Do(f)
}

// patience bounds the time that a program needs to start on a busy machine.
const patience = 2 * time.Minute

// StartAPI starts kube-apiserver and waits until it is ready. Call it again after KillAPI, optionally with more
// flags.
func (s *Server) StartAPI(ctx context.Context, flags ...string) error {
	return s.run(ctx, s.api, flags)
}

// OpenSide starts another API server over the same etcd and waits until it is ready. While it runs, the methods
// of Server use it, so that objects can be changed when the first does not answer. Kubeconfig files name the
// first.
func (s *Server) OpenSide(ctx context.Context) error {
	var ports []int
	if err := s.inside(func() (err error) { ports, err = freePorts(s.cfg.Address, 1); return err }); err != nil {
		return err
	}
	s.side = &front{port: ports[0]}
	return s.run(ctx, s.side, nil)
}

// CloseSide ends the API server of OpenSide.
func (s *Server) CloseSide() error {
	side := s.side
	s.side = nil
	if side == nil {
		return nil
	}
	return side.kill()
}

func (s *Server) run(ctx context.Context, f *front, flags []string) (err error) {
	f.process, err = s.launch("kube-apiserver", slices.Concat(s.args, flags, []string{"--secure-port=" + strconv.Itoa(f.port)})...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := s.ready(ctx, f.port)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready after %s: %w: %s", patience, err, f.tail())
		case <-f.ended:
			return fmt.Errorf("kube-apiserver ended: %s", f.tail())
		case <-s.etcd.ended:
			return fmt.Errorf("etcd ended: %s", s.etcd.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Server) ready(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.hostPort(port)+"/readyz", nil)
	if err != nil {
		return err
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("readyz: %s", answer.Status)
	}
	return nil
}

// KillAPI ends kube-apiserver by SIGKILL. etcd and the data stay.
func (s *Server) KillAPI() error { return s.api.kill() }

// BackUp copies the data of etcd. The API server answers no requests meanwhile.
func (s *Server) BackUp(ctx context.Context) error {
	return s.withoutEtcd(ctx, func(data, copied string) error { return os.CopyFS(copied, os.DirFS(data)) })
}

// Restore replaces the data of etcd by those of BackUp, once. Resource versions go back.
func (s *Server) Restore(ctx context.Context) error {
	return s.withoutEtcd(ctx, func(data, copied string) error { return errors.Join(os.RemoveAll(data), os.Rename(copied, data)) })
}

// withoutEtcd calls a function with the directories of the data and of their copy, while nothing runs.
func (s *Server) withoutEtcd(ctx context.Context, do func(data, copied string) error) (err error) {
	if err := errors.Join(s.KillAPI(), s.etcd.kill()); err != nil {
		return err
	}
	if err := do(filepath.Join(s.dir, "etcd"), filepath.Join(s.dir, "backup")); err != nil {
		return err
	}
	if s.etcd, err = s.launch("etcd", s.etcdArgs...); err != nil {
		return err
	}
	return s.StartAPI(ctx)
}

// Halt stops kube-apiserver (SIGSTOP) until Continue: it answers no more, but its connections stay open.
func (s *Server) Halt() error { return s.api.cmd.Process.Signal(syscall.SIGSTOP) }

// Continue ends Halt.
func (s *Server) Continue() error { return s.api.cmd.Process.Signal(syscall.SIGCONT) }

// Close ends everything and removes the data.
func (s *Server) Close() error {
	errs := []error{s.CloseSide()}
	if s.api != nil {
		errs = append(errs, s.api.kill())
	}
	return errors.Join(append(errs, s.etcd.kill(), os.RemoveAll(s.dir))...)
}

// Dir is a directory for further files; Close removes it.
func (s *Server) Dir() string { return s.dir }

func freePorts(at netip.Addr, n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // all listeners stay open until all ports are found
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
