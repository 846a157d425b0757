// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/yaml"
)

// fakeAPI is an API server as a client that lists and watches sees it: paged lists, resumed
// watches, streamed lists, bookmarks, discovery, faults.
type fakeAPI struct {
	server *httptest.Server

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change
	rv      int
	// objects are keyed by resource path, then by namespace/name.
	objects map[string]map[string]map[string]any
	events  []fakeEvent
	// served are the paths of custom resources.
	served map[string]bool
	// streams makes watches send initial events on request.
	streams bool
	// protobuf makes the server send built-in kinds in the binary form on request, as a real API
	// server does.
	protobuf bool
	// starting makes /readyz report that the server is not ready.
	starting bool
	// down makes every request fail, and ends the watches.
	down bool
	// busy makes watches fail as on an API server with too many requests.
	busy bool
	// forbidden is a resource path that clients may not read.
	forbidden string
	// pages counts answers to lists, limits records the requested limits.
	pages  int
	limits []string
}

type fakeEvent struct {
	rv     int
	path   string
	kind   string // ADDED, MODIFIED, DELETED
	object map[string]any
}

const (
	podsPath       = "/api/v1/pods"
	nodesPath      = "/api/v1/nodes"
	namespacesPath = "/api/v1/namespaces"
	policiesPath   = "/apis/networking.k8s.io/v1/networkpolicies"
	cnpPath        = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
	cnpBetaPath    = "/apis/policy.networking.k8s.io/v1beta1/clusternetworkpolicies"
	anpPath        = "/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies"
)

func newFakeAPI(t *testing.T) *fakeAPI {
	t.Helper()
	f := &fakeAPI{changed: make(chan struct{}), rv: 100, objects: make(map[string]map[string]map[string]any),
		served: make(map[string]bool), streams: true}
	f.server = httptest.NewServer(f)
	t.Cleanup(func() {
		f.set(func() { f.down = true })
		f.server.CloseClientConnections()
		f.server.Close()
	})
	return f
}

