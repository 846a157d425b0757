// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/cluster"
)

// azureConf is the list of azure-vnet for Linux nodes of AKS with overlay addresses, of one or both IP versions.
func azureConf(*cluster.Node) string {
	return `{
   "cniVersion":"0.3.0",
   "name":"azure",
   "plugins":[
      {
         "type":"azure-vnet",
         "mode":"transparent",
         "ipsToRouteViaHost":["169.254.20.10"],
         "ipam":{
            "type":"azure-cns",
            "mode":"overlay"
         }
      },
      {
         "type":"portmap",
         "capabilities":{
            "portMappings":true
         },
         "snat":true
      }
   ]
}
`
}

// azureFiles are what azure-vnet writes. Their paths cannot be configured, so the nodes share its list of endpoints,
// which distinguishes them by container.
var azureFiles = []string{"/run/azure-vnet.json", "/run/azure-vnet.json.lock", "/run/azure-vnet", "/var/log/azure-vnet.log"}

// startAzure serves the addresses of each node at the port of CNS, the daemon from which azure-vnet requests them.
func startAzure(t *testing.T, c *cluster.Cluster, _ string) {
	t.Helper()
	for _, path := range azureFiles {
		if _, err := os.Lstat(path); err == nil {
			t.Fatalf("%s exists: on this machine runs azure-vnet, or an earlier test was killed", path)
		}
	}
	t.Cleanup(func() {
		if text, err := os.ReadFile("/var/log/azure-vnet.log"); err == nil && t.Failed() {
			t.Logf("azure-vnet:\n%s", text[max(0, len(text)-4000):])
		}
		for _, path := range azureFiles {
			if err := os.RemoveAll(path); err != nil {
				t.Error(err)
			}
		}
	})
	for _, n := range c.Nodes {
		serveCNS(t, c, n)
	}
}

// serveCNS serves the addresses of a node at the port of CNS.
func serveCNS(t *testing.T, c *cluster.Cluster, n *cluster.Node) {
	t.Helper()
	_, router := c.Outside()
	s := &cns{node: n, router: router[0], assigned: make(map[string][]netip.Addr)}
	var l net.Listener
	if err := n.NS.Do(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:10090"); return err }); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /network/requestipconfigs", s.request)
	mux.HandleFunc("POST /network/releaseipconfigs", s.release)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
}

// cns assigns the addresses of a node to its pods.
type cns struct {
	node   *cluster.Node
	router netip.Addr

	mu sync.Mutex
	// assigned has the addresses by the interface of a pod, one of each range of the node.
	assigned map[string][]netip.Addr
}

// The messages are those of CNS.
type (
	cnsRequest struct {
		PodInterfaceID string `json:"podInterfaceID"`
	}
	cnsSubnet struct {
		IPAddress    string
		PrefixLength int
	}
	cnsContainer struct{ IPSubnet cnsSubnet }
	cnsHost      struct{ Gateway, PrimaryIP, Subnet string }
	cnsPod       struct {
		PodIPConfig                     cnsSubnet
		NetworkContainerPrimaryIPConfig cnsContainer
		HostPrimaryIPInfo               cnsHost
		NICType                         string
	}
	cnsResult struct {
		ReturnCode int
		Message    string
	}
	cnsResponse struct {
		PodIPInfo []cnsPod  `json:"podIPInfo"`
		Response  cnsResult `json:"response"`
	}
)

func (s *cns) request(w http.ResponseWriter, r *http.Request) {
	var request cnsRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil || request.PodInterfaceID == "" {
		http.Error(w, fmt.Sprintf("request without podInterfaceID: %v", err), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.assigned[request.PodInterfaceID] == nil {
		for _, p := range s.node.PodCIDRs {
			s.assigned[request.PodInterfaceID] = append(s.assigned[request.PodInterfaceID], s.free(p))
		}
	}
	var answer cnsResponse
	for i, a := range s.assigned[request.PodInterfaceID] {
		p := s.node.PodCIDRs[i]
		answer.PodIPInfo = append(answer.PodIPInfo, cnsPod{
			PodIPConfig:                     cnsSubnet{a.String(), p.Bits()},
			NetworkContainerPrimaryIPConfig: cnsContainer{cnsSubnet{p.Addr().String(), p.Bits()}},
			HostPrimaryIPInfo:               cnsHost{Gateway: s.router.String(), PrimaryIP: s.node.Addresses()[0].String(), Subnet: netip.PrefixFrom(s.router, 24).Masked().String()},
			NICType:                         "InfraNIC",
		})
	}
	reply(w, answer)
}

// free returns the lowest address of a range that no pod has.
func (s *cns) free(p netip.Prefix) netip.Addr {
	used := make(map[netip.Addr]bool)
	for _, all := range s.assigned {
		for _, a := range all {
			used[a] = true
		}
	}
	a := p.Addr().Next().Next()
	for used[a] {
		a = a.Next()
	}
	return a
}

// release frees the addresses of a pod. They may be assigned again immediately.
func (s *cns) release(w http.ResponseWriter, r *http.Request) {
	var request cnsRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.assigned, request.PodInterfaceID)
	reply(w, cnsResult{})
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the plugin reports an answer that ends early
}
