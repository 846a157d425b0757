// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/Microsoft/hcsshim"
	"github.com/Microsoft/hcsshim/hcn"
)

// Open returns a client of this machine's HNS. It fails if it cannot read the version of the service:
// missing rights, no HNS, or an old one.
func Open() (Client, error) {
	var s service
	v, err := s.Version(context.Background())
	if err != nil {
		return nil, fmt.Errorf("open hns: %w", err)
	}
	if !v.Supports(Schema2API) {
		return nil, fmt.Errorf("open hns: version %s is too old: install the updates of this Windows release (9.2 is needed)", v)
	}
	return s, nil
}

// service calls the DLLs of this machine through hcsshim. Calls cannot be interrupted. It checks contexts
// only before a call; Guard bounds the call.
type service struct{}

var (
	_ Client     = service{}
	_ Meter      = service{}
	_ Stater     = service{}
	_ Summarizer = service{}
	_ Balancers  = service{}
)

// do calls f and converts its error. hcsshim panics if a DLL or a procedure is missing.
func do(ctx context.Context, op string, f func() error) (err error) {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("hns %s: %w", op, err)
	}
	defer func() {
		if p := recover(); p != nil {
			err = NewError(op, CodeUnexpected, fmt.Sprint(p))
		}
	}()
	if err := f(); err != nil {
		return NewError(op, resultCode(err), err.Error())
	}
	return nil
}

// resultCode finds the HRESULT in an error of hcsshim. It uses the error document of the service only if
// the call itself reported success.
func resultCode(err error) uint32 {
	if hcn.IsNotFoundError(err) {
		return CodeNotFound
	}
	var wrapped *hcn.HcnError
	if errors.As(err, &wrapped) && wrapped.HcsError != nil && wrapped.Err != nil {
		err = errors.Join(err, wrapped.Err)
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		return uint32(errno)
	}
	text := err.Error()
	if i := strings.IndexByte(text, '{'); i >= 0 {
		var document struct{ ErrorCode uint32 }
		if json.NewDecoder(strings.NewReader(text[i:])).Decode(&document) == nil && document.ErrorCode != 0 {
			return document.ErrorCode
		}
	}
	// Errors of schema 1 contain the code only in hcsshim's text.
	if _, rest, ok := strings.Cut(text, "failed in Win32: "); ok {
		if i := strings.LastIndex(rest, "(0x"); i >= 0 {
			digits, _, _ := strings.Cut(rest[i+3:], ")")
			if code, err := strconv.ParseUint(digits, 16, 32); err == nil && code != 0 {
				return uint32(code)
			}
		}
	}
	return CodeUnexpected
}

