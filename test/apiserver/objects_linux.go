// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// manager names the owner of the fields that Apply sets.
const manager = "isthmus-test"

// objects is a client for objects of any kind.
type objects struct {
	server *Server
	client dynamic.Interface
	// served holds the resources of the requested versions.
	served map[schema.GroupVersion][]metav1.APIResource
}

func (s *Server) objects() (*objects, error) {
	client, err := dynamic.NewForConfig(s.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("prepare client: %w", err)
	}
	return &objects{s, client, make(map[schema.GroupVersion][]metav1.APIResource)}, nil
}

// resource returns the REST resource of a kind.
func (o *objects) resource(ctx context.Context, u *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gvk := u.GroupVersionKind()
	gv := gvk.GroupVersion()
	if _, ok := o.served[gv]; !ok {
		var list metav1.APIResourceList
		if err := o.server.call(ctx, "GET", versionPath(gv), nil, &list); err != nil {
			return nil, fmt.Errorf("%s %s: ask what %s serves: %w", gvk.Kind, u.GetName(), gv, err)
		}
		o.served[gv] = list.APIResources
	}
	for _, r := range o.served[gv] {
		if r.Kind != gvk.Kind || strings.Contains(r.Name, "/") {
			continue
		}
		if r.Namespaced {
			return o.client.Resource(gv.WithResource(r.Name)).Namespace(u.GetNamespace()), nil
		}
		return o.client.Resource(gv.WithResource(r.Name)), nil
	}
	return nil, fmt.Errorf("%s %s: %s has no such kind", gvk.Kind, u.GetName(), gv)
}

func versionPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.String()
}

// Apply applies the objects of manifests as an administrator does, pods and nodes with their status.
func (s *Server) Apply(ctx context.Context, manifests string) error {
	o, err := s.objects()
	if err != nil {
		return err
	}
	all, err := decode([]byte(manifests))
	if err != nil {
		return err
	}
	options := metav1.ApplyOptions{FieldManager: manager, Force: true}
	for _, u := range all {
		r, err := o.resource(ctx, u)
		if err != nil {
			return err
		}
		u.SetManagedFields(nil)
		status, hasStatus := u.Object["status"].(map[string]any)
		delete(u.Object, "status")
		made, err := r.Apply(ctx, u.GetName(), u, options)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err)
		}
		if !hasStatus || u.GetAPIVersion() != "v1" {
			continue // the status of other kinds belongs to their controller
		}
		// Not applied: the addresses of a Node with two families have no unique keys.
		merged, _ := made.Object["status"].(map[string]any)
		if merged == nil {
			merged = make(map[string]any)
		}
		maps.Copy(merged, status)
		made.Object["status"] = merged
		made.SetResourceVersion("") // also if another client has written the object
		if _, err := r.UpdateStatus(ctx, made, metav1.UpdateOptions{FieldManager: manager}); err != nil {
			return fmt.Errorf("update status of %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// ApplyFiles is Apply with manifests in files.
func (s *Server) ApplyFiles(ctx context.Context, paths ...string) error {
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if err := s.Apply(ctx, string(text)); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

// Delete immediately removes the objects that manifests name. It does not remove the content of a namespace.
func (s *Server) Delete(ctx context.Context, manifests string) error {
	o, err := s.objects()
	if err != nil {
		return err
	}
	all, err := decode([]byte(manifests))
	if err != nil {
		return err
	}
	var now int64
	for _, u := range all {
		r, err := o.resource(ctx, u)
		if err != nil {
			return err
		}
		if err := r.Delete(ctx, u.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s %s: %w", u.GetKind(), u.GetName(), err)
		}
		if u.GetKind() != "Namespace" {
			continue
		}
		// No controller would remove its finalizer.
		u.Object["spec"] = map[string]any{"finalizers": []any{}}
		path := versionPath(u.GroupVersionKind().GroupVersion()) + "/namespaces/" + u.GetName() + "/finalize"
		if err := s.call(ctx, "PUT", path, u.Object, &struct{}{}); err != nil && !strings.Contains(err.Error(), "404") {
			return fmt.Errorf("let go of namespace %s: %w", u.GetName(), err)
		}
	}
	return nil
}

// Get reads an object that a manifest names.
func (s *Server) Get(ctx context.Context, manifest string) (*unstructured.Unstructured, error) {
	o, err := s.objects()
	if err != nil {
		return nil, err
	}
	all, err := decode([]byte(manifest))
	if err != nil || len(all) != 1 {
		return nil, fmt.Errorf("one object: %d: %w", len(all), err)
	}
	r, err := o.resource(ctx, all[0])
	if err != nil {
		return nil, err
	}
	return r.Get(ctx, all[0].GetName(), metav1.GetOptions{})
}

func decode(manifests []byte) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		u := &unstructured.Unstructured{}
		switch err := d.Decode(&u.Object); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("read manifests: %w", err)
		case len(u.Object) > 0:
			all = append(all, u)
		}
	}
}

// The releases of network-policy-api whose CRDs are installed: the last one with AdminNetworkPolicy, and the one
// of go.mod.
const (
	policyAPI    = "sigs.k8s.io/network-policy-api"
	policyAPIOld = policyAPI + "@v0.1.7"
)

// installDefinitions installs the CRDs of the old and the new cluster-wide policies, and waits until they are
// served.
func (s *Server) installDefinitions(ctx context.Context) error {
	old, err := downloaded(ctx, policyAPIOld)
	if err != nil {
		return err
	}
	present, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", policyAPI).Output()
	if err != nil {
		return fmt.Errorf("find module %s: %w", policyAPI, err)
	}
	for _, dir := range []string{old, strings.TrimSpace(string(present))} {
		files, err := filepath.Glob(filepath.Join(dir, "config/crd/experimental/*policies.yaml"))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("find definitions in %s: %d files, %w", dir, len(files), err)
		}
		if err := s.ApplyFiles(ctx, files...); err != nil {
			return err
		}
	}
	return s.waitServed(ctx, `
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: none}}
---
{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: none}}
---
{apiVersion: policy.networking.k8s.io/v1alpha1, kind: BaselineAdminNetworkPolicy, metadata: {name: none}}`)
}

// waitServed waits until the API server serves kinds, which takes a moment after it has accepted a CRD.
func (s *Server) waitServed(ctx context.Context, manifests string) error {
	all, err := decode([]byte(manifests))
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); len(all) > 0; {
		o, err := s.objects()
		if err != nil {
			return err
		}
		r, err := o.resource(ctx, all[0])
		if err == nil {
			_, err = r.Get(ctx, all[0].GetName(), metav1.GetOptions{})
			var status apierrors.APIStatus
			// An error without details means that the resource is missing.
			if errors.As(err, &status) && apierrors.IsNotFound(err) && status.Status().Details != nil && status.Status().Details.Name != "" {
				all = all[1:]
				continue
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not served after %s: %w", all[0].GetKind(), patience, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// downloaded returns the directory of a version of a module, and downloads it if needed.
func downloaded(ctx context.Context, module string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", module).Output()
	var answer struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &answer); err != nil || jsonErr != nil || answer.Dir == "" {
		return "", fmt.Errorf("fetch module %s: %s: %w", module, answer.Error, errors.Join(err, jsonErr))
	}
	return answer.Dir, nil
}
