// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// explained waits until isthmusctl.exe shows events of denied flows with all of some texts. It calls send before each
// attempt: an agent that starts loses the events from before its session.
func explained(t *testing.T, m *Machine, send func(), texts ...string) {
	t.Helper()
	var out string
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		send()
		out, err = m.Output(m.Command(context.Background(), filepath.Join(m.bin, "isthmusctl.exe"), "events", "--verdict", "deny"))
		missing := 0
		for _, text := range texts {
			if !strings.Contains(out, text) {
				missing++
			}
		}
		if err == nil && missing == 0 {
			shared.mu.Lock()
			defer shared.mu.Unlock()
			shared.events += len(texts)
			return
		}
	}
	t.Errorf("isthmusctl.exe events prints (%v)\n%s\nwant %q", err, out, texts)
}
