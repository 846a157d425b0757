// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
)

// TestNodeOverlay checks that annotations of OVN-Kubernetes are kept as written, and what is written of them.
func TestNodeOverlay(t *testing.T) {
	want := map[string]string{"k8s.ovn.org/node-subnets": `{"default":"x"}`, "k8s.ovn.org/hybrid-overlay-node-subnet": "y", "k8s.ovn.org/hybrid-overlay-distributed-router-gateway-mac": "z"}
	n, errs := convertNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: want}}, Stored)
	if len(errs) > 0 || n.Overlay != (model.Overlay{Subnets: `{"default":"x"}`, Subnet: "y", MAC: "z"}) {
		t.Errorf("read %+v, %v", n, errs)
	}
	delete(want, "k8s.ovn.org/node-subnets") // OVN-Kubernetes alone writes it
	if got := AnnotationsOf(n.NodeInfo); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("writes %v, want %v", got, want)
	}
}

func TestNodeFabric(t *testing.T) {
	node := func(vtep string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "win1", Annotations: map[string]string{"isthmus.dev/fabric": "vxlan", "isthmus.dev/vtep-mac": vtep}}}
	}
	n, errs := convertNode(node("00-15-5D-01-02-03"), Stored)
	if len(errs) > 0 || n.Fabric != "vxlan" || n.VTEP.String() != "00:15:5d:01:02:03" {
		t.Errorf("read %+v, %v", n, errs)
	}
	tunnel := func(text string) (*model.Node, field.ErrorList) {
		return convertNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "win1", Annotations: map[string]string{"isthmus.dev/vtep-address": text}}}, Stored)
	}
	if n, errs := tunnel("192.0.2.7"); len(errs) > 0 || n.Tunnel.String() != "192.0.2.7" {
		t.Errorf("read %+v, %v", n, errs)
	}
	for _, bad := range []string{"", "x", "0.0.0.0", "::ffff:192.0.2.7", "fe80::1%eth0", "127.0.0.1", "224.0.0.1"} {
		if n, errs := tunnel(bad); len(errs) != 1 || !strings.Contains(errs[0].Error(), "metadata.annotations[isthmus.dev/vtep-address]") || n.Tunnel.IsValid() {
			t.Errorf("address %q: read %+v, %v", bad, n, errs)
		}
	}
	for _, bad := range []string{"", "00:00:00:00:00:00", "01:00:5e:00:00:01", "02:00:5e:10:00:00:00:01", "x"} {
		n, errs := convertNode(node(bad), Stored)
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), "metadata.annotations[isthmus.dev/vtep-mac]") || n.VTEP.String() != "00:00:00:00:00:00" {
			t.Errorf("MAC %q: read %+v, %v", bad, n, errs)
		}
	}
}
