// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/isthmus-net/isthmus/test/hnsemu/service"
	"github.com/isthmus-net/isthmus/test/hnsemu/tracing"
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/etw"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// Config configures a Host.
type Config struct {
	Version hns.Version
	// Adapter is the name of the physical adapter. ManagementIP is the node's address on it, and
	// ManagementMAC its hardware address in the form 00-15-5D-00-00-01.
	Adapter, ManagementIP, ManagementMAC string
	// Translate makes packets pass OutBoundNAT, port mappings and load balancers. It changes the
	// routing of the process's namespace, so that namespace must be the node's own.
	Translate bool
	// File stores the objects; empty keeps them in memory.
	File string
	// Calls, if set, receives every call of the service as a line of JSON.
	Calls   io.Writer
	Options vfp.Options
	Strict  Strict
	Log     *slog.Logger
}

// Strict selects behaviour that HNS may have, and that hnstest.Fake describes.
type Strict struct {
	// Gradual also lets packets meet the lists between the ACLs of one write.
	Gradual, Reorder, Respell, UpdateReplacesAll bool
}

// Host is the HNS of a node, and the switch that applies its objects.
type Host struct {
	Service *service.Service
	store   *hnstest.Fake
	file    string
	sw      *vfp.Switch
	node    []netip.Addr // the node's addresses

	events *tracing.Host // what ETW of the host has

	saving sync.Mutex // one write of the file at a time
	moving sync.Mutex // one change of the ports at a time

	mu     sync.Mutex // guards the traces
	traces []vfp.Trace
}

// maxTraces is the number of packets whose trace is kept.
const maxTraces = 4096

// New returns a host with the objects that an earlier one stored in the file.
func New(c Config) (*Host, error) {
	store := hnstest.NewFake(c.Version)
	if c.Adapter != "" {
		store.Adapters = []string{c.Adapter}
	}
	store.ManagementIP, store.ManagementMAC = c.ManagementIP, c.ManagementMAC
	h := &Host{store: store, file: c.File, events: tracing.New(tracing.English())}
	if a, err := netip.ParseAddr(c.ManagementIP); err == nil && c.Translate {
		h.node = append(h.node, a)
	}
	store.Reorder, store.Respell, store.UpdateReplacesAll = c.Strict.Reorder, c.Strict.Respell, c.Strict.UpdateReplacesAll
	if c.Strict.Gradual {
		store.Gradual = func(id string) {
			if err := h.connect(); err != nil {
				c.Log.Error("apply a list between two ACLs of a write", "endpoint", id, "error", err)
			}
		}
	}
	h.sw = vfp.New(vfp.Config{Options: c.Options, Node: h.node, Open: h.open, Underlay: h.underlay, Trace: h.trace, Count: store.Count})
	h.Service = service.New(service.Config{
		HNS: store, Version: c.Version, Stack: h.Stack(), Tracing: h.events, VFPControl: h.vfpctrl, Calls: c.Calls, Log: c.Log, Changed: h.changed})
	return h, h.load()
}

// Client returns HNS for a program in this process. When a call returns, the ports have its
// effects.
func (h *Host) Client() *hnstest.Fake {
	h.store.After(func(op, _ string) error {
		switch {
		case strings.HasPrefix(op, "Create"), strings.HasPrefix(op, "Modify"), strings.HasPrefix(op, "Delete"),
			strings.HasPrefix(op, "Attach"), strings.HasPrefix(op, "Detach"):
			h.store.ForgetCalls()
			return h.changed()
		}
		return nil
	})
	return h.store
}

// Close stops moving packets.
func (h *Host) Close() error { return h.sw.Close() }

// kept is the content of the file.
type kept struct {
	HNS   json.RawMessage
	NetNS map[string]string
}

// load restores the objects of an earlier process.
func (h *Host) load() error {
	if h.file == "" {
		return nil
	}
	text, err := os.ReadFile(h.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the state file: %w", err)
	}
	var k kept
	if err := json.Unmarshal(text, &k); err != nil {
		return fmt.Errorf("state file %s: %w: remove it to begin with nothing", h.file, err)
	}
	if err := h.store.Load(k.HNS); err != nil {
		return fmt.Errorf("state file %s: %w: remove it to begin with nothing", h.file, err)
	}
	for namespace, file := range k.NetNS {
		h.Service.SetNetNS(namespace, file)
	}
	return h.connect()
}

// changed stores the objects of the service and applies them to the switch.
func (h *Host) changed() error {
	if err := h.save(); err != nil {
		return err
	}
	return h.connect()
}

