// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/peer"
)

const (
	// statusTimeout bounds the wait for the status of a node.
	statusTimeout = 3 * time.Second
	// retryEvery is the interval of trying to reach a node, and of looking for new nodes.
	retryEvery = 2 * time.Second
	// maxNodes bounds the nodes that a relay connects to.
	maxNodes = 5000
)

// node is an agent.
type node struct {
	name, address string
	conn          *grpc.ClientConn
	client        observer.ObserverClient
}

// Pool holds a connection to the agent of each node. It is safe for concurrent use.
type Pool struct {
	credentials credentials.TransportCredentials
	log         *slog.Logger

	mutex sync.Mutex
	nodes map[string]*node
}

// NewPool returns an empty Pool. Agents on a Unix socket need no credentials; nil credentials allow no others.
func NewPool(c credentials.TransportCredentials, log *slog.Logger) *Pool {
	return &Pool{credentials: c, log: log, nodes: make(map[string]*node)}
}

// dial returns a connection that is made when it is used.
func (p *Pool) dial(address string) (*grpc.ClientConn, error) {
	c := p.credentials
	if strings.HasPrefix(address, "unix:") {
		c = insecure.NewCredentials()
	}
	if c == nil {
		return nil, fmt.Errorf("connect to %s: only sockets are used without TLS: give a certificate", address)
	}
	return grpc.NewClient(address, grpc.WithTransportCredentials(c), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<20)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 15 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}))
}

// Set replaces the nodes, given as their addresses by name. A node that stays keeps its connection. An empty address
// is a node that cannot be reached.
func (p *Pool) Set(addresses map[string]string) error {
	if len(addresses) > maxNodes {
		return fmt.Errorf("%d nodes: a relay supports %d", len(addresses), maxNodes)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var errs []error
	for name, n := range p.nodes {
		if address, ok := addresses[name]; !ok || address != n.address {
			n.close()
			delete(p.nodes, name)
		}
	}
	for name, address := range addresses {
		if p.nodes[name] != nil {
			continue
		}
		n := &node{name: name, address: address}
		if address != "" {
			conn, err := p.dial(address)
			if err != nil {
				errs = append(errs, fmt.Errorf("node %s: %w", name, err))
			} else {
				n.conn, n.client = conn, observer.NewObserverClient(conn)
			}
		}
		p.nodes[name] = n
	}
	return errors.Join(errs...)
}

func (n *node) close() {
	if n.conn != nil {
		n.conn.Close()
	}
}

// Close closes all connections.
func (p *Pool) Close() { _ = p.Set(nil) }

// list returns the nodes by name.
func (p *Pool) list() []*node {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var list []*node
	for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
		list = append(list, p.nodes[name])
	}
	return list
}

// errNoPort is the error of a node whose agent serves no port.
var errNoPort = errors.New("the agent serves no port: start it with --hubble-listen")

// status reads the status of an agent.
func (n *node) status(ctx context.Context) (*observer.ServerStatusResponse, error) {
	if n.client == nil {
		return nil, errNoPort
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return n.client.ServerStatus(ctx, &observer.ServerStatusRequest{})
}

// Discover follows the nodes that an agent knows, until the context is done. The address is that of any agent, such
// as a Service.
func (p *Pool) Discover(ctx context.Context, address string) error {
	conn, err := p.dial(address)
	if err != nil {
		return err
	}
	defer conn.Close()
	for ctx.Err() == nil {
		err := p.follow(ctx, peer.NewPeerClient(conn))
		if ctx.Err() == nil {
			p.log.Warn("list nodes; those known before remain", "address", address, "error", err, "again in", retryEvery)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryEvery):
		}
	}
	return nil
}

// quiet is how long no change may come until the list of nodes counts as complete.
const quiet = 300 * time.Millisecond

const (
	// maxPending is how long changes of the nodes wait at most, while further ones come.
	maxPending = 3 * time.Second
	// maxPeer bounds the name and the address of a node, in bytes.
	maxPeer = 512
)

// follow follows the nodes over one stream. The stream begins with all nodes.
func (p *Pool) follow(ctx context.Context, client peer.PeerClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Notify(ctx, &peer.NotifyRequest{})
	if err != nil {
		return err
	}
	changes, ended := make(chan *peer.ChangeNotification), make(chan error, 1)
	go func() {
		for {
			c, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case changes <- c:
			case <-ctx.Done():
				return
			}
		}
	}()
	addresses := make(map[string]string)
	var complete <-chan time.Time
	var pending time.Time // when the first change came that Set did not get
	for {
		select {
		case c := <-changes:
			if c.GetType() == peer.ChangeNotificationType_PEER_DELETED {
				delete(addresses, c.GetName())
			} else {
				addresses[c.GetName()] = c.GetAddress()
			}
			if n := max(len(c.GetName()), len(c.GetAddress())); n > maxPeer {
				return fmt.Errorf("the agent names a node with a name or an address of %d bytes: a relay supports %d", n, maxPeer)
			}
			if len(addresses) > maxNodes {
				return fmt.Errorf("the agent names more than %d nodes: a relay supports no more", maxNodes)
			}
			if complete == nil {
				pending = time.Now()
			}
			complete = time.After(min(quiet, time.Until(pending.Add(maxPending))))
		case <-complete:
			complete = nil
			if err := p.Set(addresses); err != nil {
				p.log.Warn("connect to nodes", "error", err)
			}
		case err := <-ended:
			return err
		}
	}
}
