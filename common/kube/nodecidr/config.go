// SPDX-License-Identifier: Apache-2.0

package nodecidr

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/isthmus-net/isthmus/common/nodeipam"
)

// Config configures a Controller.
type Config struct {
	// Kubeconfig names the file to reach the API server with; empty for the service account of the pod.
	Kubeconfig string
	UserAgent  string
	// Namespace and Lease name the Lease that elects one of several controllers.
	Namespace, Lease string
	// Identity distinguishes this controller from the others.
	Identity string
	// Another controller takes over if the Lease was not renewed for Duration. A controller that cannot
	// renew it for RenewDeadline stops. It tries every RetryPeriod.
	Duration, RenewDeadline, RetryPeriod time.Duration
	// Debounce is how long the controller waits for further nodes. MaxDebounce bounds the delay while nodes keep changing.
	Debounce, MaxDebounce time.Duration
	// Resync is the interval of full runs without a trigger.
	Resync time.Duration
	// RetryMin and RetryMax bound the pause after a request that failed.
	RetryMin, RetryMax time.Duration
	Ranges             nodeipam.Config
}

// Defaults returns a Config without ranges and identity.
func Defaults() Config {
	return Config{UserAgent: "isthmus-controller", Namespace: "isthmus-system", Lease: "isthmus-controller",
		Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Debounce: 100 * time.Millisecond, MaxDebounce: 2 * time.Second, Resync: 5 * time.Minute,
		RetryMin: time.Second, RetryMax: time.Minute, Ranges: nodeipam.Defaults()}
}

// Validate reports everything that is wrong with the Config.
func (c Config) Validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	need(c.Namespace != "" && c.Lease != "", "lease %q in namespace %q: name both", c.Lease, c.Namespace)
	need(c.Identity != "", "identity is empty: give one that no other controller has")
	need(c.Duration > c.RenewDeadline && c.RenewDeadline > 2*c.RetryPeriod && c.RetryPeriod > 0,
		"lease of %s, renewed for %s every %s: each must be longer than the next, the second more than twice", c.Duration, c.RenewDeadline, c.RetryPeriod)
	need(c.Debounce >= 0 && c.MaxDebounce >= c.Debounce, "debounce %s, at most %s: must be positive, the second not shorter", c.Debounce, c.MaxDebounce)
	need(c.Resync > 0 && c.RetryMin > 0 && c.RetryMax >= c.RetryMin,
		"resync %s, retry %s to %s: must be positive", c.Resync, c.RetryMin, c.RetryMax)
	return errors.Join(append(errs, c.Ranges.Validate())...)
}

// client reads the credentials.
func (c Config) client() (*rest.Config, error) {
	var config *rest.Config
	var err error
	if c.Kubeconfig == "" {
		if config, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("find the API server from inside a pod (outside of a cluster name a kubeconfig file): %w", err)
		}
	} else if config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", c.Kubeconfig, err)
	}
	config.UserAgent = c.UserAgent
	// A starting cluster adds all its nodes at once; the API server has its own throttle.
	config.QPS = -1
	return config, nil
}