// kubeconfig writes a kubeconfig file for this server.
func (f *fakeAPI) kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: secret}}]
current-context: x
`, f.server.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// set makes a change and notifies all watches.
func (f *fakeAPI) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

func pathOf(object map[string]any) string {
	resource := map[string]string{"Pod": "pods", "Node": "nodes", "Namespace": "namespaces", "NetworkPolicy": "networkpolicies",
		"ClusterNetworkPolicy": "clusternetworkpolicies", "AdminNetworkPolicy": "adminnetworkpolicies", "DenyList": "denylists", "ServiceCIDR": "servicecidrs"}[object["kind"].(string)]
	version := object["apiVersion"].(string)
	if version == "v1" {
		return "/api/v1/" + resource
	}
	return "/apis/" + version + "/" + resource
}

// put creates or changes the objects of a YAML text.
func (f *fakeAPI) put(t *testing.T, text string) {
	t.Helper()
	for doc := range strings.SplitSeq("\n"+text, "\n---") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
			t.Fatal(err)
		}
		if len(object) == 0 {
			continue
		}
		if f.protobuf && !strings.Contains(pathOf(object), "policy.") && !strings.Contains(pathOf(object), "isthmus.") {
			binary(object) // panic here, where a test sees it, rather than in the server
		}
		f.set(func() { f.store(object, false) })
	}
}

func (f *fakeAPI) remove(t *testing.T, text string) {
	t.Helper()
	var object map[string]any
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	f.set(func() { f.store(object, true) })
}

// backUp returns a function that brings back the present objects and resource version.
func (f *fakeAPI) backUp() (restore func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rv, events, objects := f.rv, slices.Clone(f.events), maps.Clone(f.objects)
	for path := range objects {
		objects[path] = maps.Clone(objects[path])
	}
	return func() { f.set(func() { f.rv, f.events, f.objects = rv, events, objects }) }
}

// tooLate answers a request for a state that is at least as new as a later version than the present one. It reports whether it did.
func (f *fakeAPI) tooLate(w http.ResponseWriter, r *http.Request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rv, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion")); rv <= f.rv {
		return false
	}
	answer(w, http.StatusGatewayTimeout, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": http.StatusGatewayTimeout,
		"reason": "Timeout", "message": "Too large resource version", "details": map[string]any{"causes": []any{map[string]any{
			"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}}}})
	return true
}

func (f *fakeAPI) store(object map[string]any, gone bool) {
	f.rv++
	meta := object["metadata"].(map[string]any)
	meta["resourceVersion"] = strconv.Itoa(f.rv)
	path := pathOf(object)
	key := fmt.Sprint(meta["namespace"], "/", meta["name"])
	if f.objects[path] == nil {
		f.objects[path] = make(map[string]map[string]any)
	}
	kind := "ADDED"
	if f.objects[path][key] != nil {
		kind = "MODIFIED"
	}
	if gone {
		kind = "DELETED"
		delete(f.objects[path], key)
	} else {
		f.objects[path][key] = object
	}
	f.events = append(f.events, fakeEvent{rv: f.rv, path: path, kind: kind, object: object})
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	down, forbidden, starting, busy := f.down, f.forbidden == r.URL.Path, f.starting, f.busy
	f.mu.Unlock()
	switch {
	case down:
		panic(http.ErrAbortHandler)
	case forbidden:
		fail(w, http.StatusForbidden, "Forbidden", "not for you")
	case r.URL.Path == "/readyz" && starting:
		fail(w, http.StatusInternalServerError, "InternalError", "[-]poststarthook/start-apiextensions-controllers failed")
	case r.URL.Path == "/readyz":
		fmt.Fprint(w, "ok")
	case r.URL.Query().Get("watch") != "" && busy:
		fail(w, http.StatusTooManyRequests, "TooManyRequests", "try again later")
	case r.URL.Query().Get("watch") != "":
		f.watch(w, r)
	case strings.Count(r.URL.Path, "/") <= 3 && (strings.HasPrefix(r.URL.Path, "/apis/policy.") || strings.HasPrefix(r.URL.Path, "/apis/isthmus.") || strings.HasPrefix(r.URL.Path, "/apis/networking.")):
		f.discover(w, r)
	default:
		f.list(w, r)
	}
}

func fail(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

// known reports whether the resource exists. The caller holds the lock.
func (f *fakeAPI) known(path string) bool {
	return slices.Contains([]string{podsPath, nodesPath, namespacesPath, policiesPath}, path) || f.served[path]
}

func (f *fakeAPI) list(w http.ResponseWriter, r *http.Request) {
	if f.tooLate(w, r) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	path := r.URL.Path
	if !f.known(path) {
		fail(w, http.StatusNotFound, "NotFound", "no such resource")
		return
	}
	f.pages++
	f.limits = append(f.limits, r.URL.Query().Get("limit"))
	keys := slices.Sorted(maps.Keys(f.objects[path]))
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || limit == 0 || r.URL.Query().Get("resourceVersion") == "0" {
		limit = len(keys) // as the watch cache answers
	}
	to := min(from+limit, len(keys))
	meta := map[string]any{"resourceVersion": strconv.Itoa(f.rv)}
	if to < len(keys) {
		meta["continue"] = strconv.Itoa(to)
	}
	items := []any{}
	for _, k := range keys[from:to] {
		items = append(items, f.objects[path][k])
	}
	kind, version := listKind(path)
	list := map[string]any{"apiVersion": version, "kind": kind, "metadata": meta, "items": items}
	if f.protobuf && !f.served[path] {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_, _ = w.Write(binary(list))
		return
	}
	answer(w, http.StatusOK, list)
}

func listKind(path string) (kind, version string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	kind = map[string]string{"pods": "PodList", "nodes": "NodeList", "namespaces": "NamespaceList", "networkpolicies": "NetworkPolicyList",
		"clusternetworkpolicies": "ClusterNetworkPolicyList", "adminnetworkpolicies": "AdminNetworkPolicyList", "denylists": "DenyListList", "servicecidrs": "ServiceCIDRList"}[parts[len(parts)-1]]
	return kind, strings.Join(parts[1:len(parts)-1], "/")
}

func (f *fakeAPI) watch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f.mu.Lock()
	known, streams := f.known(r.URL.Path), f.streams
	f.mu.Unlock()
	switch {
	case !known:
		fail(w, http.StatusNotFound, "NotFound", "no such resource")
		return
	case q.Get("sendInitialEvents") == "true" && !streams:
		fail(w, http.StatusUnprocessableEntity, "Invalid", "sendInitialEvents is forbidden")
		return
	case q.Get("sendInitialEvents") == "true" && f.tooLate(w, r):
		return
	}
	f.mu.Lock()
	send := eventSender(w, f.protobuf && !f.served[r.URL.Path])
	since, _ := strconv.Atoi(q.Get("resourceVersion"))
	if q.Get("sendInitialEvents") == "true" {
		since = f.rv
		for _, k := range slices.Sorted(maps.Keys(f.objects[r.URL.Path])) {
			send("ADDED", f.objects[r.URL.Path][k])
		}
		kind, version := listKind(r.URL.Path)
		send("BOOKMARK", map[string]any{"apiVersion": version, "kind": strings.TrimSuffix(kind, "List"),
			"metadata": map[string]any{"resourceVersion": strconv.Itoa(since), "annotations": map[string]any{"k8s.io/initial-events-end": "true"}}})
	}
	f.mu.Unlock()
	for {
		w.(http.Flusher).Flush()
		f.mu.Lock()
		if f.down || !f.known(r.URL.Path) {
			f.mu.Unlock()
			return
		}
		for _, e := range f.events {
			if e.rv > since && e.path == r.URL.Path {
				send(e.kind, e.object)
			}
		}
		since = max(since, f.rv) // a client that knows a later version gets no changes until then
		changed := f.changed
		f.mu.Unlock()
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// eventSender returns a function that writes the events of a watch.
func eventSender(w http.ResponseWriter, asProtobuf bool) func(kind string, object map[string]any) {
	if !asProtobuf {
		w.Header().Set("Content-Type", "application/json")
		send := json.NewEncoder(w)
		return func(kind string, object map[string]any) {
			_ = send.Encode(map[string]any{"type": kind, "object": object})
		}
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(w)
	return func(kind string, object map[string]any) {
		_ = protobuf.NewRawSerializer(binaryScheme(), binaryScheme()).Encode(
			&metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: binary(object)}}, frames)
	}
}

func binaryScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	_ = corev1.AddToScheme(s)
	_ = networkingv1.AddToScheme(s)
	return s
}

// binary renders an object of a built-in kind in the form of a real API server.
func binary(object map[string]any) []byte {
	s := binaryScheme()
	raw, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	typed, _, err := serializer.NewCodecFactory(s).UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		panic(err)
	}
	out, err := runtime.Encode(protobuf.NewSerializer(s, s), typed)
	if err != nil {
		panic(err)
	}
	return out
}

// discover answers for the groups of served.
func (f *fakeAPI) discover(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	versions := map[string][]string{}
	for path := range f.served {
		parts := strings.Split(strings.Trim(path, "/"), "/")
		versions[parts[1]+"/"+parts[2]] = append(versions[parts[1]+"/"+parts[2]], parts[3])
	}
	if group := strings.TrimPrefix(r.URL.Path, "/apis/"); !strings.Contains(group, "/") {
		var list []any
		for v := range versions {
			if version, ok := strings.CutPrefix(v, group+"/"); ok {
				list = append(list, map[string]any{"groupVersion": v, "version": version})
			}
		}
		if len(list) == 0 {
			fail(w, http.StatusNotFound, "NotFound", "no such group")
			return
		}
		answer(w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "APIGroup", "name": group, "versions": list})
		return
	}
	var list []any
	for _, name := range versions[strings.TrimPrefix(r.URL.Path, "/apis/")] {
		list = append(list, map[string]any{"name": name}, map[string]any{"name": name + "/status"})
	}
	answer(w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "APIResourceList", "resources": list})
}
