// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
)

const (
	// referenceDir is the directory of the CNI project's plugins on Debian.
	referenceDir = "/usr/lib/cni"
	// atOnce is the number of pods that are attached concurrently in each of the rounds.
	atOnce, rounds = 20, 25
	// oneByOne is the number of pods that are attached sequentially.
	oneByOne = 200
)

// plugin calls a CNI plugin as a container runtime does, for pods of the measured node.
type plugin struct {
	name, path, conf string
	// in is the namespace of the node, in which the plugin runs.
	in *netns.NS
}

// sandbox is the network namespace of a pod, and the name of the pod.
type sandbox struct {
	pod string
	ns  *netns.NS
}

// measureAttach measures executions of isthmus-cni, alternating with the reference plugins: bridge
// with host-local, which enforce no policy.
func (b *bench) measureAttach(ctx context.Context) (err error) {
	ours, theirs, err := b.plugins()
	if err != nil {
		return err
	}
	sandboxes, err := b.sandboxes(ctx)
	defer func() {
		for _, s := range sandboxes {
			err = errors.Join(err, s.ns.Close())
		}
	}()
	if err != nil {
		return err
	}
	both := []plugin{ours, theirs}
	serial, parallel := map[string]*attachTimes{}, map[string]*attachTimes{}
	for _, p := range both {
		serial[p.name], parallel[p.name] = &attachTimes{}, &attachTimes{}
	}
	agent := b.cluster.Nodes[0]
	before, err := agent.CPUTime()
	if err != nil {
		return err
	}
	for i := range oneByOne {
		for _, p := range both {
			if err := p.cycle(sandboxes[i%atOnce:i%atOnce+1], i, serial[p.name]); err != nil {
				return err
			}
		}
	}
	after, err := agent.CPUTime()
	if err != nil {
		return err
	}
	for i := range rounds {
		for _, p := range both {
			if err := p.cycle(sandboxes, oneByOne+i, parallel[p.name]); err != nil {
				return err
			}
		}
	}
	// The figure includes the CPU time that the agent spent on other work meanwhile.
	value, reference := perPod(serial[ours.name].cpu+after-before), perPod(serial[theirs.name].cpu)
	if err := b.write(figure{Name: "CNI ADD and DEL, CPU of plugin and agent", Value: value, Unit: "ms", Reference: reference,
		Ratio: round(value / reference)}); err != nil {
		return err
	}
	for _, f := range []struct {
		name       string
		at         map[string]*attachTimes
		percentile int
		removal    bool
		goal       float64
	}{
		{"CNI ADD, one by one, p50", serial, 50, false, 8},
		{"CNI ADD, one by one, p99", serial, 99, false, 0},
		{"CNI DEL, one by one, p50", serial, 50, true, 0},
		{fmt.Sprintf("CNI ADD, %d at once, p50", atOnce), parallel, 50, false, 0},
		{fmt.Sprintf("CNI ADD, %d at once, p99", atOnce), parallel, 99, false, 60},
		{fmt.Sprintf("CNI DEL, %d at once, p99", atOnce), parallel, 99, true, 0},
	} {
		value, reference := f.at[ours.name].ms(f.percentile, f.removal), f.at[theirs.name].ms(f.percentile, f.removal)
		if err := b.write(figure{Name: f.name, Value: value, Unit: "ms", Goal: f.goal, Reference: reference, Ratio: round(value / reference)}); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) plugins() (ours, theirs plugin, err error) {
	node := b.cluster.Nodes[0]
	ours = plugin{"isthmus", filepath.Join(b.bin, "isthmus-cni"), fmt.Sprintf(`{"cniVersion":"1.0.0","name":"isthmus","type":"isthmus-cni","socket":%q}`, node.Socket()), node.NS}
	theirs = plugin{"bridge", filepath.Join(referenceDir, "bridge"), fmt.Sprintf(`{"cniVersion":"1.0.0","name":"reference","type":"bridge","bridge":"reference",
"isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.251.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}],"dataDir":%q}}`, filepath.Join(b.dir, "host-local")), node.NS}
	for _, name := range []string{"bridge", "host-local"} {
		if _, err := os.Stat(filepath.Join(referenceDir, name)); err != nil {
			return ours, theirs, fmt.Errorf("find reference plugin: %w: install containernetworking-plugins", err)
		}
	}
	return ours, theirs, nil
}

// sandboxes makes namespaces for new pods, publishes the pods, and waits until the agent has seen
// them.
func (b *bench) sandboxes(ctx context.Context) (all []sandbox, err error) {
	node := b.cluster.Nodes[0]
	before, err := node.Status(ctx)
	if err != nil {
		return nil, err
	}
	for i := range atOnce {
		name := fmt.Sprintf("attached-%d", i)
		ns, err := netns.New(filepath.Join(b.dir, "ns", name))
		if err != nil {
			return all, err
		}
		all = append(all, sandbox{name, ns})
		pod := &model.Pod{PodID: model.PodID{Namespace: probeNamespace, Name: name}, Node: node.Name, Labels: model.MakeLabels(map[string]string{"app": "server"})}
		if err := b.cluster.Manifests.WritePod(pod); err != nil {
			return all, err
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		now, err := node.Status(ctx)
		if err != nil {
			return all, err
		}
		if now.GetPodsKnown() == before.GetPodsKnown()+atOnce {
			break
		}
		if time.Now().After(deadline) {
			return all, fmt.Errorf("the agent knows %d pods, not %d", now.GetPodsKnown(), before.GetPodsKnown()+atOnce)
		}
	}
	time.Sleep(settleTime)
	return all, nil
}

// cycle attaches pods concurrently, and then detaches them concurrently.
func (p plugin) cycle(pods []sandbox, round int, t *attachTimes) error {
	added, err := p.callAll("ADD", pods, round, t)
	if err != nil {
		return err
	}
	removed, err := p.callAll("DEL", pods, round, t)
	t.added, t.removed = append(t.added, added...), append(t.removed, removed...)
	return err
}

func (p plugin) callAll(command string, pods []sandbox, round int, t *attachTimes) ([]time.Duration, error) {
	took, cpu, errs := make([]time.Duration, len(pods)), make([]time.Duration, len(pods)), make([]error, len(pods))
	var running sync.WaitGroup
	for i, pod := range pods {
		running.Go(func() { took[i], cpu[i], errs[i] = p.call(command, pod, round) })
	}
	running.Wait()
	for _, used := range cpu {
		t.cpu += used
	}
	return took, errors.Join(errs...)
}

// call executes the plugin once. It returns the wall time, and the CPU time including that of the
// plugins that it called.
func (p plugin) call(command string, pod sandbox, round int) (took, cpu time.Duration, err error) {
	cmd := exec.Command(p.path)
	id := fmt.Sprintf("%s-%d", pod.pod, round)
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + pod.ns.Path(), "CNI_IFNAME=eth0", "CNI_PATH=" + filepath.Dir(p.path),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=" + probeNamespace + ";K8S_POD_NAME=" + pod.pod + ";K8S_POD_INFRA_CONTAINER_ID=" + id}
	var out, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader([]byte(p.conf)), &out, &stderr
	err = p.in.Do(func() error {
		began := time.Now()
		err := cmd.Run()
		took = time.Since(began)
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("%s of %s: %w: %s%s", p.path, pod.pod, err, out.String(), stderr.String())
	}
	if command == "ADD" {
		var result struct{ IPs []json.RawMessage }
		if err := json.Unmarshal(out.Bytes(), &result); err != nil || len(result.IPs) == 0 {
			return 0, 0, fmt.Errorf("%s of %s gave no address: %q: %w", p.path, pod.pod, out.String(), err)
		}
	}
	return took, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// attachTimes holds the times of one plugin, and its CPU time.
type attachTimes struct {
	added, removed []time.Duration
	cpu            time.Duration
}

// perPod returns the mean per pod in milliseconds.
func perPod(sum time.Duration) float64 { return milliseconds(sum / oneByOne) }

// ms returns a percentile in milliseconds.
func (t *attachTimes) ms(percentile int, removal bool) float64 {
	took := slices.Clone(t.added)
	if removal {
		took = slices.Clone(t.removed)
	}
	slices.Sort(took)
	return milliseconds(took[len(took)*percentile/100])
}
