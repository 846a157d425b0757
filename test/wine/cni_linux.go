// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// launcher lets libcni, which container runtimes use, run plugins of a directory under Wine.
type launcher struct {
	*version.PluginDecoder
	m   *Machine
	bin string
}

// FindInPath returns the executable of a plugin.
func (l launcher) FindInPath(plugin string, _ []string) (string, error) {
	return filepath.Join(l.bin, plugin+".exe"), nil
}

// ExecPlugin runs a plugin. It repeats a call that was killed before the plugin printed anything, as container
// runtimes do. It also repeats a call that failed without output: plugins print their errors, so Wine failed
// before the plugin ran. So it does if Wine failed before a plugin ran that this one calls.
func (l launcher) ExecPlugin(ctx context.Context, exe string, stdin []byte, environ []string) ([]byte, error) {
	for again := 0; ; again++ {
		answer, err := l.execute(ctx, exe, stdin, environ)
		if again == 2 || len(answer) > 0 || !killedAtExit(ctx, err) && !errors.Is(err, errSilent) && !errors.Is(err, errNotStarted) {
			return answer, err
		}
		fmt.Fprintf(os.Stderr, "run again: %v\n", err)
	}
}

// errSilent is part of the error of a plugin that failed without output, errNotStarted of one that could not start another.
var (
	errSilent     = errors.New("it wrote nothing")
	errNotStarted = errors.New("the plugin that it calls did not start")
)

func (l launcher) execute(ctx context.Context, exe string, stdin []byte, environ []string) ([]byte, error) {
	cmd := l.m.Command(ctx, exe)
	cmd.Dir = l.m.Drive() // sdnbridge writes a log there, and its host-local the addresses below \var of this drive
	for _, e := range environ {
		if strings.HasPrefix(e, "CNI_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "CNI_PATH="+Path(l.bin)) // the directory of plugins that plugins call
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errOut
	err := l.m.NS.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	var said types.Error
	if err != nil && json.Unmarshal(out.Bytes(), &said) == nil && said.Msg != "" {
		if strings.Contains(said.Error(), "fork/exec ") {
			return nil, fmt.Errorf("%w: %w", &said, errNotStarted)
		}
		return nil, &said
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() && out.Len() == 0 && errOut.Len() == 0 {
		return nil, fmt.Errorf("%s: %w: %w", filepath.Base(exe), err, errSilent)
	}
	answered := err == nil || errors.Is(err, exec.ErrWaitDelay) || (killedAtExit(ctx, err) && json.Valid(out.Bytes()))
	if !answered {
		return nil, fmt.Errorf("%s: %w: %s%s", filepath.Base(exe), err, out.Bytes(), errOut.Bytes())
	}
	return out.Bytes(), nil
}

// killedAtExit reports whether Wine itself killed a process: wineserver kills a process that has ended and still
// exists after half a second. Its exit code is then lost, its output is not.
func killedAtExit(ctx context.Context, err error) bool {
	var exit *exec.ExitError
	if ctx.Err() != nil || !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// Pod is a pod for which a container runtime calls the plugin.
type Pod struct {
	Namespace, Name, Container string
	// NetNS is the GUID of an HCN namespace.
	NetNS string
	// DNS holds the DNS settings that the runtime passes for the dnsPolicy; nil for none.
	DNS *DNS
	// HostPort is a TCP port of the node that leads to port 80 of the pod; 0 for none.
	HostPort uint16
	// HostIP is the address of that port; empty for all addresses of the node.
	HostIP string
	// prepared is the name of its endpoint if the agent had prepared it.
	prepared string
}

// endpoint is the name of the pod's endpoint in HNS.
func (p Pod) endpoint() string { return cmp.Or(p.prepared, p.Container+"_eth0_isthmus") }

// DNS is the capability dns as runtimes pass it.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

func (p Pod) runtime() *libcni.RuntimeConf {
	capabilities := map[string]any{}
	if p.DNS != nil {
		capabilities["dns"] = p.DNS
	}
	if p.HostPort != 0 {
		capabilities["portMappings"] = []map[string]any{{"hostPort": p.HostPort, "hostIP": p.HostIP, "containerPort": 80, "protocol": "tcp"}}
	}
	return &libcni.RuntimeConf{CapabilityArgs: capabilities, ContainerID: p.Container, NetNS: p.NetNS, IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", p.Container},
	}}
}

// CNI runs plugins of the machine as a container runtime does. It stores their results in the directory of the
// machine.
func (m *Machine) CNI() *libcni.CNIConfig { return m.Plugins(m.bin) }

// Plugins is CNI with the plugins of another directory.
func (m *Machine) Plugins(bin string) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{bin}, m.File("cni"), launcher{&version.PluginDecoder{}, m, bin})
}

func network() (*libcni.NetworkConfigList, error) {
	return libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.1.0","name":"isthmus","plugins":[{"type":"isthmus-cni","capabilities":{"dns":true,"portMappings":true}}]}`))
}

// Add is CNI ADD.
func (m *Machine) Add(ctx context.Context, p Pod) (*types100.Result, error) {
	list, err := network()
	if err != nil {
		return nil, err
	}
	added, err := m.CNI().AddNetworkList(ctx, list, p.runtime())
	if err != nil {
		return nil, err
	}
	return types100.GetResult(added)
}

// Check is CNI CHECK, with the result of the ADD before it.
func (m *Machine) Check(ctx context.Context, p Pod) error {
	list, err := network()
	if err != nil {
		return err
	}
	return m.CNI().CheckNetworkList(ctx, list, p.runtime())
}

// Delete is CNI DEL.
func (m *Machine) Delete(ctx context.Context, p Pod) error {
	list, err := network()
	if err != nil {
		return err
	}
	return m.CNI().DelNetworkList(ctx, list, p.runtime())
}

// Status is CNI STATUS.
func (m *Machine) Status(ctx context.Context) error {
	list, err := network()
	if err != nil {
		return err
	}
	return m.CNI().GetStatusNetworkList(ctx, list)
}

// GC is CNI GC: attachments other than those of the pods are removed.
func (m *Machine) GC(ctx context.Context, keep ...Pod) error {
	list, err := network()
	if err != nil {
		return err
	}
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, p := range keep {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: p.Container, IfName: "eth0"})
	}
	return m.CNI().GCNetworkList(ctx, list, args)
}
