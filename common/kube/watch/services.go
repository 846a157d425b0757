// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/model"
)

// Services lists the Services and their EndpointSlices once. Nodes do not need them, so no feed watches them.
// The error may be about a missing right. Objects that are not valid are left out.
func (a *APIServer) Services(ctx context.Context) ([]*model.Service, []*model.EndpointSlice, error) {
	var all model.Objects
	for _, r := range []struct{ kind, resource string }{{"Service", "services"}, {"EndpointSlice", "endpointslices"}} {
		if err := a.listOnce(ctx, &all, r.kind, r.resource); err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", r.kind, err)
		}
	}
	all.Sort()
	return all.Services, all.EndpointSlices, nil
}

// listOnce adds the objects of a kind that is read from manifests only.
func (a *APIServer) listOnce(ctx context.Context, all *model.Objects, kind, resource string) error {
	k, ok := convert.KindOf(kind)
	if !ok {
		return fmt.Errorf("kind %s is not in the table", kind)
	}
	at := schema.GroupVersionResource{Group: k.Group, Version: k.Versions[0], Resource: resource}
	for options := (metav1.ListOptions{Limit: a.cfg.PageSize}); ; {
		page, err := a.custom.Resource(at).List(ctx, options)
		if err != nil {
			return err
		}
		for i := range page.Items {
			raw, err := page.Items[i].MarshalJSON()
			if err != nil {
				return err
			}
			d := k.Read(&k, raw, convert.Stored)
			if len(d.Problems) > 0 {
				continue
			}
			if r := d.Convert(); len(r.Errs) == 0 {
				k.Put(all, r.Value)
			}
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}
