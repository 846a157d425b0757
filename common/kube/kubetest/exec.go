// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Command runs in a container.
type Command func(pod string, command []string) (stdout, stderr []byte, status int)

// ExecServer is the part of an API server that lists nodes and pods and runs commands in containers, over TLS. It
// accepts one token.
type ExecServer struct {
	*httptest.Server
	nodes []corev1.Node
	pods  []corev1.Pod
	run   Command

	mutex   sync.Mutex
	refused map[string]bool
	queries []string
	lists   map[string]map[string]any
	// kept and changed belong to Keep.
	kept    map[string]Object
	changed func(verb, resource string, o Object)
}

// execToken is the token of the client.
const execToken = "the-token-of-the-user"

// NewExecServer starts a server, which ends with the test.
func NewExecServer(t *testing.T, nodes []corev1.Node, pods []corev1.Pod, run Command) *ExecServer {
	s := &ExecServer{nodes: nodes, pods: pods, run: run, refused: make(map[string]bool), lists: make(map[string]map[string]any)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		page, next := paged(r, s.nodes)
		answer(w, &corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: metav1.ListMeta{Continue: next, ResourceVersion: "7"}, Items: page})
	})
	listPods := func(w http.ResponseWriter, r *http.Request) {
		namespace := r.PathValue("namespace")
		selected, err := labels.Parse(r.URL.Query().Get("labelSelector"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		page, next := paged(r, slices.DeleteFunc(slices.Clone(s.pods), func(p corev1.Pod) bool {
			return namespace != "" && p.Namespace != namespace || !selected.Matches(labels.Set(p.Labels))
		}))
		s.mutex.Lock()
		s.queries = append(s.queries, r.URL.Query().Get("labelSelector"))
		s.mutex.Unlock()
		answer(w, &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{Continue: next, ResourceVersion: "7"}, Items: page})
	}
	mux.HandleFunc("GET /api/v1/pods", listPods)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods", listPods)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods/{pod}/exec", s.exec)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		s.mutex.Lock()
		list := s.lists[r.URL.Path]
		s.mutex.Unlock()
		if list == nil {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
				Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
			return
		}
		answer(w, list)
	})
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+execToken {
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		q := r.URL.Query()
		switch {
		case q.Get("sendInitialEvents") == "true":
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
				Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
		case q.Get("watch") != "": // nothing changes
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			if !s.keep(w, r) {
				mux.ServeHTTP(w, r)
			}
		}
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// Serve makes the server list the objects of a kind at a path, such as /api/v1/namespaces.
func (s *ExecServer) Serve(path, kind string, objects ...any) {
	version := strings.Split(strings.Trim(path, "/"), "/")
	if objects == nil {
		objects = []any{}
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lists[path] = map[string]any{"apiVersion": strings.Join(version[1:len(version)-1], "/"), "kind": kind + "List",
		"metadata": map[string]any{"resourceVersion": "7"}, "items": objects}
}

// Refuse makes the server refuse commands in a pod.
func (s *ExecServer) Refuse(pod string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.refused[pod] = true
}

// Selectors returns the label selectors of the requests for pods.
func (s *ExecServer) Selectors() []string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return append([]string(nil), s.queries...)
}

// Kubeconfig writes a file that leads to the server, and returns its path.
func (s *ExecServer) Kubeconfig(t *testing.T) string {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n"+
		"clusters: [{name: a, cluster: {server: %q, certificate-authority-data: %s}}]\nusers: [{name: a, user: {token: %s}}]\n",
		s.URL, base64.StdEncoding.EncodeToString(ca), execToken)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// paged returns the page of a list that a request names, of two objects at most, and the name of the next one.
func paged[T any](r *http.Request, all []T) (page []T, next string) {
	from, _ := strconv.Atoi(r.URL.Query().Get("continue")) // without one it is the first page
	to := min(from+2, len(all))
	if to < len(all) {
		next = strconv.Itoa(to)
	}
	return all[min(from, to):to], next
}

func answer(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}

// The channels of the protocol: the first byte of each message.
const (
	channelStdout, channelStderr, channelStatus = 1, 2, 3

	execProtocol = "v5.channel.k8s.io"
)

// exec runs a command over a web socket.
func (s *ExecServer) exec(w http.ResponseWriter, r *http.Request) {
	pod := r.PathValue("namespace") + "/" + r.PathValue("pod")
	s.mutex.Lock()
	refused := s.refused[pod]
	s.mutex.Unlock()
	q := r.URL.Query()
	if refused || !slices.Contains([]string{"agent", "probe"}, q.Get("container")) || q.Get("stdin") == "true" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: `pods "` + r.PathValue("pod") + `" is forbidden`})
		return
	}
	upgrader := websocket.Upgrader{Subprotocols: []string{execProtocol}}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	stdout, stderr, status := s.run(pod, q["command"])
	done := metav1.Status{Status: metav1.StatusSuccess}
	if status != 0 {
		done = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Message: fmt.Sprintf("command terminated with exit code %d", status),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: strconv.Itoa(status)}}}}
	}
	ended, err := json.Marshal(done)
	if err != nil {
		return
	}
	for _, m := range []struct {
		channel byte
		content []byte
	}{{channelStdout, stdout}, {channelStderr, stderr}, {channelStatus, ended}} {
		for rest := m.content; len(rest) > 0; {
			n := min(len(rest), 32<<10)
			if err := conn.WriteMessage(websocket.BinaryMessage, append([]byte{m.channel}, rest[:n]...)); err != nil {
				return
			}
			rest = rest[n:]
		}
	}
	_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
}

// AgentPod returns the pod of an agent that runs on a node.
func AgentPod(name, node, component string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "isthmus-system", Name: name,
		Labels: map[string]string{"app.kubernetes.io/name": "isthmus", "app.kubernetes.io/component": component}},
		Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}}
}

// ClusterNode returns a node.
func ClusterNode(name, system string) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{OperatingSystem: strings.ToLower(system)}}}
}
