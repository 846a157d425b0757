// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// recorder runs a scenario on a service with a planted bug, and records the failures.
type recorder struct {
	testing.TB
	bug   hnstest.Bug
	found []string
}

// over ends a scenario by panic.
type over struct{}

func (r *recorder) Helper()           {}
func (r *recorder) Error(args ...any) { r.found = append(r.found, fmt.Sprint(args...)) }
func (r *recorder) Fatal(args ...any) { r.Error(args...); panic(over{}) }
func (r *recorder) Errorf(format string, args ...any) {
	r.found = append(r.found, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); panic(over{}) }

func (r *recorder) run(scenario func(testing.TB)) {
	defer func() {
		switch p := recover(); p.(type) {
		case nil, over:
		default: // a scenario may panic on an answer that a correct service never gives
			r.Errorf("panic: %v", p)
		}
	}()
	scenario(r)
}

// scenarios are the tests of the service's answers.
var scenarios = map[string]func(testing.TB){"life": lifeThroughHandles, "errors": errorsAreDocuments, "schemas": bothSchemas, "versions": versionsGate,
	"balancers": loadBalancers, "restarts": restarts, "policies": policiesDecide, "containers": containersShare, "conflicts": conflicts}

// TestPlantedBugs checks that at least one scenario finds each planted bug, and that all pass
// without a bug.
func TestPlantedBugs(t *testing.T) {
	for _, bug := range append(hnstest.Bugs(), "") {
		var found []string
		for name, scenario := range scenarios {
			r := &recorder{TB: t, bug: bug}
			r.run(scenario)
			if len(r.found) > 0 {
				found = append(found, name)
			}
			if bug == "" && len(r.found) > 0 {
				t.Errorf("%s finds, where there is no bug: %s", name, strings.Join(r.found, "\n"))
			}
		}
		if bug != "" && len(found) == 0 {
			t.Errorf("no check notices that %s", bug)
		}
		t.Logf("%q is found by %v", bug, found)
	}
}

func TestPoliciesDecide(t *testing.T) { policiesDecide(t) }

// policiesDecide writes ACLs and sets as Isthmus does, and checks the verdicts.
func policiesDecide(t testing.TB) {
	c := newClient(t, hns.Server2022)
	network, _ := c.make(settings("Create.network", overlayNetwork))
	pod, _ := c.make(Call{Op: "Create.endpoint", Handle: network, Args: [3]string{podEndpoint}})
	_, id := c.make(settings("Create.namespace", `{}`))
	namespace := c.do(0, Call{Op: "Open.namespace", GUID: id}).Handle
	podID := c.query("endpoint", pod)["ID"].(string)
	c.do(0, Call{Op: "Modify.namespace", Handle: namespace, Args: [3]string{`{"ResourceType":"Endpoint","RequestType":"Add","Settings":{"EndpointId":"` + podID + `"}}`}})
	modify := func(op string, handle uint64, request, policies string) {
		c.t.Helper()
		c.do(0, Call{Op: op, Handle: handle, Args: [3]string{`{"ResourceType":"Policy","RequestType":"` + request + `","Settings":{"Policies":[` + policies + `]}}`}})
	}
	rule := func(action, direction, rest string, priority int) string {
		return fmt.Sprintf(`{"Type":"ACL","Settings":{"Protocols":"6","Action":"%s","Direction":"%s","RuleType":"Switch","Priority":%d%s}}`, action, direction, priority, rest)
	}
	set := func(values string) string {
		return `{"Type":"SetPolicy","Settings":{"Id":"s","Name":"s","PolicyType":"IPSET","Values":"` + values + `"}}`
	}
	expect := func(direction hns.Direction, remote string, port uint16, want bool) {
		c.t.Helper()
		out, err := c.s.config.HNS.Send("pod", hns.Packet{Direction: direction, Remote: netip.MustParseAddr(remote), Protocol: 6, Port: port}, hns.Reading{})
		if err != nil || out.Allow != want {
			c.t.Errorf("%s %s:%d: allow=%t (%v), want %t", direction, remote, port, out.Allow, err, want)
		}
	}
	modify("Modify.network", network, "Add", set("10.9.0.1"))
	modify("Modify.endpoint", pod, "Update", strings.Join([]string{rule("Allow", "In", `,"LocalAddresses":"s","LocalPorts":"80"`, 200), rule("Block", "In", "", 300), rule("Block", "Out", `,"RemotePorts":"25"`, 200), rule("Allow", "Out", "", 300)}, ","))
	expect(hns.In, "10.9.0.1", 80, true)
	expect(hns.In, "10.9.0.1", 81, false)
	expect(hns.In, "10.9.0.2", 80, false)
	expect(hns.Out, "10.9.0.2", 80, true)
	expect(hns.Out, "10.9.0.2", 25, false)
	modify("Modify.network", network, "Update", set("10.9.0.2"))
	expect(hns.In, "10.9.0.1", 80, false)
	expect(hns.In, "10.9.0.2", 80, true)
	more := rule("Block", "In", `,"RemoteAddresses":"10.9.0.2"`, 150)
	modify("Modify.endpoint", pod, "Add", more)
	expect(hns.In, "10.9.0.2", 80, false)
	modify("Modify.endpoint", pod, "Update", rule("Allow", "In", "", 200))
	e, err := c.s.config.HNS.Endpoint(context.Background(), podID)
	if acls, _ := e.ACLs(); err != nil || len(acls) != 1 {
		c.t.Errorf("after an update there are %v, %v", acls, err)
	}
	route := `{"Type":"RemoteSubnetRoute","Settings":{"DestinationPrefix":"10.40.1.0/24","IsolationId":4096,"ProviderAddress":"192.0.2.11","DistributedRouterMacAddress":"4E-5B-11-20-AA-01"}}`
	for i, request := range []string{"Add", "Remove"} {
		modify("Modify.network", network, request, route)
		if got := strings.Count(fmt.Sprint(c.query("network", network)), "RemoteSubnetRoute"); got != 1-i {
			c.t.Errorf("after %s there are %d routes", request, got)
		}
	}
}

