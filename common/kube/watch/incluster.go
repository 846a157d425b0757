// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
)

// account is where the chart and kubelets mount the service account of a pod.
const account = "/var/run/secrets/kubernetes.io/serviceaccount"

// inCluster returns the credentials of this pod. A HostProcess container of Windows has its mounts below the directory of its image. Only
// newer hosts show them at their own paths too: on Windows Server 2019 these are paths of the host, which any user may create.
func inCluster() (*rest.Config, error) {
	files := os.Getenv("CONTAINER_SANDBOX_MOUNT_POINT")
	if files == "" {
		return rest.InClusterConfig()
	}
	dir := filepath.Join(files, account)
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	if errors.Is(err, fs.ErrNotExist) {
		return rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("read the token of the service account: %w", err)
	}
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, rest.ErrNotInCluster
	}
	return &rest.Config{Host: "https://" + net.JoinHostPort(host, port), BearerToken: string(token), BearerTokenFile: filepath.Join(dir, "token"),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca.crt")}}, nil
}
