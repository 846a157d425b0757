// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

func podKind() Kind {
	return Kind{Name: "Pod", Versions: []string{"v1"}, Resource: "pods", Typed: &corev1.Pod{}, AddToScheme: corev1.AddToScheme, Namespaced: true,
		Read:   reads(convertPodManifest),
		Put:    putPod,
		Record: recordsValidParts(convertPod),
		store: mapStore[model.PodID, model.Pod]{
			func(namespace, name string) model.PodID { return model.PodID{Namespace: namespace, Name: name} }, all[model.PodID],
			func(s *model.Snapshot) *immutable.Map[model.PodID, *model.Pod] { return &s.Pods }}}
}

// podManifest is a Pod with the node labels that it requires.
type podManifest struct {
	pod          *model.Pod
	nodeSelector model.Selector
}

func convertPodManifest(o *corev1.Pod, s Strictness) Result {
	pod, errs := convertPod(o, s)
	wants, more := nodeSelector(o.Spec.NodeSelector, field.NewPath("spec", "nodeSelector"))
	_, _, notes := hostPorts(&o.Spec, field.NewPath("spec"))
	return Result{Value: podManifest{pod, wants}, Warnings: notes, Errs: append(errs, more...)}
}

func putPod(o *model.Objects, v any) {
	m := v.(podManifest)
	o.Pods = append(o.Pods, m.pod)
	if !m.nodeSelector.Everything() {
		o.NodeSelectors[m.pod.PodID] = m.nodeSelector
	}
}

// convertPod converts a Pod. It omits invalid parts.
func convertPod(p *corev1.Pod, s Strictness) (*model.Pod, field.ErrorList) {
	errs := validateMeta(&p.ObjectMeta, true, s)
	pod := &model.Pod{
		PodID:       model.PodID{Namespace: intern(p.Namespace), Name: p.Name},
		UID:         string(p.UID),
		Labels:      model.MakeLabels(p.Labels),
		Node:        intern(p.Spec.NodeName),
		HostNetwork: p.Spec.HostNetwork,
		Finished:    p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		Created:     created(&p.ObjectMeta),
		FixedIPs:    p.Annotations[model.AnnotationAddresses],
	}
	var more field.ErrorList
	pod.IPs, more = podIPs(&p.Status, field.NewPath("status"))
	errs = append(errs, more...)
	if len(pod.IPs) > 0 { // it is no change of its own
		pod.Started = started(&p.Status)
	}
	pod.Ports, more = namedPorts(&p.Spec, field.NewPath("spec"))
	errs = append(errs, more...)
	pod.HostPorts, more, _ = hostPorts(&p.Spec, field.NewPath("spec"))
	return pod, append(errs, more...)
}

// started returns when the network of a pod was ready, in seconds since 1970. Without the condition, which kubelet sets
// since Kubernetes 1.29, it returns when kubelet accepted the pod, which is earlier. 0 means unknown.
func started(s *corev1.PodStatus) int64 {
	for _, c := range s.Conditions {
		if c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Unix()
		}
	}
	if s.StartTime.IsZero() {
		return 0
	}
	return s.StartTime.Unix()
}

// podIPs parses a pod's addresses, one per family.
func podIPs(status *corev1.PodStatus, path *field.Path) ([]netip.Addr, field.ErrorList) {
	var texts []string
	at := path.Child("podIPs")
	for _, ip := range status.PodIPs {
		texts = append(texts, ip.IP)
	}
	// If the two disagree podIP counts, as in the API server.
	if status.PodIP != "" && (len(texts) == 0 || texts[0] != status.PodIP) {
		texts, at = []string{status.PodIP}, path.Child("podIP")
	}
	var ips []netip.Addr
	var errs field.ErrorList
	for i, text := range texts {
		ipPath := at
		if len(status.PodIPs) > 0 && len(texts) == len(status.PodIPs) {
			ipPath = at.Index(i).Child("ip")
		}
		ip, more := parseAddr(text, ipPath)
		if len(more) == 0 && slices.ContainsFunc(ips, func(a netip.Addr) bool { return a.Is4() == ip.Is4() }) {
			more = field.ErrorList{field.Invalid(ipPath, text, "a pod has at most one address per family")}
		}
		if errs = append(errs, more...); len(more) == 0 {
			ips = append(ips, ip)
		}
	}
	return ips, errs
}

// hostPorts lists the host ports of all containers that namedPorts reads. It omits those that are not valid. An API server stores
// any text as hostIP, so that is no error.
func hostPorts(spec *corev1.PodSpec, path *field.Path) (all []model.HostPort, errs field.ErrorList, notes []Remark) {
	eachContainer(spec, func(c *corev1.Container, path *field.Path) {
		for i := range c.Ports {
			p, path := &c.Ports[i], path.Child("ports").Index(i)
			if p.HostPort == 0 {
				continue
			}
			n, invalid := namedPort(p, path) // namedPorts reports it
			number, more := portNumber(p.HostPort, path.Child("hostPort"))
			errs = append(errs, more...)
			at, err := netip.ParseAddr(p.HostIP)
			if err != nil && p.HostIP != "" {
				notes = append(notes, Remark{Field: path.Child("hostIP").String(),
					Detail: fmt.Sprintf("%q is not an IP address such as 10.9.8.7: no node can forward this host port", Bounded(p.HostIP, MaxValue))})
				continue
			}
			if len(invalid)+len(more) == 0 {
				all = append(all, model.HostPort{Address: at.Unmap(), Number: number, Protocol: n.Protocol, Port: n.Port})
			}
		}
	}, path)
	if spec.HostNetwork {
		all = nil // its containers listen on the node itself
	}
	return all, errs, notes
}

// eachContainer calls a function for all long-running containers: the regular ones and the restartable init containers.
func eachContainer(spec *corev1.PodSpec, do func(c *corev1.Container, path *field.Path), path *field.Path) {
	for i := range spec.Containers {
		do(&spec.Containers[i], path.Child("containers").Index(i))
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			do(c, path.Child("initContainers").Index(i))
		}
	}
}

// namedPorts lists the named ports of all long-running containers.
func namedPorts(spec *corev1.PodSpec, path *field.Path) ([]model.NamedPort, field.ErrorList) {
	var ports []model.NamedPort
	var errs field.ErrorList
	eachContainer(spec, func(c *corev1.Container, path *field.Path) {
		for i := range c.Ports {
			p, more := namedPort(&c.Ports[i], path.Child("ports").Index(i))
			if errs = append(errs, more...); len(more) == 0 && p.Name != "" {
				ports = append(ports, p)
			}
		}
	}, path)
	return ports, errs
}

func namedPort(p *corev1.ContainerPort, path *field.Path) (model.NamedPort, field.ErrorList) {
	n := model.NamedPort{Name: intern(p.Name), Protocol: model.TCP}
	var errs, more field.ErrorList
	if p.Protocol != "" {
		n.Protocol, errs = protocol(p.Protocol, path.Child("protocol"))
	}
	n.Port, more = portNumber(p.ContainerPort, path.Child("containerPort"))
	errs = append(errs, more...)
	if p.Name != "" {
		errs = append(errs, portName(p.Name, path.Child("name"))...)
	}
	return n, errs
}
