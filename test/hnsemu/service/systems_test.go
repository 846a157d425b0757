// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
)

func TestContainersShare(t *testing.T) { containersShare(t) }

// containersShare attaches an endpoint to the two containers of a pod through schema 1, and
// detaches it again.
func containersShare(t testing.TB) {
	c := newClient(t, hns.Server2022)
	_, network := c.make(settings("Create.network", overlayNetwork))
	namespace, namespaceID := c.make(settings("Create.namespace", `{}`))
	call := func(method, path, body string) string {
		t.Helper()
		return *c.do(0, Call{Op: "HNSCall", Args: [3]string{method, path, body}}).Output
	}
	made := call("POST", "/endpoints/", `{"Name":"pod","VirtualNetwork":"`+network+`","Policies":[{"Type":"NAT","Protocol":"tcp","InternalPort":80,"ExternalPort":8080}]}`)
	if !strings.Contains(made, `"Type":"NAT"`) || !strings.Contains(made, `"Protocol":"TCP"`) {
		t.Errorf("made %s", made)
	}
	if bad := call("POST", "/endpoints/", `{"VirtualNetwork":"`+network+`","Policies":[{"Type":"NAT","Protocol":"sctp"}]}`); !strings.Contains(bad, `"Success":false`) {
		t.Errorf("a mapping of sctp: %s", bad)
	}
	endpoints, _ := c.s.all(endpoints)
	id := endpoints[0]["ID"]
	c.do(codeNoSystem, Call{Op: "Open.system", Args: [3]string{"pause"}})
	for _, name := range []string{"pause", "app"} {
		c.do(0, Call{Op: "Modify.namespace", Handle: namespace, Args: [3]string{`{"ResourceType":"Container","RequestType":"Add","Settings":{"ContainerId":"` + name + `"}}`}})
	}
	container := func(name, verb string, code uint32) {
		t.Helper()
		h := c.do(0, Call{Op: "Open.system", Args: [3]string{name}}).Handle
		if got := c.query(systems, h); got["SystemType"] != "Container" || got["Id"] != name {
			t.Errorf("%s is %v", name, got)
		}
		c.do(code, Call{Op: "Modify.system", Handle: h, Args: [3]string{`{"ResourceType":"Network","Settings":"` + id + `","RequestType":"` + verb + `"}`}})
		c.do(0, Call{Op: "Close.system", Handle: h})
	}
	expect := func(where, shared string) {
		t.Helper()
		got := call("GET", "/endpoints/"+id, "")
		attached := strings.Contains(strings.ToLower(got), `"namespace":{"id":"`+namespaceID)
		if attached != (where != "") || strings.Contains(got, fmt.Sprintf(`"SharedContainers":[%s]`, shared)) != (shared != "") {
			t.Errorf("the endpoint is %s, want it with %q", got, shared)
		}
	}
	expect("", "")
	container("app", "Remove", hns.CodeEndpointNotAttached)
	container("pause", "Add", 0)
	expect(namespaceID, `"pause"`)
	call("POST", "/endpoints/"+id+"/attach", `{"SystemType":"Container","ContainerId":"app"}`)
	expect(namespaceID, `"pause","app"`)
	container("pause", "Remove", 0)
	expect(namespaceID, `"app"`)
	call("POST", "/endpoints/"+id+"/detach", `{"SystemType":"Container","ContainerId":"app"}`)
	expect("", "")
	container("app", "Pause", hns.CodeNotImplemented)
}
