// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// DefaultKubeconfig reports whether kubectl would find a kubeconfig file without flags: one that KUBECONFIG
// names, or the one in the home directory.
func DefaultKubeconfig() bool {
	for _, path := range clientcmd.NewDefaultClientConfigLoadingRules().Precedence {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	return false
}

// RESTConfig returns the address and credentials of the API server that a configuration names.
func RESTConfig(cfg APIConfig) (*rest.Config, error) {
	config, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	return rest.CopyConfig(config), nil
}

// kubeconfig reads credentials as kubectl does.
func kubeconfig(cfg APIConfig) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = cfg.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: cfg.Context,
		AuthInfo: api.AuthInfo{Impersonate: cfg.Impersonate, ImpersonateGroups: cfg.ImpersonateGroups}}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if clientcmd.IsEmptyConfig(err) { // its words name a variable that is not read here
		if named := os.Getenv("KUBECONFIG"); cfg.Kubeconfig == "" && !DefaultKubeconfig() && named != "" {
			return nil, fmt.Errorf("KUBECONFIG %s: no such file: correct it, or give --kubeconfig FILE", named)
		} else if cfg.Kubeconfig == "" && !DefaultKubeconfig() {
			return nil, errors.New("no cluster given: give --kubeconfig FILE, or set KUBECONFIG")
		}
		err = errors.New("no cluster for the context in use: name a file and a context that have one")
	}
	if err != nil && cfg.Kubeconfig != "" {
		return nil, fmt.Errorf("read kubeconfig %s: %w", cfg.Kubeconfig, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	return config, nil
}
