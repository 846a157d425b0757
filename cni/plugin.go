// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
)

// Plugin serves the runtime. Its methods return *types.Error.
type Plugin struct {
	// Dial connects to the agent.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Out receives results.
	Out io.Writer
}

// Versions returns the versions of the specification that results can have. 0.3.0, which some plugins still
// ask for, has the format of 0.3.1.
func Versions() version.PluginInfo {
	return version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
}

// Funcs returns the commands.
func (p *Plugin) Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: p.Add, Del: p.Del, Check: p.Check, GC: p.GC, Status: p.Status}
}

// Add attaches a pod and prints the result.
func (p *Plugin) Add(args *skel.CmdArgs) error {
	conf, err := ParseConf(args.StdinData)
	if err != nil {
		return err
	}
	if err := conf.checkAdd(); err != nil {
		return err
	}
	pod, err := parseArgs(args.Args)
	if err != nil {
		return err
	}
	// The library makes this check only after the work is done. That is too late to clean up.
	if same, err := ns.CheckNetNS(args.Netns); err != nil {
		return err
	} else if same && !overridden(args.NetnsOverride) {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the network namespace of the plugin", "pass the pod's")
	}
	if conf.Mode == Policy {
		return p.addForeign(conf, args, pod)
	}
	var answer cniframe.AddResponse
	err = p.call(conf, types.ErrTryAgainLater, cniframe.Add, &cniframe.AddRequest{Attachment: attachment(args), Netns: args.Netns, Network: conf.Name,
		PodNamespace: string(pod.K8S_POD_NAMESPACE), PodName: string(pod.K8S_POD_NAME), PodUID: string(pod.K8S_POD_UID),
		HostPorts: conf.hostPorts, Bandwidth: conf.bandwidth, DNS: conf.dns}, &answer)
	if err != nil {
		return err
	}
	result, err := makeResult(answer, args.IfName, args.Netns, conf.DNS, conf.CNIVersion)
	if err != nil {
		return types.NewError(types.ErrInternal, "convert result", err.Error())
	}
	if err := result.PrintTo(p.Out); err != nil {
		return types.NewError(types.ErrIOFailure, "print result", err.Error())
	}
	return nil
}

func overridden(s string) bool { return strings.EqualFold(s, "true") || s == "1" }

// Del removes an attachment. In mode policy it also succeeds if no process listens on the agent's socket: pods of
// the other plugin must end although the agent is gone. The next agent removes what is left of them.
func (p *Plugin) Del(args *skel.CmdArgs) error {
	conf, err := ParseConf(args.StdinData)
	if err != nil {
		return err
	}
	absent, err := p.exchange(conf, types.ErrTryAgainLater, cniframe.Del, &cniframe.DelRequest{Attachment: attachment(args)}, nil)
	if absent && conf.Mode == Policy {
		return nil
	}
	return err
}

// Check fails if the attachment differs from what Add created.
func (p *Plugin) Check(args *skel.CmdArgs) error {
	conf, err := ParseConf(args.StdinData)
	if err != nil {
		return err
	}
	if conf.Mode != Full && conf.Mode != Policy {
		return conf.invalid
	}
	if conf.badResult != nil {
		return conf.badResult
	}
	// "The plugin must consult the prevResult to determine the expected
	// interfaces and addresses" (specification, CHECK).
	if conf.PrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "network configuration has no prevResult", "pass the result of ADD")
	}
	if conf.Mode == Policy {
		return p.checkForeign(conf, args)
	}
	addresses, err := ownAddresses(conf.PrevResult, args.IfName, args.Netns)
	if err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "prevResult is not that of this attachment", err.Error())
	}
	return p.call(conf, types.ErrTryAgainLater, cniframe.Check, &cniframe.CheckRequest{Attachment: attachment(args),
		Netns: args.Netns, Addresses: addresses, Bandwidth: conf.bandwidth}, nil)
}

// GC removes the attachments of the network that the list does not contain.
func (p *Plugin) GC(args *skel.CmdArgs) error {
	conf, err := ParseConf(args.StdinData)
	if err != nil {
		return err
	}
	if conf.Valid == nil {
		// Treating a missing list as empty would disconnect every pod.
		return types.NewError(types.ErrInvalidNetworkConfig, "network configuration has no cni.dev/valid-attachments",
			"pass the list; an empty one removes every attachment")
	}
	req := &cniframe.GCRequest{Network: conf.Name}
	for _, v := range conf.Valid {
		req.Valid = append(req.Valid, cniframe.Attachment{ContainerID: v.ContainerID, IfName: v.IfName})
	}
	return p.call(conf, types.ErrTryAgainLater, cniframe.GC, req, nil)
}

// Status fails if ADD cannot work now.
func (p *Plugin) Status(args *skel.CmdArgs) error {
	conf, err := ParseConf(args.StdinData)
	if err != nil {
		return err
	}
	return p.call(conf, types.ErrPluginNotAvailable, cniframe.Status, struct{}{}, nil)
}

func attachment(args *skel.CmdArgs) cniframe.Attachment {
	return cniframe.Attachment{ContainerID: args.ContainerID, IfName: args.IfName}
}

// call sends one request to the agent. away is the error code if the agent does not answer.
func (p *Plugin) call(conf *Conf, away uint, kind cniframe.Kind, request, answer any) error {
	_, err := p.exchange(conf, away, kind, request, answer)
	return err
}

// exchange is call. absent reports whether it failed because no process listens on the agent's socket.
func (p *Plugin) exchange(conf *Conf, away uint, kind cniframe.Kind, request, answer any) (absent bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), conf.Timeout)
	defer cancel()
	conn, err := p.Dial(ctx, conf.Socket)
	if err != nil {
		return socket.Absent(err), types.NewError(away, "isthmus-agent is not reachable at "+conf.Socket, err.Error()+"; "+remedy(err))
	}
	defer conn.Close()
	return false, fromCall(cniframe.Call(ctx, conn, kind, request, answer), conf, away)
}

func remedy(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "run the plugin as root (on Windows as an administrator)"
	case errors.Is(err, context.DeadlineExceeded):
		return "the agent does not accept connections: restart it"
	}
	return "start the agent, or correct \"socket\" in the network configuration"
}

// fromCall converts an error of a call to the error that is printed.
func fromCall(err error, conf *Conf, away uint) error {
	var refused *cniframe.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return types.NewError(uint(refused.Code), refused.Msg, refused.Details)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return types.NewError(away, fmt.Sprintf("isthmus-agent did not answer within %s", conf.Timeout), "it is busy; try again")
	case errors.Is(err, cniframe.ErrProtocol):
		return types.NewError(types.ErrInternal, err.Error(), "install the same version of the plugin and the agent")
	}
	return types.NewError(away, "isthmus-agent closed the connection", err.Error())
}
