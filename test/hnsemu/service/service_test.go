// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

const (
	overlayNetwork = `{"Name":"net","Type":"Overlay","Flags":8,"Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.40.3.0/24",
		"Routes":[{"NextHop":"10.40.3.1","DestinationPrefix":"0.0.0.0/0"}],"Policies":[{"Type":"VSID","Settings":{"IsolationId":4096}}]}]}],
		"SchemaVersion":{"Major":2,"Minor":0}}`
	podEndpoint = `{"Name":"pod","SchemaVersion":{"Major":2,"Minor":0}}`
)

// client is a program that uses the DLLs.
type client struct {
	t    testing.TB
	s    *Service
	name string
}

func newClient(t testing.TB, v hns.Version) *client {
	t.Helper()
	fake := hnstest.NewFake(v)
	if r, ok := t.(*recorder); ok {
		fake.Plant(r.bug)
	}
	return &client{t, New(Config{HNS: fake, Version: v, Log: slog.New(slog.DiscardHandler)}), "client"}
}

// do makes a call and checks its result code.
func (c *client) do(code uint32, call Call) Answer {
	c.t.Helper()
	a := c.s.Do(c.name, call)
	if a.Result != code {
		text := ""
		if a.Error != nil {
			text = *a.Error
		}
		c.t.Fatalf("%s: result %#x %s, want %#x", call.Op, a.Result, text, code)
	}
	return a
}

func settings(op, text string) Call { return Call{Op: op, Args: [3]string{text}} }

// make creates an object and returns its handle and ID.
func (c *client) make(call Call) (handle uint64, id string) {
	c.t.Helper()
	handle = c.do(0, call).Handle
	_, kind, _ := strings.Cut(call.Op, ".")
	return handle, c.query(kind, handle)["ID"].(string)
}

func (c *client) query(kind string, handle uint64) map[string]any {
	c.t.Helper()
	a := c.do(0, Call{Op: "Query." + kind, Handle: handle})
	var object map[string]any
	if a.Output == nil || a.Error != nil || json.Unmarshal([]byte(*a.Output), &object) != nil {
		c.t.Fatalf("query of %s: %+v", kind, a)
	}
	return object
}

func TestLifeThroughHandles(t *testing.T) { lifeThroughHandles(t) }

func lifeThroughHandles(t testing.TB) {
	c := newClient(t, hns.Server2022)
	network, networkID := c.make(settings("Create.network", overlayNetwork))
	pod, podID := c.make(Call{Op: "Create.endpoint", Handle: network, Args: [3]string{podEndpoint}})
	namespace, namespaceID := c.make(settings("Create.namespace", `{"Type":"HostDefault","NamespaceId":5}`))
	attach := Call{Op: "Modify.namespace", Handle: namespace, Args: [3]string{`{"ResourceType":"Endpoint","RequestType":"Add","Settings":{"EndpointId":"` + podID + `"}}`}}
	c.do(0, attach)
	c.do(0, attach) // as other CNI plugins do for every container of a pod
	other, otherID := c.make(settings("Create.namespace", `{"Type":"HostDefault"}`))
	attach.Handle = other
	c.do(hns.CodeNamespaceHas, attach)
	c.do(0, Call{Op: "Delete.namespace", GUID: otherID})
	c.do(0, Call{Op: "Close.namespace", Handle: other})
	if got := c.query("endpoint", pod); got["HostComputeNamespace"] != namespaceID || got["HostComputeNetwork"] != networkID {
		t.Errorf("the endpoint is %v", got)
	} else if _, err := net.ParseMAC(fmt.Sprint(got["MacAddress"])); err != nil || !strings.Contains(fmt.Sprint(got["IpConfigurations"]), "10.40.3.2") {
		t.Errorf("the endpoint was given %v and %v: %v", got["MacAddress"], got["IpConfigurations"], err)
	}
	c.do(0, Call{Op: "Modify.namespace", Handle: namespace, Args: [3]string{`{"ResourceType":"Container","RequestType":"Add","Settings":{"ContainerId":"c"}}`}})
	c.do(hns.CodeRequestUnsupported, Call{Op: "Delete.namespace", GUID: namespaceID})
	for filter, want := range map[string]int{`{\"VirtualNetwork\":\"` + strings.ToUpper(networkID) + `\"}`: 1, `{\"Name\":\"POD\"}`: 0, `{\"State\":3}`: 1, `{\"State\":2}`: 0, ``: 1} {
		a := c.do(0, settings("Enumerate.endpoint", `{"Filter":"`+filter+`"}`))
		var ids []string
		if err := json.Unmarshal([]byte(*a.Output), &ids); err != nil || len(ids) != want {
			t.Errorf("filter %s: %v, %v", filter, ids, err)
		}
	}
	c.do(0, Call{Op: "Delete.network", GUID: networkID})
	c.do(hns.CodeNotFound, Call{Op: "Query.endpoint", Handle: pod})
	c.do(hns.CodeNotFound, Call{Op: "Open.endpoint", GUID: podID})
	c.do(0, Call{Op: "Close.endpoint", Handle: pod})
	c.do(hnstest.CodeInvalidHandle, Call{Op: "Close.endpoint", Handle: pod})
	c.do(hnstest.CodeInvalidHandle, Call{Op: "Query.namespace", Handle: network})
	if n := c.s.Handles(); n != 2 {
		t.Errorf("%d handles are open, want those of the network and the namespace", n)
	}
	c.s.Disconnect(c.name)
	if n := c.s.Handles(); n != 0 {
		t.Errorf("%d handles outlive their client", n)
	}
}

