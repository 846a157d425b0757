// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
)

// APIConfig returns how the API server is reached. It is valid after Check.
func (s *Source) APIConfig() watch.APIConfig {
	cfg := watch.DefaultAPIConfig(s.Kubeconfig)
	cfg.UserAgent, cfg.Rules, cfg.Context, cfg.Optional = "isthmusctl", true, s.Context, []string{"DenyList", "ServiceCIDR"}
	cfg.Impersonate, cfg.ImpersonateGroups = s.as, s.groups
	return cfg
}

// Timeout is how long to wait for the API server.
func (s *Source) Timeout() time.Duration { return s.timeout }

// openAPI prepares to read the API server. It does not connect.
func (s *Source) openAPI() (*watch.APIServer, error) {
	return watch.NewAPIServer(s.APIConfig(), slog.New(slog.NewTextHandler(io.Discard, nil)))
}

// behindEvery is the interval at which Follow checks whether the API server still answers.
const behindEvery = time.Second

// Follow watches an API server until the context ends, and passes each state of the cluster to publish. Services are those
// of the beginning. behind is called from another goroutine with the reason why the last state is not the newest, or with
// "". Follow returns an error if there is no first state in time.
func (s *Source) Follow(ctx context.Context, publish func(*model.Snapshot, Problems), behind func(string)) error {
	api, err := s.openAPI()
	if err != nil {
		return err
	}
	running, end := context.WithCancel(ctx)
	defer end()
	begin, begun := context.WithTimeout(running, s.timeout)
	defer begun()
	refused, known := make(chan error, 1), false
	go func() { refused <- untilRefused(begin, api, end) }()
	context.AfterFunc(begin, func() {
		if errors.Is(begin.Err(), context.DeadlineExceeded) {
			end()
		}
	})
	var found []string
	err = api.Run(running, func(snapshot *model.Snapshot) {
		if !known {
			known = true
			begun()
			var missing error
			if s.Services, s.EndpointSlices, missing = api.Services(running); missing != nil {
				found = append(found, fmt.Sprintf("API server: Services are not known, so answers leave them out: %v", missing))
			}
			go follow(running, api, behind)
		}
		publish(snapshot, Problems{Warnings: append(api.Problems(), found...)})
	})
	begun()
	switch why := <-refused; {
	case err != nil:
		return fmt.Errorf("read from the API server: %w", err)
	case why != nil && !known:
		return fmt.Errorf("read from the API server: %w", why)
	case !known && ctx.Err() == nil:
		return fmt.Errorf("read from the API server: no complete answer within %s: raise --timeout: %s", s.timeout, missing(api))
	}
	return nil
}

// missing returns what did not arrive from the API server.
func missing(api *watch.APIServer) string {
	return cmp.Or(api.Behind(), cli.Shorten(api.Problems(), 1))
}

// follow reports whether the API server still answers.
func follow(ctx context.Context, api *watch.APIServer, behind func(string)) {
	ticker := time.NewTicker(behindEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			behind(api.Behind())
		}
	}
}
