// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Object is an object in JSON.
type Object = map[string]any

// Keep makes the server keep objects that clients create, patch and delete, as an API server without controllers does. It also
// lists its nodes and pods. changed receives each object that was created or deleted; it may call Change. Call Keep before the
// first request.
func (s *ExecServer) Keep(changed func(verb, resource string, o Object)) {
	s.kept, s.changed = make(map[string]Object), changed
	for _, n := range s.nodes {
		s.put("nodes", n)
	}
	for _, p := range s.pods {
		s.put("pods", p)
	}
}

// put keeps a typed object.
func (s *ExecServer) put(resource string, typed any) {
	text, err := json.Marshal(typed)
	if err != nil {
		panic(err) // types of Kubernetes are encodable
	}
	var o Object
	if err := json.Unmarshal(text, &o); err != nil {
		panic(err)
	}
	s.kept[keyOf(resource, meta(o, "namespace"), meta(o, "name"))] = o
}

// Change lets f change the kept objects of a resource in a namespace, by name. f may add and delete some.
func (s *ExecServer) Change(resource, namespace string, f func(byName map[string]Object)) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	byName := make(map[string]Object)
	for key, o := range s.kept {
		if prefix := keyOf(resource, namespace, ""); strings.HasPrefix(key, prefix) {
			byName[strings.TrimPrefix(key, prefix)] = o
			delete(s.kept, key)
		}
	}
	f(byName)
	for name, o := range byName {
		s.kept[keyOf(resource, namespace, name)] = o
	}
}

// kinds are the kinds of the resources that Keep keeps.
var kinds = map[string]string{"nodes": "Node", "pods": "Pod", "namespaces": "Namespace", "services": "Service", "events": "Event",
	"networkpolicies": "NetworkPolicy", "endpointslices": "EndpointSlice"}

func keyOf(resource, namespace, name string) string { return resource + "/" + namespace + "/" + name }

// meta returns a text of the metadata of an object.
func meta(o Object, field string) string {
	m, _ := o["metadata"].(Object)
	text, _ := m[field].(string)
	return text
}

// keep answers a request for a kept resource, and reports whether it is one.
func (s *ExecServer) keep(w http.ResponseWriter, r *http.Request) bool {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	version := 2 // of /api/v1
	if parts[0] == "apis" {
		version = 3
	}
	if s.kept == nil || len(parts) <= version {
		return false
	}
	group, rest, namespace := strings.Join(parts[1:version], "/"), parts[version:], ""
	if len(rest) > 2 && rest[0] == "namespaces" {
		namespace, rest = rest[1], rest[2:]
	}
	if kinds[rest[0]] == "" || len(rest) > 2 {
		return false
	}
	if len(rest) == 2 {
		s.one(w, r, rest[0], namespace, rest[1])
		return true
	}
	if r.Method == http.MethodPost {
		s.create(w, r, group, rest[0], namespace)
		return true
	}
	selected, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return true
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	items := []Object{}
	for _, key := range slices.Sorted(maps.Keys(s.kept)) {
		o := s.kept[key]
		if strings.HasPrefix(key, rest[0]+"/") && (namespace == "" || meta(o, "namespace") == namespace) && selected.Matches(labelsOf(o)) {
			items = append(items, o)
		}
	}
	answer(w, Object{"apiVersion": group, "kind": kinds[rest[0]] + "List", "metadata": Object{"resourceVersion": "7"}, "items": items})
	return true
}

func labelsOf(o Object) labels.Set {
	set := labels.Set{}
	m, _ := o["metadata"].(Object)
	all, _ := m["labels"].(Object)
	for k, v := range all {
		set[k], _ = v.(string)
	}
	return set
}

// create keeps a new object.
func (s *ExecServer) create(w http.ResponseWriter, r *http.Request, group, resource, namespace string) {
	var o Object
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o["apiVersion"], o["kind"] = group, kinds[resource]
	m, _ := o["metadata"].(Object)
	m["uid"] = fmt.Sprintf("uid-%s-%s", namespace, meta(o, "name"))
	if namespace != "" {
		m["namespace"] = namespace
	}
	key := keyOf(resource, namespace, meta(o, "name"))
	s.mutex.Lock()
	_, exists := s.kept[key]
	home := namespace == "" || s.kept[keyOf("namespaces", "", namespace)] != nil
	if !exists && home {
		s.kept[key] = o
	}
	s.mutex.Unlock()
	switch {
	case exists:
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
	case !home:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	default:
		s.changed("create", resource, o)
		s.mutex.Lock()
		defer s.mutex.Unlock()
		answer(w, s.kept[key])
	}
}

// one answers a request for one object. Annotations are all that it patches.
func (s *ExecServer) one(w http.ResponseWriter, r *http.Request, resource, namespace, name string) {
	key := keyOf(resource, namespace, name)
	s.mutex.Lock()
	o := s.kept[key]
	switch {
	case o == nil:
		s.mutex.Unlock()
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	case r.Method == http.MethodPatch:
		text, _ := io.ReadAll(r.Body) // a part is no JSON
		var patch struct {
			Metadata struct{ Annotations map[string]any }
		}
		if err := json.Unmarshal(text, &patch); err != nil {
			s.mutex.Unlock()
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		m, _ := o["metadata"].(Object)
		all, _ := m["annotations"].(Object)
		maps.Copy(all, patch.Metadata.Annotations)
	case r.Method == http.MethodDelete:
		delete(s.kept, key)
		for other := range s.kept {
			if resource == "namespaces" && meta(s.kept[other], "namespace") == name {
				delete(s.kept, other)
			}
		}
	}
	text, _ := json.Marshal(o) // it was decoded from JSON
	s.mutex.Unlock()
	if r.Method == http.MethodDelete {
		s.changed("delete", resource, o)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Reason: reason, Code: int32(code), Message: string(reason)})
}
