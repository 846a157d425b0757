// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/hubble/hubbletest"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

// asRelay makes this executable the relay.
const asRelay = "ISTHMUS_TEST_AS_RELAY"

func TestMain(m *testing.M) {
	if os.Getenv(asRelay) != "" {
		main()
	}
	os.Exit(m.Run())
}

// The tokens of the test: of the relay itself and of its clients.
const (
	relayToken  = "token-of-the-relay-itself"
	viewerToken = "token-of-a-viewer-of-shop"
	adminToken  = "token-of-an-administrator"
)

// apiServer is the part of an API server that reviews tokens and rights.
type apiServer struct {
	*httptest.Server
	mutex sync.Mutex
	down  bool
	wrong []string
}

func newAPIServer(t *testing.T) *apiServer {
	a := &apiServer{}
	a.Server = httptest.NewTLSServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.Close)
	return a
}

func (a *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if r.Header.Get("Authorization") != "Bearer "+relayToken || r.Method != http.MethodPost {
		a.wrong = append(a.wrong, fmt.Sprintf("%s %s without the relay's token", r.Method, r.URL.Path))
		http.Error(w, "no", http.StatusUnauthorized)
		return
	}
	if a.down {
		http.Error(w, "no", http.StatusServiceUnavailable)
		return
	}
	answer := func(to any, decide func()) {
		if err := json.NewDecoder(r.Body).Decode(to); err != nil {
			a.wrong = append(a.wrong, err.Error())
		}
		decide()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(to)
	}
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		var review authenticationv1.TokenReview
		answer(&review, func() {
			user := map[string]string{viewerToken: "viewer", adminToken: "admin"}[review.Spec.Token]
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: user != "", User: authenticationv1.UserInfo{Username: user}}
		})
	case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		var review authorizationv1.SubjectAccessReview
		answer(&review, func() {
			at := review.Spec.ResourceAttributes
			review.Status.Allowed = at.Group == "inspect.isthmus.dev" && (review.Spec.User == "admin" ||
				review.Spec.User == "viewer" && at.Resource == "flows" && at.Namespace == "shop")
		})
	default:
		a.wrong = append(a.wrong, r.URL.Path)
		http.NotFound(w, r)
	}
}

func (a *apiServer) setDown(down bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.down = down
}

// kubeconfig writes the file with which the relay finds the API server.
func (a *apiServer) kubeconfig(t *testing.T) string {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n"+
		"clusters: [{name: a, cluster: {server: %q, certificate-authority-data: %s}}]\nusers: [{name: a, user: {token: %s}}]\n",
		a.URL, base64.StdEncoding.EncodeToString(ca), relayToken)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// freePort returns an address on which nothing listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// process is a running relay.
type process struct {
	t              *testing.T
	cmd            *exec.Cmd
	output         bytes.Buffer
	ended          chan error
	address, probe string
	page           string
	clients        credentials.TransportCredentials
}

// startProcess starts the relay of an agent with access by tokens.
func startProcess(t *testing.T, authority *hubbletest.Authority, api *apiServer, agent string, args ...string) *process {
	t.Helper()
	p := &process{t: t, ended: make(chan error, 1), address: freePort(t), probe: freePort(t), page: freePort(t)}
	server := authority.Write(t.TempDir(), "relay.test", x509.ExtKeyUsageServerAuth)
	client := authority.Write(t.TempDir(), hubble.RelayName, x509.ExtKeyUsageClientAuth)
	var err error
	if p.clients, err = credentials.NewClientTLSFromFile(server.CA, "relay.test"); err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0], append([]string{"--listen", p.address, "--access=token", "--kubeconfig", api.kubeconfig(t), "--tls-cert", server.Cert, "--tls-key", server.Key,
		"--node", "n1=" + agent, "--agent-cert", client.Cert, "--agent-key", client.Key, "--agent-ca", client.CA, "--http-address", p.probe, "--page-address", p.page, "--log-level=debug"}, args...)...)
	p.cmd.Env = append(os.Environ(), asRelay+"=1")
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	})
	return p
}

// get reads a page of the relay.
func (p *process) get(path string) (int, string) {
	r, err := http.Get("http://" + p.probe + path)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err.Error()
	}
	return r.StatusCode, string(text)
}

// eventually repeats a question until it has the answer.
func eventually(t *testing.T, what string, ask func() (bool, string)) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var ok bool
		if ok, last = ask(); ok {
			return
		}
	}
	t.Fatalf("%s: %s", what, last)
}

