// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"github.com/isthmus-net/isthmus/common/model"
)

// analyzer is np-guard's netpol-analyzer in a separate process: see the directory analyzer. It is
// not safe for concurrent use.
type analyzer struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	send *json.Encoder
}

// Analyzer starts the process; dir is the directory of its module.
func Analyzer(dir string) (Oracle, error) {
	a := &analyzer{cmd: exec.Command("go", "run", ".")}
	a.cmd.Dir, a.cmd.Stderr = dir, os.Stderr
	in, err := a.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start netpol-analyzer: %w", err)
	}
	a.in, a.out, a.send = in, bufio.NewReaderSize(out, 1<<20), json.NewEncoder(in)
	return a, nil
}

// Name implements Oracle.
func (*analyzer) Name() string { return "netpol-analyzer" }

// Models implements Oracle. The engine has no ClusterNetworkPolicy and no protocols without ports.
// Its ports begin at 1, and its IPv6 flows connect pods only.
func (*analyzer) Models(c *Case, f model.Flow) bool {
	return len(c.ClusterPolicies) == 0 && f.Protocol.HasPorts() && f.Port > 0 &&
		(f.Src.Is4() || c.Owner(f.Src) != nil && c.Owner(f.Dst) != nil)
}

// Deviations implements Oracle.
func (*analyzer) Deviations() []Deviation {
	return []Deviation{ownNode, unknownAddress, blocksAndPods, portlessItems, sidecarPorts, namedPorts, adminNodes}
}

// analyzerCase is the input of the process, which defines the field names.
type analyzerCase struct {
	Namespaces       []*corev1.Namespace
	Pods             []*corev1.Pod
	NetworkPolicies  []*networkingv1.NetworkPolicy
	AdminPolicies    []*v1alpha1.AdminNetworkPolicy
	BaselinePolicies []*v1alpha1.BaselineAdminNetworkPolicy
	Queries          []analyzerQuery
}

type analyzerQuery struct {
	Src, Dst, Protocol string
	Port               int
}

// Ask implements Oracle.
func (a *analyzer) Ask(c *Case, flows []model.Flow) ([]Answer, error) {
	r := analyzerCase{NetworkPolicies: c.NetworkPolicies, AdminPolicies: c.AdminPolicies, BaselinePolicies: c.BaselinePolicies}
	for _, ns := range c.Namespaces {
		r.Namespaces = append(r.Namespaces, ns)
	}
	for _, p := range c.Pods {
		if len(p.Status.PodIPs) > 0 {
			r.Pods = append(r.Pods, analyzerPod(p))
		}
	}
	for _, f := range flows {
		r.Queries = append(r.Queries, analyzerQuery{analyzerEnd(c, f.Src), analyzerEnd(c, f.Dst), f.Protocol.String(), int(f.Port)})
	}
	if err := a.send.Encode(r); err != nil {
		return nil, fmt.Errorf("write to netpol-analyzer: %w", err)
	}
	line, err := a.out.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("read from netpol-analyzer: %w", err)
	}
	var answers struct{ Answers, Error string }
	if err := json.Unmarshal(line, &answers); err != nil {
		return nil, fmt.Errorf("read from netpol-analyzer: %w", err)
	}
	if len(answers.Answers) != len(flows) {
		return nil, fmt.Errorf("netpol-analyzer does not take the case: %s", answers.Error)
	}
	out := make([]Answer, len(flows))
	for i, letter := range answers.Answers {
		out[i] = map[rune]Answer{'a': Allowed, 'd': Denied, 'e': Failed}[letter]
	}
	return out, nil
}

// analyzerPod returns the fields of a pod that the engine reads. The engine treats pods of one
// owner as one workload, and requires the address of the node.
func analyzerPod(p *corev1.Pod) *corev1.Pod {
	n := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels}, Spec: p.Spec, Status: p.Status}
	if n.Status.HostIP == "" {
		n.Status.HostIP = "192.0.2.1"
	}
	return n
}

// analyzerEnd returns the name of one end of a flow.
func analyzerEnd(c *Case, a netip.Addr) string {
	if p := c.Owner(a); p != nil {
		return p.Namespace + "/" + p.Name
	}
	return a.String()
}

// Close implements Oracle: the process ends when its input does.
func (a *analyzer) Close() error { return errors.Join(a.in.Close(), a.cmd.Wait()) }
