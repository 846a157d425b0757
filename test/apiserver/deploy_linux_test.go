// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"os"
	"strings"
	"testing"
)

// TestDeploy makes the API server check every object of the release.
func TestDeploy(t *testing.T) {
	for _, name := range []string{"isthmus.yaml", "isthmus-uninstall.yaml", "isthmus-controller.yaml"} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile("../../deploy/" + name)
			if err != nil {
				t.Fatal(err)
			}
			s := running(t)
			// A separate namespace, because namespaces are never deleted completely without controllers.
			manifest := strings.ReplaceAll(string(text), "isthmus-system", "deploy-test")
			if err := s.Apply(t.Context(), manifest); err != nil {
				t.Fatal(err)
			}
			// The API server really checks: it refuses an unknown field.
			wrong := strings.Replace(manifest, "hostNetwork:", "hostNetwerk:", 1)
			if err := s.Apply(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "hostNetwerk") {
				t.Errorf("an unknown field is accepted: %v", err)
			}
		})
	}
}
