// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/isthmus-net/isthmus/common/model"
)

// asRuntime calls f in the network namespace in which plugins run: for another CNI that of the node. A machine enters
// it by itself.
func (n *Node) asRuntime(call func() error) error {
	if n.cluster.cfg.OtherCNI == "" || n.machine != nil {
		return call()
	}
	return n.NS.Do(call)
}

// add and del call the node's plugins.
func (p *Pod) add(ctx context.Context) (result types.Result, err error) {
	list, err := p.Node.Network()
	if err != nil {
		return nil, err
	}
	err = p.Node.asRuntime(func() (err error) {
		result, err = p.Node.cni().AddNetworkList(ctx, list, p.runtime())
		return err
	})
	return result, err
}

func (p *Pod) del(ctx context.Context) error {
	list, err := p.Node.Network()
	if err != nil {
		return err
	}
	return p.Node.asRuntime(func() error { return p.Node.cni().DelNetworkList(ctx, list, p.runtime()) })
}

// Chain calls ADD of the last plugin alone, with the result that the others gave the pod.
func (p *Pod) Chain(ctx context.Context) error {
	list, err := p.Node.Network()
	if err != nil {
		return err
	}
	result, err := p.Node.cni().GetNetworkListCachedResult(list, p.runtime())
	if err != nil {
		return err
	}
	last, err := libcni.InjectConf(list.Plugins[len(list.Plugins)-1], map[string]any{"name": list.Name, "cniVersion": list.CNIVersion, "prevResult": result})
	if err != nil {
		return err
	}
	return p.Node.asRuntime(func() error {
		_, err := p.Node.cni().AddNetwork(ctx, last, p.runtime())
		return err
	})
}

// Check calls CHECK of the node's plugins.
func (p *Pod) Check(ctx context.Context) error {
	list, err := p.Node.Network()
	if err != nil {
		return err
	}
	return p.Node.asRuntime(func() error { return p.Node.cni().CheckNetworkList(ctx, list, p.runtime()) })
}

func (n *Node) cni() *libcni.CNIConfig {
	bin := n.cluster.cfg.Bin
	if n.cluster.cfg.OtherCNI != "" {
		bin = n.cluster.cfg.OtherCNI
	}
	if n.machine != nil {
		return n.machine.Plugins(bin)
	}
	return libcni.NewCNIConfigWithCacheDir([]string{bin}, filepath.Join(n.cluster.cfg.Dir, "cni"), nil)
}

// Network is the CNI configuration of a node.
func (n *Node) Network() (*libcni.NetworkConfigList, error) {
	if n.cluster.cfg.OtherCNI != "" {
		return n.firstConf()
	}
	capabilities := map[string]bool{"portMappings": true, "bandwidth": true}
	if n.OS == model.Windows {
		capabilities["dns"] = true // like install.Config
	}
	plugin := map[string]any{"type": "isthmus-cni", "capabilities": capabilities}
	if n.machine == nil {
		plugin["socket"] = n.Socket()
	}
	conf, _ := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "isthmus", "plugins": []any{plugin}})
	return libcni.NetworkConfFromBytes(conf)
}

// ConfDir is the directory of CNI configurations of the node's runtime, if another CNI writes them.
func (n *Node) ConfDir() string { return filepath.Join(n.Dir, "net.d") }

// firstConf reads the first configuration of ConfDir, as runtimes do, or the runtime's own.
func (n *Node) firstConf() (*libcni.NetworkConfigList, error) {
	if n.OwnConf != "" {
		return readConf(n.OwnConf)
	}
	names, err := libcni.ConfFiles(n.ConfDir(), []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no CNI configuration in %s", n.ConfDir())
	}
	return readConf(slices.Min(names))
}

func readConf(path string) (*libcni.NetworkConfigList, error) {
	if filepath.Ext(path) == ".conflist" {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		return libcni.NetworkConfFromBytes(text)
	}
	//lint:ignore SA1019 runtimes still call these for single configurations
	conf, err := libcni.ConfFromFile(path)
	if err != nil {
		return nil, err
	}
	//lint:ignore SA1019 as above
	return libcni.ConfListFromConf(conf)
}
