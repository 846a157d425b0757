// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"

	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/cniapi"
)

// Plugin answers the runtime. Its methods return *types.Error.
type Plugin struct {
	// Dial connects to the agent.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Out is where results go.
	Out io.Writer
}

// Versions are the versions of the specification that results can have.
func Versions() version.PluginInfo { return version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0") }

// Funcs are the commands.
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
	// The library makes this check after the work is done, when it is too late
	// to leave nothing behind.
	if same, err := ns.CheckNetNS(args.Netns); err != nil {
		return err
	} else if same && !overridden(args.NetnsOverride) {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the network namespace of the plugin", "pass the pod's")
	}
	var answer *cniapi.AddResponse
	err = p.call(conf, types.ErrTryAgainLater, func(ctx context.Context, agent cniapi.CNIClient) (err error) {
		answer, err = agent.Add(ctx, &cniapi.AddRequest{Attachment: attachment(args), Netns: args.Netns, Network: conf.Name,
			PodNamespace: string(pod.K8S_POD_NAMESPACE), PodName: string(pod.K8S_POD_NAME), PodUid: string(pod.K8S_POD_UID), HostPorts: conf.hostPorts, Bandwidth: conf.bandwidth})
		return err
	})
	if err != nil {
		return err
	}
	result, err := makeResult(answer, args.IfName, args.Netns, conf.DNS, conf.CNIVersion)
	if err != nil {
		return types.NewError(types.ErrInternal, "make result", err.Error())
	}
	if err := result.PrintTo(p.Out); err != nil {
		return types.NewError(types.ErrIOFailure, "print result", err.Error())
	}
	return nil
}

func overridden(s string) bool { return strings.EqualFold(s, "true") || s == "1" }

// Del removes an attachment.
func (p *Plugin) Del(args *skel.CmdArgs) error {
	conf, err := ParseConf(args.StdinData)
	if err != nil {
		return err
	}
	return p.call(conf, types.ErrTryAgainLater, func(ctx context.Context, agent cniapi.CNIClient) error {
		_, err := agent.Del(ctx, &cniapi.DelRequest{Attachment: attachment(args)})
		return err
	})
}

// Check fails if the attachment is not as Add left it.
func (p *Plugin) Check(args *skel.CmdArgs) error {
	conf, err := ParseConf(args.StdinData)
	if err != nil {
		return err
	}
	// "The plugin must consult the prevResult to determine the expected
	// interfaces and addresses" (specification, CHECK).
	if conf.PrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "network configuration has no prevResult", "CHECK needs the result of ADD")
	}
	addresses, err := ownAddresses(conf.PrevResult, args.IfName, args.Netns)
	if err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "prevResult is not that of this attachment", err.Error())
	}
	return p.call(conf, types.ErrTryAgainLater, func(ctx context.Context, agent cniapi.CNIClient) error {
		_, err := agent.Check(ctx, &cniapi.CheckRequest{Attachment: attachment(args), Netns: args.Netns, Addresses: addresses, Bandwidth: conf.bandwidth})
		return err
	})
}

// GC removes the attachments of the network that are not in the list.
func (p *Plugin) GC(args *skel.CmdArgs) error {
	conf, err := ParseConf(args.StdinData)
	if err != nil {
		return err
	}
	if conf.Valid == nil {
		// To take a missing list for an empty one would cut off every pod.
		return types.NewError(types.ErrInvalidNetworkConfig, "network configuration has no cni.dev/valid-attachments", "GC needs the list; an empty one removes every attachment")
	}
	req := &cniapi.GCRequest{Network: conf.Name}
	for _, v := range conf.Valid {
		req.Valid = append(req.Valid, &cniapi.Attachment{ContainerId: v.ContainerID, IfName: v.IfName})
	}
	return p.call(conf, types.ErrTryAgainLater, func(ctx context.Context, agent cniapi.CNIClient) error {
		_, err := agent.GC(ctx, req)
		return err
	})
}

// Status fails if ADD cannot work now.
func (p *Plugin) Status(args *skel.CmdArgs) error {
	conf, err := ParseConf(args.StdinData)
	if err != nil {
		return err
	}
	return p.call(conf, types.ErrPluginNotAvailable, func(ctx context.Context, agent cniapi.CNIClient) error {
		_, err := agent.Status(ctx, &cniapi.StatusRequest{})
		return err
	})
}

func attachment(args *skel.CmdArgs) *cniapi.Attachment {
	return &cniapi.Attachment{ContainerId: args.ContainerID, IfName: args.IfName}
}

// call connects to the agent and sends one request. away is the code of the
// error if the agent does not answer.
func (p *Plugin) call(conf *Conf, away uint, send func(context.Context, cniapi.CNIClient) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), conf.Timeout)
	defer cancel()
	conn, err := p.Dial(ctx, conf.Socket)
	if err != nil {
		return types.NewError(away, "isthmus-agent is not reachable at "+conf.Socket, err.Error()+"; "+remedy(err))
	}
	dialed := make(chan net.Conn, 1)
	dialed <- conn
	client, err := grpc.NewClient("passthrough:///agent", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-dialed:
				return c, nil
			default:
				return nil, errors.New("connection was lost")
			}
		}))
	if err != nil {
		return types.NewError(types.ErrInternal, "call isthmus-agent", errors.Join(err, conn.Close()).Error())
	}
	defer client.Close()
	return fromStatus(send(ctx, cniapi.NewCNIClient(client)), conf, away)
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

// fromStatus turns an error of the agent into what is printed.
func fromStatus(err error, conf *Conf, away uint) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	for _, d := range s.Details() {
		if e, ok := d.(*cniapi.CNIError); ok {
			return types.NewError(uint(e.GetCode()), e.GetMsg(), e.GetDetails())
		}
	}
	switch s.Code() {
	case codes.DeadlineExceeded:
		return types.NewError(away, fmt.Sprintf("isthmus-agent did not answer within %s", conf.Timeout), "it is busy; try again")
	case codes.Unavailable, codes.Canceled:
		return types.NewError(away, "isthmus-agent went away", s.Message())
	case codes.Unimplemented:
		return types.NewError(types.ErrInternal, "isthmus-agent does not know this request", "install the plugin and the agent of one version")
	}
	return types.NewError(types.ErrInternal, "isthmus-agent: "+s.Message(), "")
}
