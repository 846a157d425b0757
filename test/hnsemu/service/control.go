// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Control serves the requests of tests:
//
//	POST /namespace?netns=       makes a namespace as a container runtime does, and returns its ID;
//	                             netns is the file of the network namespace for its ports
//	POST /namespace/remove?id=   removes it, with everything in it
//	POST /network?objects=       makes a network as an administrator does, and attaches the host to it: a JSON object
//	                             with the members Network, Host, an endpoint or null, and Added, policies that the
//	                             network gets once it exists
//	POST /resolver?namespace=    the resolver of containers there, as Dns of schema 2
//	POST /container?id=&namespace=
//	                             starts a container there; with gone=true it ends
//	POST /fault                  a fault.Fault as JSON, Delay in nanoseconds
//	POST /strike?way=&address=&endpoint=&namespace=
//	                             a Way of fault.Catalogue, for a fault.Target with these fields
//	POST /fault/clear            ends all faults, and restores version and behaviour of HNS
//	POST /fault/hits             number of calls that faults have hit
//	POST /restart, /reboot
//	POST /dump                   all objects, as text
//	POST /balancers              the load balancers, one port a line
//	POST /balancer?vip=&dsr=     makes a load balancer without backends, as kube-proxy with or without DSR
//	POST /handles                number of open handles
//	POST /decide?endpoint=NAME&direction=In|Out&local=&remote=&protocol=&port=
//	                             Allow or Block under every hns.Reading, or an error
func (s *Service) Control() *http.ServeMux {
	mux := http.NewServeMux()
	handle := func(path string, f func(*http.Request) (string, error)) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			answer, err := f(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, answer)
		})
	}
	handle("/namespace", func(r *http.Request) (string, error) {
		id := s.config.HNS.AddNamespace()
		if id == "" {
			return "", errors.New("make a namespace: refused")
		}
		s.SetNetNS(id, r.URL.Query().Get("netns"))
		return id, s.changed()
	})
	handle("/namespace/remove", func(r *http.Request) (string, error) {
		s.config.HNS.RemoveNamespace(r.URL.Query().Get("id"))
		return "", s.changed()
	})
	handle("/network", func(r *http.Request) (string, error) { return "", s.makeNetwork(r) })
	handle("/resolver", func(r *http.Request) (string, error) {
		d, err := s.config.HNS.Resolver(r.URL.Query().Get("namespace"))
		if err != nil {
			return "", err
		}
		text, err := json.Marshal(d)
		return string(text), err
	})
	handle("/container", func(r *http.Request) (string, error) {
		q := r.URL.Query()
		if err := s.config.HNS.PutContainer(q.Get("namespace"), q.Get("id"), q.Get("gone") == "true"); err != nil {
			return "", err
		}
		return "", s.changed()
	})
	handle("/fault", func(r *http.Request) (string, error) {
		var f fault.Fault
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&f); err != nil {
			return "", fmt.Errorf("read fault: %w", err)
		}
		s.faults.Set(f)
		return "", nil
	})
	handle("/strike", func(r *http.Request) (string, error) { return s.strike(r.URL.Query()) })
	handle("/fault/clear", func(*http.Request) (string, error) { s.Target().Calm(); return "", nil })
	handle("/fault/hits", func(*http.Request) (string, error) { return strconv.Itoa(s.faults.Hits()), nil })
	handle("/restart", func(*http.Request) (string, error) { return "", s.Restart(false) })
	handle("/reboot", func(*http.Request) (string, error) { return "", s.Restart(true) })
	handle("/dump", func(*http.Request) (string, error) { return s.config.HNS.Dump(), nil })
	handle("/balancers", func(*http.Request) (string, error) {
		var lines []string
		for _, b := range s.Balancers() {
			lines = append(lines, fmt.Sprintf("%s proto=%d %d->%d %v dsr=%t", b.VIP, b.Protocol, b.External, b.Internal, b.Backends, b.DSR))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n"), nil
	})
	handle("/balancer", func(r *http.Request) (string, error) { return s.addBalancer(r.URL.Query()) })
	handle("/handles", func(*http.Request) (string, error) { return strconv.Itoa(s.Handles()), nil })
	handle("/decide", func(r *http.Request) (string, error) { return s.decide(r.URL.Query()) })
	return mux
}

// makeNetwork makes what a request of /network names.
func (s *Service) makeNetwork(r *http.Request) error {
	var objects struct {
		Network hns.Network
		Host    *hns.Endpoint
		Added   []hns.Policy
	}
	if err := json.Unmarshal([]byte(r.URL.Query().Get("objects")), &objects); err != nil {
		return fmt.Errorf("read objects: %w", err)
	}
	made, err := s.config.HNS.CreateNetwork(r.Context(), objects.Network)
	if err != nil {
		return err
	}
	if len(objects.Added) > 0 {
		if _, err := s.config.HNS.ModifyNetwork(r.Context(), made.ID, hns.Add, objects.Added...); err != nil {
			return err
		}
	}
	if e := objects.Host; e != nil {
		e.HostComputeNetwork = made.ID
		endpoint, err := s.config.HNS.CreateEndpoint(r.Context(), *e)
		if err != nil {
			return err
		}
		if err := s.config.HNS.AttachEndpoint(r.Context(), hns.HostNamespace, endpoint.ID); err != nil {
			return err
		}
	}
	return s.changed()
}

// changed publishes changes that no client made.
func (s *Service) changed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.config.Changed == nil {
		return nil
	}
	return s.config.Changed()
}
