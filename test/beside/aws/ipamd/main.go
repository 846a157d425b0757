// SPDX-License-Identifier: Apache-2.0

// Command ipamd assigns addresses to pods in place of the daemon of the VPC CNI plugin, at the gRPC interface of
// that daemon. It knows the node of a request by the network namespace of the plugin's process.
//
// It neither calls a cloud nor changes interfaces, routes or rules.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/aws/amazon-vpc-cni-k8s/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: ipamd SOCKET NAMESPACE=RANGE...")
	}
	if err := serve(os.Args[1], os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}

func serve(socket string, nodes []string) error {
	s := &server{assigned: make(map[string]*rpc.IPAllocationMetadata)}
	for _, text := range nodes {
		path, prefix, _ := strings.Cut(text, "=")
		p, err := netip.ParsePrefix(prefix)
		if err != nil {
			return fmt.Errorf("node %q: %w", text, err)
		}
		var at unix.Stat_t
		if err := unix.Stat(path, &at); err != nil {
			return fmt.Errorf("namespace %s: %w", path, err)
		}
		s.nodes = append(s.nodes, node{namespace{at.Dev, at.Ino}, p})
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	g := grpc.NewServer()
	rpc.RegisterCNIBackendServer(g, s)
	return g.Serve(listener{l})
}

// namespace identifies a network namespace.
type namespace struct{ dev, ino uint64 }

func (namespace) Network() string  { return "netns" }
func (n namespace) String() string { return fmt.Sprint(n.ino) }

type node struct {
	namespace namespace
	pods      netip.Prefix
}

// listener accepts connections whose remote address is the network namespace of the other process.
type listener struct{ net.Listener }

type conn struct {
	net.Conn
	from namespace
}

func (c conn) RemoteAddr() net.Addr { return c.from }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	from, err := caller(c.(*net.UnixConn))
	if err != nil {
		log.Print(err) // a process that ended already; no node has the zero namespace
	}
	return conn{c, from}, nil
}

func caller(c *net.UnixConn) (namespace, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return namespace{}, err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return namespace{}, err
	}
	if failed != nil {
		return namespace{}, failed
	}
	var at unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", cred.Pid), &at); err != nil {
		return namespace{}, err
	}
	return namespace{at.Dev, at.Ino}, nil
}

type server struct {
	rpc.UnimplementedCNIBackendServer
	nodes []node

	mu sync.Mutex
	// assigned has the addresses by attachment.
	assigned map[string]*rpc.IPAllocationMetadata
}

var errFull = errors.New("no address is free")

// AddNetwork assigns an address. Every second one is of a secondary interface, whose pods have a route table of
// their own.
func (s *server) AddNetwork(ctx context.Context, r *rpc.AddNetworkRequest) (*rpc.AddNetworkReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := r.ContainerID + "/" + r.IfName
	if s.assigned[key] == nil {
		p, _ := peer.FromContext(ctx)
		for _, n := range s.nodes {
			if p.Addr != n.namespace {
				continue
			}
			a, err := s.free(n.pods)
			if err != nil {
				return nil, status.Error(codes.ResourceExhausted, err.Error())
			}
			s.assigned[key] = a
		}
	}
	a := s.assigned[key]
	if a == nil {
		return nil, status.Errorf(codes.NotFound, "no node has namespace %s", r.Netns)
	}
	log.Printf("%s/%s has %s%s, table %d", r.K8S_POD_NAMESPACE, r.K8S_POD_NAME, a.IPv4Addr, a.IPv6Addr, a.RouteTableId)
	return &rpc.AddNetworkReply{Success: true, IPAllocationMetadata: []*rpc.IPAllocationMetadata{a}, UseExternalSNAT: true}, nil
}

// free returns the lowest address that no pod has.
func (s *server) free(pods netip.Prefix) (*rpc.IPAllocationMetadata, error) {
	used := make(map[string]bool)
	for _, a := range s.assigned {
		used[a.IPv4Addr+a.IPv6Addr] = true
	}
	a := pods.Addr().Next()
	for i := range int32(200) {
		if a = a.Next(); used[a.String()] {
			continue
		}
		m := &rpc.IPAllocationMetadata{IPv4Addr: a.String(), DeviceNumber: i % 2, RouteTableId: 1 + i%2}
		if a.Is6() {
			m.IPv4Addr, m.IPv6Addr = "", a.String()
		}
		return m, nil
	}
	return nil, errFull
}

// DelNetwork frees the address of an attachment. It may be assigned again immediately.
func (s *server) DelNetwork(_ context.Context, r *rpc.DelNetworkRequest) (*rpc.DelNetworkReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := r.ContainerID + "/" + r.IfName
	a := s.assigned[key]
	if a == nil {
		return nil, status.Error(codes.NotFound, "datastore: unknown pod") // as the daemon answers
	}
	delete(s.assigned, key)
	return &rpc.DelNetworkReply{Success: true, IPAllocationMetadata: []*rpc.IPAllocationMetadata{a}}, nil
}