func TestConflicts(t *testing.T) { conflicts(t) }

// conflicts requests resources that are in use, and checks that deleted and detached objects are
// gone.
func conflicts(t testing.TB) {
	c := newClient(t, hns.Server2022)
	network, _ := c.make(settings("Create.network", overlayNetwork))
	endpoint := func(body string) Call {
		return Call{Op: "Create.endpoint", Handle: network, Args: [3]string{body}}
	}
	const mapped = `{"Name":"a","SchemaVersion":{"Major":2},"IpConfigurations":[{"IpAddress":"10.40.3.9"}],"Policies":[{"Type":"PortMapping","Settings":{"Protocol":6,"InternalPort":80,"ExternalPort":8080}}]}`
	handle, id := c.make(endpoint(mapped))
	c.do(hns.CodePortExists, endpoint(strings.Replace(mapped, "3.9", "3.10", 1)))
	c.do(hns.CodeObjectExists, endpoint(`{"SchemaVersion":{"Major":2},"IpConfigurations":[{"IpAddress":"10.40.3.9"}]}`))
	_, namespaceID := c.make(settings("Create.namespace", `{}`))
	namespace := c.do(0, Call{Op: "Open.namespace", GUID: namespaceID}).Handle
	move := func(request string) Call {
		return Call{Op: "Modify.namespace", Handle: namespace, Args: [3]string{`{"ResourceType":"Endpoint","RequestType":"` + request + `","Settings":{"EndpointId":"` + id + `"}}`}}
	}
	c.do(0, move("Add"))
	if got := fmt.Sprint(c.query("namespace", namespace)["Resources"]); !strings.Contains(got, id) {
		c.t.Errorf("the namespace has %s", got)
	}
	c.do(0, move("Remove"))
	if got := c.query("endpoint", handle)["HostComputeNamespace"]; got != nil && got != "" {
		c.t.Errorf("detached, the endpoint is in %v", got)
	}
	c.do(0, Call{Op: "Delete.endpoint", GUID: id})
	c.do(hns.CodeNotFound, Call{Op: "Open.endpoint", GUID: id})
	c.make(endpoint(mapped))
}