// convert converts between our structs and those of hcsshim, which have the same JSON.
func convert(from, to any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

func (service) Version(ctx context.Context) (v Version, err error) {
	err = do(ctx, "Version", func() error {
		g, err := hcn.GetGlobals()
		if err == nil {
			v = Version{Major: g.Version.Major, Minor: g.Version.Minor}
		}
		return err
	})
	return v, err
}

func (service) Networks(ctx context.Context) (list []Network, err error) {
	err = do(ctx, "Networks", func() error {
		found, err := hcn.ListNetworks()
		if err != nil {
			return err
		}
		return convert(found, &list)
	})
	return list, err
}

func (service) CreateNetwork(ctx context.Context, n Network) (made Network, err error) {
	err = do(ctx, "CreateNetwork", func() error {
		var request hcn.HostComputeNetwork
		if err := convert(n, &request); err != nil {
			return err
		}
		answer, err := request.Create()
		if err != nil {
			return err
		}
		return convert(answer, &made)
	})
	return made, err
}

func (service) ModifyNetwork(ctx context.Context, id string, r RequestType, policies ...Policy) (changed Network, err error) {
	err = do(ctx, "ModifyNetwork", func() error {
		settings, err := json.Marshal(map[string][]Policy{"Policies": policies})
		if err != nil {
			return err
		}
		n, err := hcn.GetNetworkByID(id)
		if err != nil {
			return err
		}
		request := hcn.ModifyNetworkSettingRequest{ResourceType: hcn.NetworkResourceTypePolicy, RequestType: hcn.RequestType(r), Settings: settings}
		if err := n.ModifyNetworkSettings(&request); err != nil {
			return err
		}
		if n, err = hcn.GetNetworkByID(id); err != nil {
			return err
		}
		return convert(n, &changed)
	})
	return changed, err
}

func (service) DeleteNetwork(ctx context.Context, id string) error {
	return do(ctx, "DeleteNetwork", func() error { return (&hcn.HostComputeNetwork{Id: id}).Delete() })
}

func (service) Endpoints(ctx context.Context, network string) (list []Endpoint, err error) {
	err = do(ctx, "Endpoints", func() error {
		found, err := hcn.ListEndpointsOfNetwork(network)
		if err != nil {
			return err
		}
		return convert(found, &list)
	})
	return list, err
}

func (service) CreateEndpoint(ctx context.Context, e Endpoint) (made Endpoint, err error) {
	err = do(ctx, "CreateEndpoint", func() error {
		var request hcn.HostComputeEndpoint
		if err := convert(e, &request); err != nil {
			return err
		}
		answer, err := request.Create()
		if err != nil {
			return err
		}
		return convert(answer, &made)
	})
	return made, err
}

func (service) ModifyEndpoint(ctx context.Context, id string, r RequestType, policies ...Policy) (changed Endpoint, err error) {
	err = do(ctx, "ModifyEndpoint", func() error {
		settings, err := json.Marshal(map[string][]Policy{"Policies": policies})
		if err != nil {
			return err
		}
		request := hcn.ModifyEndpointSettingRequest{ResourceType: hcn.EndpointResourceTypePolicy, RequestType: hcn.RequestType(r), Settings: settings}
		if err := hcn.ModifyEndpointSettings(id, &request); err != nil {
			return err
		}
		answer, err := hcn.GetEndpointByID(id)
		if err != nil {
			return err
		}
		return convert(answer, &changed)
	})
	return changed, err
}

func (service) DeleteEndpoint(ctx context.Context, id string) error {
	return do(ctx, "DeleteEndpoint", func() error { return (&hcn.HostComputeEndpoint{Id: id}).Delete() })
}

func (service) Namespace(ctx context.Context, id string) (n Namespace, err error) {
	err = do(ctx, "Namespace", func() error {
		answer, err := hcn.GetNamespaceByID(id)
		if err != nil {
			return err
		}
		return convert(answer, &n)
	})
	return n, err
}

func (service) AttachEndpoint(ctx context.Context, namespace, endpoint string) error {
	return do(ctx, "AttachEndpoint", func() error {
		if namespace != HostNamespace {
			return hcn.AddNamespaceEndpoint(namespace, endpoint)
		}
		// Only the old schema can attach to the host's compartment. Its errors carry no code, so the state
		// shows whether the endpoint is attached already, or the host has its address.
		e, err := hcsshim.GetHNSEndpointByID(endpoint)
		if err != nil {
			return goneOr(endpoint, err)
		}
		if s := State(e.State); s == StateAttached || s == StateAttachedSharing {
			return syscall.Errno(CodeAlreadyAttached)
		}
		if err := e.HostAttach(hostCompartment); err != nil {
			if hostHas(e.IPAddress) {
				return syscall.Errno(CodeAlreadyAttached)
			}
			return goneOr(endpoint, err)
		}
		return nil
	})
}

// goneOr returns the error of schema 2 if an endpoint does not exist, and else err. An error of schema 1 has no code, only a text in the
// system's language.
func goneOr(endpoint string, err error) error {
	if _, gone := hcn.GetEndpointByID(endpoint); hcn.IsNotFoundError(gone) {
		return gone
	}
	return err
}

// hostHas reports whether an interface of the host has an address.
func hostHas(ip net.IP) bool {
	all, err := net.InterfaceAddrs()
	return err == nil && hasAddress(all, ip)
}

// hostCompartment is the number of the host's compartment.
const hostCompartment = 1

func (service) DetachEndpoint(ctx context.Context, namespace, endpoint string) error {
	return do(ctx, "DetachEndpoint", func() error { return hcn.RemoveNamespaceEndpoint(namespace, endpoint) })
}

func (service) EndpointStats(ctx context.Context, id string) (s Stats, err error) {
	err = do(ctx, "EndpointStats", func() error {
		answer, err := hcsshim.GetHNSEndpointStats(id)
		if err != nil {
			return goneOr(id, err)
		}
		s = Stats{PacketsReceived: answer.PacketsReceived, PacketsSent: answer.PacketsSent,
			DroppedIn: answer.DroppedPacketsIncoming, DroppedOut: answer.DroppedPacketsOutgoing}
		return nil
	})
	return s, err
}

func (service) EndpointStates(ctx context.Context) (states map[string]State, err error) {
	err = do(ctx, "EndpointStates", func() error {
		list, err := hcsshim.HNSListEndpointRequest()
		states = make(map[string]State, len(list))
		for _, e := range list {
			states[strings.ToLower(e.Id)] = State(e.State)
		}
		return err
	})
	return states, err
}

func (service) Summary(ctx context.Context) (text string, err error) {
	err = do(ctx, "Summary", func() error {
		list, err := hcsshim.HNSListEndpointRequest()
		if err != nil {
			return err
		}
		slices.SortFunc(list, func(a, b hcsshim.HNSEndpoint) int { return strings.Compare(a.Id, b.Id) })
		sum := sha256.New()
		for _, e := range list {
			if !e.IsRemoteEndpoint {
				fmt.Fprintf(sum, "%q %q %v %v %q\n", e.Id, e.VirtualNetwork, e.IPAddress, e.IPv6Address, e.Policies)
				if e.Namespace != nil {
					fmt.Fprintf(sum, "%q\n", e.Namespace.ID)
				}
			}
		}
		text = hex.EncodeToString(sum.Sum(nil))
		return nil
	})
	return text, err
}

func (service) LoadBalancers(ctx context.Context) (balancers []LoadBalancer, err error) {
	err = do(ctx, "LoadBalancers", func() error {
		list, err := hcn.ListLoadBalancers()
		for i := range list {
			b := LoadBalancer{FrontendVIPs: list[i].FrontendVIPs, Flags: uint32(list[i].Flags)}
			for _, m := range list[i].PortMappings {
				b.Ports = append(b.Ports, BalancerPort{Protocol: m.Protocol, External: m.ExternalPort})
			}
			balancers = append(balancers, b)
		}
		return err
	})
	return balancers, err
}
