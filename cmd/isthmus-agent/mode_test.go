// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/isthmus-net/isthmus/common/model"
)

// TestPolicyModeFlags checks the flags that the chart passes to agents of mode policy, and that the
// plugin is then chained to another network.
func TestPolicyModeFlags(t *testing.T) {
	dir := t.TempDir()
	parse := func(args ...string) (*options, *pflag.FlagSet) {
		o, f := &options{}, pflag.NewFlagSet("", pflag.ContinueOnError)
		o.register(f)
		if err := f.Parse(args); err != nil {
			t.Fatal(err)
		}
		return o, f
	}
	chart := []string{"--node-name=n", "--log-level=info", "--log-format=json", "--http-address=127.0.0.1:9470", "--mode=policy", "--xdp-devices=auto",
		"--never-deny=192.0.2.1", "--flow-events=all", "--flow-event-rate=20", "--flow-event-burst=100", "--log-denied-flows=false",
		"--cni-bin-dir=" + filepath.Join(dir, "bin"), "--cni-conf-dir=" + filepath.Join(dir, "net.d"), "--cni-plugin=" + filepath.Join(dir, "isthmus-cni")}
	o, f := parse(chart...)
	if err := o.check(f, "linux"); err != nil {
		t.Error(err)
	}
	if files, wanted := o.installation(); !wanted || !files.Chained {
		t.Errorf("installation %+v, %v: not chained", files, wanted)
	}
	o, _ = parse(strings.Split(strings.Replace(strings.Join(chart, " "), "--mode=policy", "--mode=full", 1), " ")...)
	if files, wanted := o.installation(); !wanted || files.Chained {
		t.Errorf("installation %+v, %v: chained in mode full", files, wanted)
	}
	o, f = parse(strings.Split(strings.Replace(strings.Join(chart, " "), "--mode=policy", "--mode=observe", 1), " ")...)
	if err := o.check(f, "linux"); err != nil {
		t.Error(err)
	}
	if files, wanted := o.installation(); !wanted || !files.Chained || o.observation("linux") != model.ObserveAll {
		t.Errorf("installation %+v, %v, observation %d: want a chained plugin and all pods observed", files, wanted, o.observation("linux"))
	}
	if err := o.check(f, "windows"); err == nil || !strings.Contains(err.Error(), "--mode observe") {
		t.Errorf("mode observe on windows: %v", err)
	}
	o, f = parse("--node-name=n", "--mode=policy", "--hns-timeout=1m", "--cni-bin-dir="+filepath.Join(dir, "bin"), "--cni-conf-dir="+filepath.Join(dir, "net.d"))
	if err := o.check(f, "windows"); err != nil || o.observation("windows") != model.ObserveRefused {
		t.Errorf("mode policy on windows: %v, observation %d", err, o.observation("windows"))
	}
	o, f = parse("--node-name=n", "--mode=policy", "--hns-network=isthmus", "--endpoint-pool=auto")
	if err := o.check(f, "windows"); err == nil || !strings.Contains(err.Error(), "--hns-network has no meaning with --mode=policy") || !strings.Contains(err.Error(), "--endpoint-pool") {
		t.Errorf("flags of a network of Isthmus in mode policy: %v", err)
	}
}
