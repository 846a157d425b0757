// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/isthmus-net/isthmus/test/hnsemu/service"
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// node is what is behind the service: the store, its file, and the ports.
type node struct {
	store   *hns.Fake
	service *service.Service
	file    string
	sw      *vfp.Switch

	mu     sync.Mutex // guards the traces
	traces []vfp.Trace
}

// maxTraces is how many packets are remembered.
const maxTraces = 4096

func newNode(store *hns.Fake, file string, o vfp.Options) *node {
	n := &node{store: store, file: file}
	n.sw = vfp.New(vfp.Config{Options: o, Open: n.open, Underlay: n.underlay, Trace: n.trace, Count: store.Count})
	return n
}

// kept is what the file holds.
type kept struct {
	HNS   json.RawMessage
	NetNS map[string]string
}

// load takes in what an earlier process has left.
func (n *node) load() error {
	if n.file == "" {
		return nil
	}
	text, err := os.ReadFile(n.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read --state: %w", err)
	}
	var k kept
	if err := json.Unmarshal(text, &k); err != nil {
		return fmt.Errorf("--state %s: %w: remove it to begin with nothing", n.file, err)
	}
	if err := n.store.Load(k.HNS); err != nil {
		return fmt.Errorf("--state %s: %w: remove it to begin with nothing", n.file, err)
	}
	for namespace, file := range k.NetNS {
		n.service.SetNetNS(namespace, file)
	}
	return n.connect()
}

// changed keeps what the service holds and puts it in force.
func (n *node) changed() error {
	if err := n.save(); err != nil {
		return err
	}
	return n.connect()
}

// save replaces the file, so that a crash leaves the one before or the new one.
func (n *node) save() error {
	if n.file == "" {
		return nil
	}
	objects, err := n.store.Save()
	if err != nil {
		return err
	}
	text, err := json.Marshal(kept{HNS: objects, NetNS: n.service.AllNetNS()})
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.file+".part", text, 0o600); err != nil {
		return fmt.Errorf("write --state: %w", err)
	}
	return os.Rename(n.file+".part", n.file)
}

// connect makes the ports what the store says. Without a namespace behind it an
// endpoint has none.
func (n *node) connect() error {
	specs, err := vfp.Specs(n.store, n.service.NetNS)
	if err != nil {
		return err
	}
	tunnel, err := vfp.TunnelOf(n.store)
	if err != nil {
		return err
	}
	if !moves(specs) {
		specs, tunnel = nil, nil
	}
	return errors.Join(n.sw.Set(specs), n.sw.SetTunnel(tunnel))
}

// moves reports whether there is anything to move packets for: a host alone
// needs no device.
func moves(specs []vfp.Spec) bool {
	for _, s := range specs {
		if !s.Host {
			return true
		}
	}
	return false
}

func (n *node) trace(t vfp.Trace) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.traces) == maxTraces {
		n.traces = append(n.traces[:0], n.traces[maxTraces/2:]...)
	}
	n.traces = append(n.traces, t)
}

// control adds to what tests can ask:
//
//	POST /trace            the last packets at every port, one a line
//	POST /counters?id=     the packets of an endpoint by what decided
//	POST /packets          how many packets came in
func (n *node) control(mux *http.ServeMux) {
	mux.HandleFunc("POST /trace", func(w http.ResponseWriter, _ *http.Request) {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, t := range n.traces {
			fmt.Fprintln(w, t)
		}
	})
	mux.HandleFunc("POST /counters", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, strings.Join(n.sw.Counters(r.URL.Query().Get("id")), "\n"))
	})
	mux.HandleFunc("POST /packets", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strconv.FormatUint(n.sw.Packets(), 10))
	})
}
