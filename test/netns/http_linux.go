// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"net"
	"net/http"
	"time"
)

// HTTPClient returns a client whose connections come from the namespace. It reuses none of them.
func (n *NS) HTTPClient(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
			err = n.Do(func() (err error) {
				c, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return c, err
		}}}
}
