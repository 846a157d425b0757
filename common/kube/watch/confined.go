// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Confined reports whether the API server prevents these credentials from changing the labels of a Node
// through its status. RBAC cannot distinguish that from the condition that an agent writes. It uses a dry
// run, which changes nothing. The Node must exist.
func (a *APIServer) Confined(ctx context.Context, node string) (bool, error) {
	client, err := a.Writer(1, 1)
	if err != nil {
		return false, err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"isthmus.dev/dry-run":"true"}}}`)
	_, err = client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).Patch(ctx, node, types.MergePatchType, patch,
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: a.cfg.UserAgent}, "status")
	if apierrors.IsForbidden(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("try to change Node %s by a dry run: %w", node, err)
	}
	return false, nil
}
