// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// discover tracks which of the custom kinds the API server serves, and watches exactly those.
func (a *APIServer) discover(ctx context.Context, running *sync.WaitGroup) {
	retry := min(200*time.Millisecond, a.cfg.Backoff)
	var answered time.Time // the first time
	for ctx.Err() == nil {
		var starting error
		if !a.discovered { // only this goroutine changes it
			starting = a.starting(ctx)
		}
		served, unknown, err := a.served(ctx)
		if err == nil && answered.IsZero() {
			answered = time.Now()
		}
		if err == nil && starting != nil && len(served) < len(convert.CustomKinds()) && time.Since(answered) < a.cfg.CatchUp {
			err = fmt.Errorf("not all kinds are served yet: %w", starting)
		}
		wait := a.cfg.Discovery + rand.N(a.cfg.Discovery/4+1) // spread the requests of all nodes
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			a.setRefusals(fmt.Sprintf("API server: discovery: %v; the last known state stays in force", err))
			wait, retry = retry, min(2*retry, a.cfg.Backoff)
		default:
			retry = min(200*time.Millisecond, a.cfg.Backoff)
			a.setRefusals(unknown...)
			a.follow(ctx, served, running)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// starting returns why the API server may not serve all kinds yet, or nil. A server that has just started
// answers before it knows all kinds, and reports the others as absent. Believing it would open traffic that
// their policies deny.
func (a *APIServer) starting(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	if err := a.core.Get().MaxRetries(0).AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return fmt.Errorf("get /readyz: %w", err)
	}
	return nil
}

func (a *APIServer) setRefusals(refusals ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range refusals {
		refusals[i] = convert.OneLine(refusals[i])
		if !slices.Contains(a.refusals, refusals[i]) {
			a.log.Warn("discovery", "problem", refusals[i])
		}
	}
	a.refusals = refusals
}

// served returns the served kinds, each with the best supported version. unknown names kinds that are
// served only in unsupported versions: policies are read in the one that the API server prefers, as their unknown parts fail
// closed. The version of other kinds is "".
func (a *APIServer) served(ctx context.Context) (versions map[string]string, unknown []string, err error) {
	offered := make(map[string][]string) // by resource
	asked := make(map[string]bool)
	for _, k := range convert.CustomKinds() {
		if asked[k.Group] {
			continue
		}
		asked[k.Group] = true
		if err := a.offers(ctx, k.Group, offered); err != nil {
			return nil, nil, err
		}
	}
	versions = make(map[string]string)
	for _, k := range convert.CustomKinds() {
		if len(offered[k.Resource]) == 0 {
			continue
		}
		i := slices.IndexFunc(k.Versions, func(v string) bool { return slices.Contains(offered[k.Resource], v) })
		if i >= 0 {
			versions[k.Name] = k.Versions[i]
			continue
		}
		how := "the known objects stay in force, and others are not enforced"
		if versions[k.Name] = ""; k.Policy {
			versions[k.Name] = offered[k.Resource][0]
			how = "what this version knows of it is enforced, and the rest fails closed"
		}
		unknown = append(unknown, fmt.Sprintf("API server: %s is served as %s only: %s; use a release that supports it, this one supports %s",
			k.Name, strings.Join(offered[k.Resource], ", "), how, strings.Join(k.Versions, ", ")))
	}
	return versions, unknown, nil
}

// offers records the versions in which the resources of a group are served.
func (a *APIServer) offers(ctx context.Context, name string, offered map[string][]string) error {
	var group metav1.APIGroup
	if found, err := a.getJSON(ctx, "/apis/"+name, &group); err != nil || !found {
		return err
	}
	for _, v := range group.Versions {
		var list metav1.APIResourceList
		found, err := a.getJSON(ctx, "/apis/"+v.GroupVersion, &list)
		if err != nil {
			return err
		}
		for _, r := range list.APIResources {
			if found && !strings.Contains(r.Name, "/") {
				offered[r.Name] = append(offered[r.Name], v.Version)
			}
		}
	}
	return nil
}

// getJSON reads a document of the API server. It reports whether the document exists.
func (a *APIServer) getJSON(ctx context.Context, path string, into any) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	raw, err := a.core.Get().MaxRetries(0).AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get %s: %w", path, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	return true, nil
}

// confirmations is how many times in a row a kind must be absent before its policies are dropped: an API
// server that has just started does not serve all kinds at once.
const confirmations = 3

// follow starts and stops feeds, so that exactly the served kinds are watched.
func (a *APIServer) follow(ctx context.Context, served map[string]string, running *sync.WaitGroup) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range convert.CustomKinds() {
		f := a.feeds[k.Name]
		watched := f != nil && f.stop != nil
		version, ok := served[k.Name]
		switch {
		case !ok && watched:
			if f.absent++; f.absent >= confirmations {
				a.log.Info("kind is no longer served, dropping its objects", "kind", k.Name, "version", f.version)
				f.retire()
			}
			continue
		case !ok:
			continue
		case watched && (f.version == version || version == ""):
			f.absent = 0
			continue
		case version == "":
			continue
		case watched:
			// Another version: the known objects stay until the new feed has read it. The new feed replaces
			// the old one before the next collection.
			f.retire()
		}
		a.log.Info("kind is served", "kind", k.Name, "version", version)
		f = a.customFeed(k, version)
		var feedCtx context.Context
		feedCtx, f.stop = context.WithCancel(ctx)
		a.feeds[k.Name] = f
		running.Go(func() { f.run(feedCtx) })
	}
	a.discovered = true
	a.notify()
}

func (a *APIServer) customFeed(k convert.Kind, version string) *feed {
	gvr := schema.GroupVersionResource{Group: k.Group, Version: version, Resource: k.Resource}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvr.GroupVersion().WithKind(k.Name))
	return &feed{
		kind: k, version: version, object: object, notify: a.notify, lost: a.lost, cfg: a.cfg, log: a.log,
		optional: slices.Contains(a.cfg.Optional, k.Name),
		list: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return a.custom.Resource(gvr).List(ctx, opts)
		},
		watch: func(ctx context.Context, opts metav1.ListOptions) (watcher, error) {
			return a.custom.Resource(gvr).Watch(ctx, opts)
		},
	}
}
