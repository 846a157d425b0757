// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"github.com/containernetworking/cni/pkg/types"
)

// podArgs are the pod's names, as container runtimes pass them in CNI_ARGS. The field names are the keys.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE          types.UnmarshallableString
	K8S_POD_NAME               types.UnmarshallableString
	K8S_POD_INFRA_CONTAINER_ID types.UnmarshallableString
	K8S_POD_UID                types.UnmarshallableString
}

// parseArgs parses CNI_ARGS. The error is a *types.Error with code 4.
func parseArgs(args string) (*podArgs, error) {
	a := &podArgs{}
	if err := types.LoadArgs(args, a); err != nil {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS is not valid", err.Error()+"; pass KEY=VALUE;KEY=VALUE, and IgnoreUnknown=1 with keys of other plugins")
	}
	if a.K8S_POD_NAMESPACE == "" || a.K8S_POD_NAME == "" {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS has no pod name or namespace", "pass K8S_POD_NAMESPACE and K8S_POD_NAME: isthmus attaches Kubernetes pods only")
	}
	return a, nil
}