func (p *process) probed(status int, part string) {
	p.t.Helper()
	eventually(p.t, "/readyz", func() (bool, string) {
		got, text := p.get("/readyz")
		return got == status && strings.Contains(text, part), fmt.Sprintf("%d %s", got, text)
	})
}

// client connects to the relay. A token may be empty.
func (p *process) client(token string) (observer.ObserverClient, context.Context) {
	p.t.Helper()
	conn, err := grpc.NewClient(p.address, grpc.WithTransportCredentials(p.clients))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	p.t.Cleanup(cancel)
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return observer.NewObserverClient(conn), ctx
}

// read reads the kept flows of namespaces as a client with a token. It returns the namespaces of their ends.
func (p *process) read(token string, namespaces ...string) (seen []string, code codes.Code) {
	p.t.Helper()
	request := &observer.GetFlowsRequest{Number: 100}
	for _, n := range namespaces {
		request.Whitelist = append(request.Whitelist, &flow.FlowFilter{SourcePod: []string{n + "/"}}, &flow.FlowFilter{DestinationPod: []string{n + "/"}})
	}
	client, ctx := p.client(token)
	stream, err := client.GetFlows(ctx, request, grpc.WaitForReady(true))
	for err == nil {
		var a *observer.GetFlowsResponse
		if a, err = stream.Recv(); a.GetFlow() != nil {
			seen = append(seen, a.GetFlow().GetSource().GetNamespace()+">"+a.GetFlow().GetDestination().GetNamespace())
		}
	}
	if err == io.EOF {
		return seen, codes.OK
	}
	return seen, status.Code(err)
}

// serveFlows serves the flows of a node over mutual TLS at an address.
func serveFlows(t *testing.T, authority *hubbletest.Authority, address string, events ...model.FlowEvent) *observe.Store {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	web, bill := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: "web"}, Node: "n1", IPs: []netip.Addr{shopAddr}},
		&model.Pod{PodID: model.PodID{Namespace: "billing", Name: "bill"}, Node: "n1", IPs: []netip.Addr{billAddr}}
	snapshot := model.MakeSnapshot(nil, []*model.Node{{Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}}, []*model.Pod{web, bill}, nil)
	store := observe.NewStore(observe.Config{Keep: 4096}, quiet, func() *model.Snapshot { return snapshot })
	agent, err := hubble.New(hubble.Config{Node: "n1", History: 100, Snapshot: func() *model.Snapshot { return snapshot },
		Source: func() (*observe.Store, error) { return store, nil }}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := hubble.NewIdentity(authority.Write(t.TempDir(), hubble.ServerName, x509.ExtKeyUsageServerAuth), quiet)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- agent.Serve(ctx, hubble.Listener{Listener: listener, Credentials: identity.Server(hubble.RelayName)})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	store.Add(events)
	return store
}

var shopAddr, billAddr = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")

// event is a flow between the two pods.
func event(pod string, port uint16) model.FlowEvent {
	e := model.FlowEvent{Time: time.Now(), Pod: model.PodID{Namespace: "shop", Name: "web"}, Verdict: model.Allow, Direction: model.Egress, Protocol: model.TCP,
		Src: shopAddr, Dst: billAddr, SrcPort: 40000, DstPort: port}
	if pod == "bill" {
		e.Pod = model.PodID{Namespace: "billing", Name: "bill"}
		e.Src, e.Dst = billAddr, netip.MustParseAddr("192.0.2.1")
	}
	return e
}

