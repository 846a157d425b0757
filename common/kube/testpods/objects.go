// SPDX-License-Identifier: Apache-2.0

package testpods

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/isthmus-net/isthmus/common/connectivity"
	"github.com/isthmus-net/isthmus/common/model"
)

// Labels and annotations of the objects of a test.
const (
	// LabelRun is on every object; its value is the name of the namespace.
	LabelRun = "isthmus.dev/connectivity"
	// labelRole and labelPod are on pods.
	labelRole = "isthmus.dev/connectivity-role"
	labelPod  = "isthmus.dev/connectivity-pod"
	// annotationBeat changes while the run is alive. annotationKeep is on namespaces that stay.
	annotationBeat = "isthmus.dev/connectivity-beat"
	annotationKeep = "isthmus.dev/connectivity-keep"
)

const (
	// container is the only container of a pod.
	container = "probe"
	// longest bounds the life of pods that a killed run left, in seconds.
	longest = 3600
	// unprivileged is the user and group of Linux pods.
	unprivileged = 65532
)

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{LabelRun: namespace, "app.kubernetes.io/name": "isthmus-connectivity"}}
}

func newNamespace(t connectivity.Tenancy) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: meta("", t.Namespace)}
	n.Labels[LabelRun] = t.Namespace
	for _, mode := range []string{"enforce", "warn"} {
		n.Labels["pod-security.kubernetes.io/"+mode] = "restricted"
	}
	n.Annotations = map[string]string{annotationBeat: t.Beat}
	if t.Kept {
		n.Annotations[annotationKeep] = "true"
	}
	return n
}

// program returns the command line of the probe in a pod.
func program(system model.OS, args ...string) []string {
	if system == model.Windows {
		return append([]string{`C:\isthmusctl.exe`, "probe"}, args...)
	}
	return append([]string{"/isthmusctl", "probe"}, args...)
}

// newPod returns a pod that is bound to its node: a test of a node must not run elsewhere. Both roles serve, so that they
// differ in nothing but labels.
func newPod(namespace string, p connectivity.Pod) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: meta(namespace, p.Name)}
	pod.Labels[labelRole], pod.Labels[labelPod] = string(p.Role), p.Name
	amount := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	ports := fmt.Sprintf("--port=%d,%d", connectivity.Port, connectivity.ClosedPort)
	pod.Spec = corev1.PodSpec{
		NodeName: p.Node.Name, NodeSelector: map[string]string{corev1.LabelOSStable: string(p.Node.OS)}, OS: &corev1.PodOS{Name: corev1.OSName(p.Node.OS)},
		Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		RestartPolicy:                 corev1.RestartPolicyAlways,
		ActiveDeadlineSeconds:         ptr.To[int64](longest),
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		SecurityContext:               &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)},
		Containers: []corev1.Container{{Name: container, Image: p.Node.Image, ImagePullPolicy: corev1.PullIfNotPresent,
			Command:   program(p.Node.OS, "serve", "--name="+p.Name, ports),
			Resources: corev1.ResourceRequirements{Requests: amount("10m", "32Mi"), Limits: amount("500m", "192Mi")}}},
	}
	if p.Node.OS == model.Windows {
		pod.Spec.SecurityContext.WindowsOptions = &corev1.WindowsSecurityContextOptions{RunAsUserName: ptr.To("ContainerUser")}
		return pod
	}
	pod.Spec.SecurityContext.RunAsUser, pod.Spec.SecurityContext.RunAsGroup = ptr.To[int64](unprivileged), ptr.To[int64](unprivileged)
	pod.Spec.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	return pod
}

// newService returns the Service of a server, with addresses of all families of the cluster.
func newService(namespace string, p connectivity.Pod) *corev1.Service {
	s := &corev1.Service{ObjectMeta: meta(namespace, p.Name)}
	s.Spec = corev1.ServiceSpec{Selector: map[string]string{LabelRun: namespace, labelPod: p.Name}, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyPreferDualStack)}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: map[corev1.Protocol]string{corev1.ProtocolTCP: "tcp", corev1.ProtocolUDP: "udp"}[protocol],
			Protocol: protocol, Port: connectivity.Port, TargetPort: intstr.FromInt32(connectivity.Port)})
	}
	return s
}

func newPolicy(namespace string, p connectivity.Policy) *networkingv1.NetworkPolicy {
	selects := func(role connectivity.Role) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{labelRole: string(role)}}
	}
	n := &networkingv1.NetworkPolicy{ObjectMeta: meta(namespace, p.Name)}
	n.Spec.PodSelector = selects(p.Role)
	n.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	if p.Direction == model.Egress {
		n.Spec.PolicyTypes[0] = networkingv1.PolicyTypeEgress
	}
	if !p.Accept {
		return n
	}
	var ports []networkingv1.NetworkPolicyPort
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		ports = append(ports, networkingv1.NetworkPolicyPort{Protocol: ptr.To(protocol), Port: ptr.To(intstr.FromInt32(connectivity.Port))})
	}
	clients, servers := selects(connectivity.Client), selects(connectivity.Server)
	if p.Direction == model.Ingress {
		n.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &clients}}, Ports: ports}}
	} else {
		n.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{PodSelector: &servers}}, Ports: ports}}
	}
	return n
}