// save replaces the file atomically: after a crash it has the earlier or the new content.
func (h *Host) save() error {
	if h.file == "" {
		return nil
	}
	h.saving.Lock()
	defer h.saving.Unlock()
	objects, err := h.store.Save()
	if err != nil {
		return err
	}
	text, err := json.Marshal(kept{HNS: objects, NetNS: h.Service.AllNetNS()})
	if err != nil {
		return err
	}
	if err := os.WriteFile(h.file+".part", text, 0o600); err != nil {
		return fmt.Errorf("write the state file: %w", err)
	}
	return os.Rename(h.file+".part", h.file)
}

// connect makes the ports that match the objects. An endpoint without a namespace has no port.
func (h *Host) connect() error {
	h.moving.Lock()
	defer h.moving.Unlock()
	specs, err := vfp.Specs(h.store, h.Service.NetNS)
	if err != nil {
		return err
	}
	tunnel, err := vfp.TunnelOf(h.store)
	if err != nil {
		return err
	}
	if !moves(specs) {
		tunnel = nil
		if len(h.node) == 0 {
			specs = nil
		}
	}
	if len(h.node) == 0 {
		for i := range specs {
			specs[i].NAT, specs[i].Mappings = nil, nil
		}
		return errors.Join(h.sw.Set(specs), h.sw.SetTunnel(tunnel))
	}
	h.sw.SetBalancers(h.Service.Balancers())
	if err := errors.Join(h.sw.Set(specs), h.sw.SetTunnel(tunnel)); err != nil {
		return err
	}
	return h.divert(h.diverted(specs))
}

// diverted returns the ports of the node at which packets are translated. It returns none if no
// port of the switch leads to the host.
func (h *Host) diverted(specs []vfp.Spec) (all []nodePorts) {
	if !slices.ContainsFunc(specs, func(s vfp.Spec) bool { return s.Host }) {
		return nil
	}
	natted := false
	for _, s := range specs {
		natted = natted || len(s.NAT) > 0
		for _, m := range s.Mappings {
			all = append(all, nodePorts{m.Protocol, m.External, m.External})
		}
	}
	for _, b := range h.Service.Balancers() {
		natted = true
		if !b.VIP.IsValid() || slices.Contains(h.node, b.VIP) {
			all = append(all, nodePorts{b.Protocol, b.External, b.External})
		}
	}
	if natted {
		all = append(all, nodePorts{protocolTCP, vfp.FirstNATPort, vfp.LastNATPort}, nodePorts{protocolUDP, vfp.FirstNATPort, vfp.LastNATPort})
	}
	return all
}

// nodePorts is a range of ports of the node.
type nodePorts struct {
	protocol    uint8
	first, last uint16
}

const (
	protocolTCP = 6
	protocolUDP = 17
)

// moves reports whether the switch has packets to move. A host without pods needs no device, unless
// it is a whole node.
func moves(specs []vfp.Spec) bool {
	for _, s := range specs {
		if !s.Host {
			return true
		}
	}
	return false
}

// Events is a session of ETW for a program in this process.
func (h *Host) Events(c etw.Config) etw.Source { return h.events.Source(c) }

func (h *Host) trace(t vfp.Trace) {
	h.events.Packet(t)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.traces) == maxTraces {
		h.traces = append(h.traces[:0], h.traces[maxTraces/2:]...)
	}
	h.traces = append(h.traces, t)
}

// Control serves the requests of Service.Control, and these:
//
//	POST /trace            the last packets at every port, one per line
//	POST /counters?id=     the packets of an endpoint, by the rule that decided
//	POST /packets          number of received packets
//	POST /acl?address=&empty=
//	                       replaces the ACLs of the endpoint with this address by one that blocks everything, as
//	                       another process would; with empty=true it removes them
//	POST /set?id=&values=  replaces the members of a set, as another process would
func (h *Host) Control() *http.ServeMux {
	mux := h.Service.Control()
	mux.HandleFunc("POST /trace", func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, t := range h.traces {
			fmt.Fprintln(w, t)
		}
	})
	mux.HandleFunc("POST /counters", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, strings.Join(h.sw.Counters(r.URL.Query().Get("id")), "\n"))
	})
	mux.HandleFunc("POST /packets", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strconv.FormatUint(h.sw.Packets(), 10))
	})
	mux.HandleFunc("POST /acl", func(w http.ResponseWriter, r *http.Request) {
		if err := h.damageList(r.Context(), r.URL.Query()); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("POST /set", func(w http.ResponseWriter, r *http.Request) {
		if err := h.damageSet(r.Context(), r.URL.Query()); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	return mux
}