// TestProcess runs the relay as a cluster does: with access by tokens over TLS, an API server, probes and a signal to
// stop.
func TestProcess(t *testing.T) {
	authority, api := hubbletest.NewAuthority(t), newAPIServer(t)
	address := freePort(t)
	p := startProcess(t, authority, api, address, "--shutdown-delay=2s")
	p.probed(http.StatusServiceUnavailable, "none of 1 nodes answers")
	serveFlows(t, authority, address, event("web", 80), event("bill", 443))
	p.probed(http.StatusOK, "ok")

	eventually(t, "an administrator reads all flows", func() (bool, string) {
		seen, code := p.read(adminToken)
		return code == codes.OK && len(seen) == 2, fmt.Sprint(seen, code)
	})
	for name, c := range map[string]struct {
		token      string
		namespaces []string
		code       codes.Code
		seen       string
	}{
		"no token":                   {"", nil, codes.Unauthenticated, ""},
		"another token":              {"made-up", nil, codes.Unauthenticated, ""},
		"the relay's token":          {relayToken, nil, codes.Unauthenticated, ""},
		"a viewer, no namespace":     {viewerToken, nil, codes.PermissionDenied, ""},
		"a viewer, other namespace":  {viewerToken, []string{"billing"}, codes.PermissionDenied, ""},
		"a viewer, both namespaces":  {viewerToken, []string{"shop", "billing"}, codes.PermissionDenied, ""},
		"a viewer, own namespace":    {viewerToken, []string{"shop"}, codes.OK, "shop>"},
		"an administrator, one of 2": {adminToken, []string{"shop"}, codes.OK, "shop>billing"},
	} {
		if seen, code := p.read(c.token, c.namespaces...); code != c.code || strings.Join(seen, " ") != c.seen {
			t.Errorf("%s: %s %q, want %s %q", name, code, seen, c.code, c.seen)
		}
	}
	api.setDown(true)
	if seen, code := p.read("a-token-that-is-new"); code != codes.Unavailable || len(seen) > 0 {
		t.Errorf("without an API server: %s %q", code, seen)
	}
	api.setDown(false)
	p.checkMetrics()
	p.checkPage(authority.Write(t.TempDir(), "relay.test", x509.ExtKeyUsageServerAuth).CA)
	p.checkStop()
	for _, secret := range []string{relayToken, viewerToken, adminToken, "a-token-that-is-new", "made-up"} {
		if strings.Contains(p.output.String(), secret) {
			t.Errorf("the log has the token %q:\n%s", secret, p.output.String())
		}
	}
	if len(api.wrong) > 0 {
		t.Errorf("API server: %q", api.wrong)
	}
}

// checkPage reads the web pages over TLS, with tokens as a browser sends them.
func (p *process) checkPage(ca string) {
	p.t.Helper()
	roots := x509.NewCertPool()
	if text, err := os.ReadFile(ca); err != nil || !roots.AppendCertsFromPEM(text) {
		p.t.Fatal("no authority", err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "relay.test"}}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	for _, c := range []struct {
		token, path string
		status      int
		part        string
	}{
		{"", "/nodes", http.StatusUnauthorized, "token is missing"},
		{viewerToken, "/?namespace=shop", http.StatusOK, "The newest denied flows first"},
		{viewerToken, "/?namespace=billing", http.StatusForbidden, "may not get flows"},
		{adminToken, "/nodes", http.StatusOK, "its agent is older than the relay"},
	} {
		request, err := http.NewRequest(http.MethodGet, "https://"+p.page+c.path, nil)
		if err != nil {
			p.t.Fatal(err)
		}
		if c.token != "" {
			request.SetBasicAuth("any", c.token)
		}
		answer, err := client.Do(request)
		if err != nil {
			p.t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != c.status || !strings.Contains(string(text), c.part) {
			p.t.Errorf("page %s: %d, %v, no %q in\n%s", c.path, answer.StatusCode, err, c.part, text)
		}
	}
}

func (p *process) checkMetrics() {
	p.t.Helper()
	_, text := p.get("/metrics")
	for _, line := range []string{`isthmus_relay_nodes{state="connected"} 1`, `isthmus_relay_calls_total{call="flows",result="unauthenticated"} 3`,
		`isthmus_relay_calls_total{call="flows",result="denied"} 3`, `isthmus_relay_calls_total{call="flows",result="unavailable"} 1`, `isthmus_relay_streams 0`} {
		if !strings.Contains(text, line+"\n") {
			p.t.Errorf("no line %s in\n%s", line, text)
		}
	}
	if strings.Contains(text, "isthmus_relay_flows_sent_total 0\n") || strings.Contains(text, "viewer") {
		p.t.Errorf("metrics\n%s", text)
	}
}

// checkStop stops the process while a client follows flows.
func (p *process) checkStop() {
	p.t.Helper()
	client, ctx := p.client(adminToken)
	stream, err := client.GetFlows(ctx, &observer.GetFlowsRequest{Follow: true})
	if err == nil {
		_, err = stream.Recv() // the states of nodes
	}
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	p.probed(http.StatusServiceUnavailable, "the relay is stopping")
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the relay is stopping") {
		p.t.Errorf("the stream ends with %v", err)
	}
	select {
	case err := <-p.ended:
		if err != nil || !strings.Contains(p.output.String(), "relay has stopped") {
			p.t.Errorf("the process ends with %v\n%s", err, p.output.String())
		}
	case <-time.After(30 * time.Second):
		p.t.Errorf("the process does not end\n%s", p.output.String())
	}
}
