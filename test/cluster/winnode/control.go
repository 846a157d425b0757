// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// control answers what a container runtime and the network ask of Windows.
func control(system *hns.Fake) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /namespace", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, system.AddNamespace())
	})
	mux.HandleFunc("POST /decide", func(w http.ResponseWriter, r *http.Request) {
		v, err := decide(system, r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintln(w, v)
	})
	mux.HandleFunc("POST /dump", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, system.Dump())
	})
	return mux
}

// decide asks the ACLs on a container's endpoint under every way to read what
// HNS leaves undocumented; if they do not agree, that is an error.
func decide(system *hns.Fake, r *http.Request) (model.Verdict, error) {
	q := r.URL.Query()
	remote, err := netip.ParseAddr(q.Get("remote"))
	if err != nil {
		return model.Deny, err
	}
	protocol, err := strconv.ParseUint(q.Get("protocol"), 10, 8)
	if err != nil {
		return model.Deny, err
	}
	port, err := strconv.ParseUint(q.Get("port"), 10, 16)
	if err != nil {
		return model.Deny, err
	}
	p := hns.Packet{Direction: hns.In, Remote: remote, Protocol: uint8(protocol), Port: uint16(port), SourcePort: 40000}
	if q.Get("direction") == model.Egress.String() {
		p.Direction = hns.Out
	}
	name := q.Get("container") + "_eth0_isthmus"
	var verdict model.Verdict
	for i, reading := range hns.Readings() {
		out, err := system.Send(name, p, reading)
		if err != nil {
			return model.Deny, err
		}
		v := model.Deny
		if out.Allow {
			v = model.Allow
		}
		if i > 0 && v != verdict {
			return model.Deny, fmt.Errorf("the ACLs say %s, but %s if HNS is read as %s (rule %s)", verdict, v, reading, out.ID)
		}
		verdict = v
	}
	return verdict, nil
}
