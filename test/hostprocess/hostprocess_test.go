// SPDX-License-Identifier: Apache-2.0

package hostprocess

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// workload is a DaemonSet, as far as it has HostProcess containers.
type workload struct {
	Kind string
	Spec struct {
		Template struct {
			Spec struct {
				SecurityContext struct {
					WindowsOptions struct {
						HostProcess bool `yaml:"hostProcess"`
					} `yaml:"windowsOptions"`
				} `yaml:"securityContext"`
				InitContainers []container `yaml:"initContainers"`
				Containers     []container
			}
		}
	}
}

type container struct {
	Name          string
	Command, Args []string
	Env           []struct{ Name, Value string }
}

// TestCommands expects that each HostProcess container of the manifests starts the agent of its image, and that nothing of its command
// line is left for a shell, as there is none.
func TestCommands(t *testing.T) {
	for file, want := range map[string]int{"isthmus.yaml": 1, "isthmus-uninstall.yaml": 2} {
		found := containers(t, "../../deploy/"+file)
		if len(found) != want {
			t.Errorf("%s: %d HostProcess containers, want %d", file, len(found), want)
		}
		for _, c := range found {
			env := make(map[string]string)
			for _, e := range c.Env {
				env[e.Name] = "value-of-" + e.Name
			}
			words := Expand(append(c.Command, c.Args...), env, Mount)
			if words[0] != Mount+`\isthmus-agent.exe` {
				t.Errorf("%s: container %s: starts %s", file, c.Name, words[0])
			}
			for _, word := range words {
				if strings.ContainsAny(word, `$%"`) {
					t.Errorf("%s: container %s: %s is not expanded", file, c.Name, word)
				}
			}
		}
	}
}

func containers(t *testing.T, path string) (all []container) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var w workload
		if err := d.Decode(&w); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if pod := w.Spec.Template.Spec; w.Kind == "DaemonSet" && pod.SecurityContext.WindowsOptions.HostProcess {
			all = append(append(all, pod.InitContainers...), pod.Containers...)
		}
	}
}