func TestErrorsAreDocuments(t *testing.T) { errorsAreDocuments(t) }

func errorsAreDocuments(t testing.TB) {
	c := newClient(t, hns.Server2022)
	c.make(settings("Create.network", overlayNetwork))
	a := c.do(hns.CodeNetworkExists, settings("Create.network", overlayNetwork))
	if want := `{"Error":"A network with this name already exists. ","ErrorCode":2151350288,"Success":false}`; a.Output != nil || *a.Error != want {
		t.Errorf("error document %s, want %s", *a.Error, want)
	}
	c.do(hns.CodeInvalidJSON, settings("Create.network", `{`))
	a = c.do(0, Call{Op: "HNSCall", Args: [3]string{"GET", "/endpoints/x", ""}})
	if a.Error != nil || !strings.Contains(*a.Output, `"Success":false`) || !strings.Contains(*a.Output, fmt.Sprint(hns.CodeNotFound)) {
		t.Errorf("schema 1 answers %s", *a.Output)
	}
}

func TestBothSchemasSeeTheSameObjects(t *testing.T) { bothSchemas(t) }

func bothSchemas(t testing.TB) {
	c := newClient(t, hns.Server2022)
	network, _ := c.make(settings("Create.network", overlayNetwork))
	_, id := c.make(Call{Op: "Create.endpoint", Handle: network, Args: [3]string{`{"Name":"pod","SchemaVersion":{"Major":2},"Dns":{"Domain":"corp","Search":["shop.svc.cluster.local","svc.cluster.local"],"ServerList":["10.96.0.10"],"Options":["ndots:5"]},"Policies":[
		{"Type":"OutBoundNAT","Settings":{"Exceptions":["10.0.0.0/8"]}},{"Type":"ACL","Settings":{"Id":"x","Protocols":"6","Action":"Block","Direction":"In","RuleType":"Switch","Priority":300}}]}`}})
	old := func(method, path, body string) string {
		return *c.do(0, Call{Op: "HNSCall", Args: [3]string{method, path, body}}).Output
	}
	got := old("GET", "/endpoints/"+strings.ToUpper(id), "")
	for _, want := range []string{`"ExceptionList":["10.0.0.0/8"]`, `"IPAddress":"10.40.3.2"`, `"GatewayAddress":"10.40.3.1"`, `"DNSServerList":"10.96.0.10"`,
		`"DNSSuffix":"shop.svc.cluster.local,svc.cluster.local"`, `"DNSDomain":"corp"`, `"ID":"` + strings.ToUpper(id) + `"`, `"State":1`} {
		if !strings.Contains(got, want) {
			t.Errorf("schema 1 shows no %s in %s", want, got)
		}
	}
	// An update replaces the ACLs and keeps the other policies.
	old("POST", "/endpoints/"+id, `{"Policies":[{"Type":"ACL","Id":"y","Protocol":17,"Action":"Allow","Direction":"Out","RuleType":"Switch","Priority":200}]}`)
	e, err := c.s.config.HNS.Endpoint(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	acls, err := e.ACLs()
	if err != nil || len(acls) != 1 || acls[0].ID != "y" || acls[0].Protocols != "17" || len(e.Policies) != 2 {
		t.Errorf("after an update by schema 1: %v %v", e.Policies, err)
	}
	if got := old("POST", "/endpoints/"+id, `{"Policies":[{"Type":"PortMapping"}]}`); !strings.Contains(got, fmt.Sprint(hns.CodeInvalidPolicyType)) {
		t.Errorf("a policy of schema 2 in schema 1: %s", got)
	}
	old("POST", "/endpoints/"+id+"/attach", `{"SystemType":"Host","CompartmentId":1}`)
	if got := old("POST", "/endpoints/"+id+"/attach", `{"SystemType":"Host","CompartmentId":1}`); !strings.Contains(got, fmt.Sprint(hns.CodeAlreadyAttached)) {
		t.Errorf("a second attachment: %s", got)
	}
	if got := old("GET", "/endpoints/"+id, ""); !strings.Contains(got, `"State":2`) {
		t.Errorf("attached to the host: %s", got)
	}
}

func TestVersionsGate(t *testing.T) { versionsGate(t) }

func versionsGate(t testing.TB) {
	for _, c := range []struct {
		op, policy string
		since      hns.Version
	}{
		{"Modify.network", `{"Type":"SetPolicy","Settings":{"Id":"s","Name":"s","PolicyType":"IPSET","Values":"10.0.0.1"}}`, hns.Server2022},
		{"Modify.network", `{"Type":"NetworkACL","Settings":{}}`, hns.Server2025},
		{"Modify.endpoint", `{"Type":"L4WFPPROXY","Settings":{}}`, hns.Server2022},
		{"Modify.endpoint", `{"Type":"TierAcl","Settings":{}}`, hns.Server2025},
	} {
		for _, v := range hns.Profiles() {
			cl := newClient(t, v)
			network, _ := cl.make(settings("Create.network", overlayNetwork))
			endpoint, _ := cl.make(Call{Op: "Create.endpoint", Handle: network, Args: [3]string{podEndpoint}})
			call := Call{Op: c.op, Handle: network, Args: [3]string{`{"ResourceType":"Policy","RequestType":"Add","Settings":{"Policies":[` + c.policy + `]}}`}}
			if c.op == "Modify.endpoint" {
				call.Handle = endpoint
			}
			want := hns.CodeInvalidPolicyType
			if v.AtLeast(c.since.Major, c.since.Minor) {
				want = 0
			}
			cl.do(want, call)
		}
	}
}

func TestLoadBalancers(t *testing.T) { loadBalancers(t) }

func loadBalancers(t testing.TB) {
	c := newClient(t, hns.Server2025)
	network, _ := c.make(settings("Create.network", overlayNetwork))
	_, id := c.make(Call{Op: "Create.endpoint", Handle: network, Args: [3]string{podEndpoint}})
	balancer := func(endpoint, vip string, port int) string {
		return fmt.Sprintf(`{"HostComputeEndpoints":["%s"],"FrontendVIPs":["%s"],"PortMappings":[{"Protocol":6,"InternalPort":8080,"ExternalPort":%d}]}`, endpoint, vip, port)
	}
	handle, _ := c.make(settings("Create.loadbalancer", balancer(id, "10.96.0.1", 80)))
	c.do(hns.CodePortExists, settings("Create.loadbalancer", balancer(id, "10.96.0.1", 80)))
	c.do(0, settings("Create.loadbalancer", balancer(id, "10.96.0.2", 80)))
	c.do(hns.CodeEndpointNotFound, settings("Create.loadbalancer", balancer("5f0b1190-63be-4e0c-b974-bd0f55675a42", "10.96.0.3", 80)))
	c.do(hns.CodeInvalidPolicy, settings("Create.loadbalancer", balancer(id, "10.96.0.3", 0)))
	modify := Call{Op: "Modify.loadbalancer", Handle: handle, Args: [3]string{balancer(id, "10.96.0.1", 81)}}
	c.do(0, modify)
	c.do(0, settings("Create.loadbalancer", balancer(id, "10.96.0.1", 80)))
	c.s.config.Version = hns.Server2022
	c.do(hns.CodeNotImplemented, modify)
}

func TestRestarts(t *testing.T) { restarts(t) }

func restarts(t testing.TB) {
	c := newClient(t, hns.Server2022)
	network, _ := c.make(settings("Create.network", overlayNetwork))
	c.make(Call{Op: "Create.endpoint", Handle: network, Args: [3]string{podEndpoint}})
	text, err := c.s.config.HNS.Save()
	if err != nil {
		t.Fatal(err)
	}
	dump := c.s.config.HNS.Dump()
	again := newClient(t, hns.Server2022)
	if err := again.s.config.HNS.Load(text); err != nil || again.s.config.HNS.Dump() != dump {
		t.Errorf("loaded %v\n%s\nwant\n%s", err, again.s.config.HNS.Dump(), dump)
	}
	again.do(hns.CodeNetworkExists, settings("Create.network", overlayNetwork))
	_, other := again.make(settings("Create.namespace", `{}`))
	if strings.Contains(string(text), other) {
		t.Error("an identifier is used twice after a restart")
	}
	if err := c.s.Restart(false); err != nil {
		t.Fatal(err)
	}
	c.do(hnstest.CodeInvalidHandle, Call{Op: "Query.network", Handle: network})
	if c.s.config.HNS.Dump() != dump {
		t.Error("a restart of the service lost something")
	}
	if err := c.s.Restart(true); err != nil {
		t.Fatal(err)
	}
	if got := c.s.config.HNS.Dump(); got != "" {
		t.Errorf("after a reboot there is\n%s", got)
	}
}

func TestFaults(t *testing.T) {
	create := settings("Create.network", overlayNetwork)
	for _, f := range []struct {
		name   string
		fault  fault.Fault
		first  uint32
		exists bool // after the first call
	}{
		{"error", fault.Fault{Op: "Create.network", Times: 1, Code: hns.CodeUnspecified}, hns.CodeUnspecified, false},
		{"error after the deed", fault.Fault{Op: "Create.network", Times: 1, Code: hns.CodeTimeout, After: true}, hns.CodeTimeout, true},
		{"lie", fault.Fault{Op: "Create.network", Times: 1, Lie: true}, 0, false},
		{"of another call", fault.Fault{Op: "Create.endpoint", Times: 1, Code: hns.CodeUnspecified}, 0, true},
		{"of another object", fault.Fault{Contains: "other", Code: hns.CodeUnspecified}, 0, true},
		{"later", fault.Fault{Op: "Create.network", Skip: 1, Code: hns.CodeUnspecified}, 0, true},
		{"slow", fault.Fault{Delay: time.Millisecond}, 0, true},
	} {
		c := newClient(t, hns.Server2022)
		c.s.faults.Set(f.fault)
		c.do(f.first, create)
		c.s.faults.Clear()
		if exists := c.s.config.HNS.Dump() != ""; exists != f.exists {
			t.Errorf("%s: made %t, want %t", f.name, exists, f.exists)
		}
	}
}

func TestHang(t *testing.T) {
	c := newClient(t, hns.Server2022)
	c.s.faults.Set(fault.Fault{Op: "Create.network", Times: 1, Hang: true})
	done := make(chan Answer, 1)
	go func() { done <- c.s.Do(c.name, settings("Create.network", overlayNetwork)) }()
	select {
	case a := <-done:
		t.Fatalf("a call that hangs has answered %+v", a)
	case <-time.After(50 * time.Millisecond):
	}
	c.do(0, settings("Create.namespace", `{}`)) // other calls proceed
	c.s.faults.Clear()
	if a := <-done; a.Result != 0 {
		t.Errorf("the call that hung answered %#x", a.Result)
	}
}

// wireCall makes the frame of a call.
func wireCall(c Call) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 4), c.Handle)
	b = append(b, 0x90, 0x11, 0x0b, 0x5f, 0xbe, 0x63, 0x0c, 0x4e, 0xb9, 0x74, 0xbd, 0x0f, 0x55, 0x67, 0x5a, 0x42)
	for _, text := range []string{c.Op, c.Args[0], c.Args[1], c.Args[2]} {
		units := utf16.Encode([]rune(text))
		b = binary.LittleEndian.AppendUint32(b, uint32(2*len(units)))
		for _, u := range units {
			b = binary.LittleEndian.AppendUint16(b, u)
		}
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func TestWire(t *testing.T) {
	c, err := decodeCall(wireCall(Call{Op: "Open.network", Handle: 7, Args: [3]string{"ü", "", "x"}})[4:])
	if want := (Call{Op: "Open.network", Handle: 7, GUID: "5f0b1190-63be-4e0c-b974-bd0f55675a42", Args: [3]string{"ü", "", "x"}}); err != nil || c != want {
		t.Fatalf("got %+v, %v", c, err)
	}
	var calls bytes.Buffer
	s := New(Config{HNS: hnstest.NewFake(hns.Server2022), Version: hns.Server2022, Calls: &calls, Log: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn.Write(make([]byte, clientSize))
	conn.Write(wireCall(settings("Create.namespace", `{"Type":"Host"}`)))
	head := make([]byte, 4+4+8)
	if _, err := io.ReadFull(conn, head); err != nil || binary.LittleEndian.Uint32(head[4:]) != 0 || binary.LittleEndian.Uint64(head[8:]) == 0 {
		t.Fatalf("answered %x, %v", head, err)
	}
	if n := s.Handles(); n != 1 {
		t.Errorf("%d handles, want 1", n)
	}
	conn.Close()
	for deadline := time.Now().Add(5 * time.Second); s.Handles() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a handle outlives the connection")
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if !strings.Contains(calls.String(), `"Op":"Create.namespace"`) {
		t.Errorf("the log of calls is %q", calls.String())
	}
}

func TestControl(t *testing.T) {
	c := newClient(t, hns.Server2022)
	web := httptest.NewServer(c.s.Control())
	defer web.Close()
	post := func(path, body string) (string, int) {
		r, err := web.Client().Post(web.URL+path, "", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, _ := io.ReadAll(r.Body)
		return strings.TrimSpace(string(text)), r.StatusCode
	}
	id, code := post("/namespace?netns=/n", "")
	if code != 200 || c.s.NetNS(id) != "/n" {
		t.Errorf("made namespace %q for %q", id, c.s.NetNS(id))
	}
	for path, body := range map[string]string{"/fault": `{"Opp":"x"}`, "/decide?endpoint=x&remote=10.0.0.1&protocol=6&port=80": "", "/decide?remote=x": ""} {
		if text, code := post(path, body); code != 400 || text == "" {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if _, code := post("/fault", `{"Op":"Create.network","Code":2147942405}`); code != 200 {
		t.Errorf("a fault was refused: %d", code)
	}
	c.do(hns.CodeAccessDenied, settings("Create.network", overlayNetwork))
	post("/fault/clear", "")
	c.do(0, settings("Create.network", overlayNetwork))
	made := `{"Network":` + strings.NewReplacer(`"net"`, `"cbr0"`, "Overlay", "L2Bridge").Replace(overlayNetwork) + `,"Host":{"Name":"cbr0_ep","SchemaVersion":{"Major":2},"IpConfigurations":[{"IpAddress":"10.40.3.2"}]}}`
	if text, code := post("/network?objects="+url.QueryEscape(made), ""); code != 200 || !strings.Contains(c.s.config.HNS.Dump(), "cbr0_ep") {
		t.Errorf("a network with an endpoint of the host: %d %s\n%s", code, text, c.s.config.HNS.Dump())
	}
	if text, code := post("/network?objects=x", ""); code != 400 || text == "" {
		t.Errorf("a broken network: %d %s", code, text)
	}
}

// FuzzCall searches for frames and calls that make the service panic or break its invariants.
func FuzzCall(f *testing.F) {
	f.Add(wireCall(settings("Create.network", overlayNetwork)))
	f.Add(wireCall(Call{Op: "HNSCall", Args: [3]string{"POST", "/networks/", `{"Type":"NAT"}`}}))
	f.Add(wireCall(settings("Enumerate.endpoint", `{"Filter":"{}"}`)))
	f.Fuzz(func(t *testing.T, frame []byte) {
		c, err := readCall(bytes.NewReader(frame))
		if err != nil {
			return
		}
		s := New(Config{HNS: hnstest.NewFake(hns.Server2025), Version: hns.Server2025, Log: slog.New(slog.DiscardHandler)})
		encodeAnswer(s.Do("client", c))
	})
}
