// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// Examine checks this node.
func (c Config) Examine(ctx context.Context) []Finding {
	if c.beside() {
		return slices.Concat(checkBuild(), checkService(), c.checkOtherNetwork(ctx), c.checkAdmission(ctx))
	}
	return slices.Concat(checkBuild(), checkService(), checkHost(), checkCloud(), c.checkCNIConfigurations(), c.checkAdmission(ctx))
}

func checkBuild() []Finding {
	v := windows.RtlGetVersion()
	revision, err := updateRevision()
	if err != nil {
		return append(buildFindings(v.BuildNumber, 0)[:1], Finding{"update", Unknown, err.Error(), "some updates break the network", "run winver"})
	}
	return buildFindings(v.BuildNumber, revision)
}

// updateRevision is the last number of the build, which every update increases.
func updateRevision() (uint32, error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SOFTWARE\Microsoft\Windows NT\CurrentVersion`, registry.QUERY_VALUE)
	if err != nil {
		return 0, fmt.Errorf("read the revision of the build: %w", err)
	}
	defer key.Close()
	n, _, err := key.GetIntegerValue("UBR")
	if err != nil {
		return 0, fmt.Errorf("read the revision of the build: %w", err)
	}
	return uint32(n), nil
}

// hostEndpoint is the name of the host's endpoint on the network of the default name.
const hostEndpoint = "isthmus_ep"

// checkHost checks forwarding and MTU of the interfaces that pod traffic crosses.
func checkHost() []Finding {
	routes, err := hostroute.System{}.Routes()
	var interfaces []hostroute.Interface
	if err == nil {
		interfaces, err = hostroute.System{}.Interfaces()
	}
	if err != nil {
		return []Finding{{"forwarding", Unknown, err.Error(), "the host routes for pods of l2bridge networks", "run this as an administrator"}}
	}
	return hostFindings(routes, interfaces, hostEndpoint)
}

// checkCloud warns of the check of source addresses. A machine that names no vendor is on no cloud.
func checkCloud() []Finding {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `HARDWARE\DESCRIPTION\System\BIOS`, registry.QUERY_VALUE)
	if err != nil {
		return nil
	}
	defer key.Close()
	vendor, _, _ := key.GetStringValue("SystemManufacturer")
	product, _, _ := key.GetStringValue("SystemProductName")
	return cloudFindings(vendor, product)
}

// checkService checks whether the Host Network Service runs.
func checkService() []Finding {
	const check = "HNS"
	const why = "this service owns the interfaces and policies of pods"
	m, err := mgr.Connect()
	if err != nil {
		return []Finding{{check, Unknown, err.Error(), why, "run this as an administrator"}}
	}
	defer m.Disconnect()
	s, err := m.OpenService("hns")
	if err != nil {
		return []Finding{{check, Bad, "the service hns is not installed", why, "Install-WindowsFeature Containers, and restart"}}
	}
	defer s.Close()
	status, err := s.Query()
	if err != nil {
		return []Finding{{check, Unknown, err.Error(), why, "run this as an administrator"}}
	}
	if status.State != svc.Running {
		return []Finding{{check, Warning, "the service hns does not run", why, "Start-Service hns; Windows starts it when it is first used"}}
	}
	return []Finding{{Check: check, Severity: Good, What: "the service runs"}}
}
