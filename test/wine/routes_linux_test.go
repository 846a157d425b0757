// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestHostRoutes reads the routing table of a host with the API of Windows. Wine
// has no call that adds routes.
func TestHostRoutes(t *testing.T) {
	m := machine(t)
	logs(t, m)
	outside(t, m, "169.254.169.254")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	exe := m.File("hostroute.test.exe")
	if err := goTool(ctx, "../..", "windows", "test", "-c", "-o", exe, "./windows/hostroute"); err != nil {
		t.Fatal(err)
	}
	cmd := m.Command(ctx, exe, "-test.v", "-test.run", "^TestSystem$")
	cmd.Env = append(cmd.Env, "ISTHMUS_ROUTE=169.254.169.254/32")
	out, err := m.Output(cmd)
	if err != nil || !strings.Contains(out, "192.0.2.14") {
		t.Errorf("%v\n%s", err, out)
	}
}
