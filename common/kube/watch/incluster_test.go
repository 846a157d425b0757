// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestAccountOfHostProcess reads the service account below the directory of the image, where HostProcess containers of every Windows have
// it, and follows a token that changes. Without an account there it is that of other containers.
func TestAccountOfHostProcess(t *testing.T) {
	image := t.TempDir()
	t.Setenv("CONTAINER_SANDBOX_MOUNT_POINT", image+string(filepath.Separator))
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "6443")
	// A machine outside of a cluster has no such file, which the error names.
	if c, err := restConfig(APIConfig{}); err == nil && c.BearerTokenFile != account+"/token" || err != nil && !strings.Contains(err.Error(), account+"/token") {
		t.Errorf("without an account: %+v, %v", c, err)
	}
	dir := filepath.Join(image, account)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := restConfig(APIConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "https://[fd00::1]:6443" || c.BearerToken != "first" || c.BearerTokenFile != filepath.Join(dir, "token") || c.CAFile != filepath.Join(dir, "ca.crt") {
		t.Errorf("credentials: %s, token %q of %s, authority %s", c.Host, c.BearerToken, c.BearerTokenFile, c.CAFile)
	}
	t.Setenv("KUBERNETES_SERVICE_PORT", "")
	if _, err := restConfig(APIConfig{}); !errors.Is(err, rest.ErrNotInCluster) {
		t.Errorf("without the address of the API server: %v", err)
	}
}
