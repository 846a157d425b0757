// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Control answers what a test asks of the service behind its clients' backs:
//
//	POST /namespace?netns=       makes a namespace as a container runtime does; answers its id;
//	                             netns is the file of the network namespace for its ports
//	POST /namespace/remove?id=   takes it away, whatever is in it
//	POST /fault                  a Fault as JSON, Delay in nanoseconds
//	POST /fault/clear
//	POST /restart, /reboot
//	POST /dump                   everything stored, as text
//	POST /handles                how many handles are open
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
	handle("/fault", func(r *http.Request) (string, error) {
		var f Fault
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&f); err != nil {
			return "", fmt.Errorf("read fault: %w", err)
		}
		s.SetFault(f)
		return "", nil
	})
	handle("/fault/clear", func(*http.Request) (string, error) { s.ClearFaults(); return "", nil })
	handle("/restart", func(*http.Request) (string, error) { return "", s.Restart(false) })
	handle("/reboot", func(*http.Request) (string, error) { return "", s.Restart(true) })
	handle("/dump", func(*http.Request) (string, error) { return s.config.HNS.Dump(), nil })
	handle("/handles", func(*http.Request) (string, error) { return strconv.Itoa(s.Handles()), nil })
	handle("/decide", func(r *http.Request) (string, error) { return s.decide(r.URL.Query()) })
	return mux
}

// changed is for changes that no client makes.
func (s *Service) changed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.config.Changed == nil {
		return nil
	}
	return s.config.Changed()
}

// Latency is a set of faults that makes calls as slow as HNS has been seen to
// be, in proportion; 1 is the full time. The figures are guesses.
func Latency(scale float64) []Fault {
	var all []Fault
	for op, full := range map[string]time.Duration{
		"Create.network": 10 * time.Second, "Create.endpoint": 300 * time.Millisecond, "Modify.namespace": 200 * time.Millisecond,
		"Modify.endpoint": 100 * time.Millisecond, "Modify.network": 50 * time.Millisecond, "Enumerate.endpoint": 5 * time.Millisecond,
		"Open.endpoint": 2 * time.Millisecond,
	} {
		all = append(all, Fault{Op: op, Delay: time.Duration(float64(full) * scale)})
	}
	return all
}
