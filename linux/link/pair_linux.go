// SPDX-License-Identifier: Apache-2.0

package link

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

const (
	namePrefix   = "ist"
	senderPrefix = "isq"
	hashLength   = 12 // of the hash in both kinds of names
	aliasPrefix  = "isthmus:"
)

// Gateways are the next hops that pods use.
var (
	Gateway4 = netip.MustParseAddr("169.254.1.1")
	Gateway6 = netip.MustParseAddr("fe80::1")
)

// HostName returns the name of the host end of an endpoint's pair.
func HostName(id model.EndpointID) string {
	sum := sha256.Sum256([]byte(id))
	return namePrefix + hex.EncodeToString(sum[:hashLength/2])
}

// SenderName returns the name of the ifb interface that limits what an endpoint's pod sends. Package bandwidth creates
// it, and DeletePairs removes it.
func SenderName(id model.EndpointID) string { return SenderOf(HostName(id)) }

// SenderOf returns the SenderName that belongs to the host end of this name; "" if the name is not one of HostName.
func SenderOf(hostName string) string {
	hash, ok := strings.CutPrefix(hostName, namePrefix)
	if !ok || len(hash) != hashLength {
		return ""
	}
	return senderPrefix + hash
}

// IsSender reports whether a name has the form of SenderName.
func IsSender(name string) bool {
	return strings.HasPrefix(name, senderPrefix) && len(name) == len(senderPrefix)+hashLength
}

// Alias returns the alias of the host end of an endpoint's pair.
func Alias(id model.EndpointID) string { return aliasPrefix + string(id) }

// mac derives a locally administered MAC from the endpoint's identity, so a recreated pair
// keeps the MACs that its neighbours know.
func mac(id model.EndpointID, end byte) net.HardwareAddr {
	sum := sha256.Sum256(append([]byte(id), end))
	return net.HardwareAddr{sum[0]&0xfc | 0x02, sum[1], sum[2], sum[3], sum[4], sum[5]}
}

// Pair is an endpoint's veth pair.
type Pair struct {
	Name    string // of the host end
	Index   int    // of the host end
	HostMAC net.HardwareAddr
	PodMAC  net.HardwareAddr
	// NetNSID identifies the pod's network namespace, as CreatePair found it.
	NetNSID string
	// fresh is true if CreatePair has just created it by its spec.
	fresh bool
}

// PairSpec is the intended state of a pair.
type PairSpec struct {
	ID    model.EndpointID
	NetNS string // path
	// NetNSID is Pair.NetNSID of an earlier call; "" accepts any namespace at the path.
	NetNSID string
	IfName  string // of the pod's end
	IPs     []netip.Addr
	MTU     int
	// Bandwidth limits what the pod receives and sends.
	Bandwidth model.Bandwidth
	// Sources are the node's own addresses, which it uses towards the pod.
	Sources []netip.Addr
	// Taken is the pair, if another CNI plugin made it; nil if CreatePair does. Only its host end is configured.
	Taken *Pair
}

// CreatePair creates the pair, both ends down and without addresses, or returns the existing
// one; made names it. It recreates an incomplete pair. It returns dataplane.ErrNoNetNS if the path leads to another namespace
// than NetNSID says.
func CreatePair(s PairSpec) (p Pair, made bool, err error) {
	ns, err := OpenNetNS(s.NetNS)
	if err != nil {
		return Pair{}, false, err
	}
	defer ns.Close()
	id, err := identify(ns)
	if err != nil {
		return Pair{}, false, fmt.Errorf("identify network namespace %s: %w", s.NetNS, err)
	}
	if s.NetNSID != "" && s.NetNSID != id {
		return Pair{}, false, fmt.Errorf("another network namespace than the pod's is now at %s: %w", s.NetNS, dataplane.ErrNoNetNS)
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return Pair{}, false, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	p = pairOf(s.ID)
	p.NetNSID = id
	if host, err := h.LinkByName(p.Name); err == nil {
		if whole, err := isWhole(s, ns, host, p); err != nil {
			return Pair{}, false, err
		} else if whole {
			p.Index = host.Attrs().Index
			return p, false, nil
		}
		if err := DeletePair(s.ID); err != nil {
			return Pair{}, false, err
		}
	} else if !isGone(err) {
		return Pair{}, false, fmt.Errorf("find interface %s: %w", p.Name, err)
	}
	return makePair(h, s, ns, p)
}

// makePair creates a pair of which no part exists.
func makePair(h *netlink.Handle, s PairSpec, ns netns.NsHandle, p Pair) (_ Pair, made bool, err error) {
	veth := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: p.Name, MTU: s.MTU, HardwareAddr: p.HostMAC},
		PeerName:         s.IfName,
		PeerHardwareAddr: p.PodMAC,
		PeerNamespace:    netlink.NsFd(ns),
		PeerMTU:          uint32(s.MTU),
	}
	if err := h.LinkAdd(veth); err != nil {
		if foreign := refuseForeign(s, ns); errors.Is(err, unix.EEXIST) && foreign != nil {
			return Pair{}, false, foreign
		}
		return Pair{}, false, fmt.Errorf("create veth pair %s for %s: %w", p.Name, s.ID, err)
	}
	// LinkAdd has set the index, which all later calls use.
	p.Index, p.fresh = veth.Index, true
	if p.Index == 0 {
		err = unix.ENODEV
	} else {
		err = h.LinkSetAlias(veth, Alias(s.ID))
	}
	if err != nil {
		return Pair{}, true, errors.Join(fmt.Errorf("name veth pair %s: %w", p.Name, err), DeletePair(s.ID))
	}
	return p, true, nil
}

func pairOf(id model.EndpointID) Pair {
	return Pair{Name: HostName(id), HostMAC: mac(id, 'h'), PodMAC: mac(id, 'p')}
}

// FindPair finds the pair of a spec.
func FindPair(s PairSpec) (Pair, error) {
	if s.Taken != nil {
		return *s.Taken, nil
	}
	p := pairOf(s.ID)
	var err error
	p.Index, err = Index(p.Name)
	return p, err
}

// OpenNetNS opens the network namespace of a pod. It returns dataplane.ErrNoNetNS if there is none at the path, and
// dataplane.ErrInterfaceKind if it is the namespace of the caller, the node's.
func OpenNetNS(path string) (netns.NsHandle, error) {
	ns, err := netns.GetFromPath(path)
	if errors.Is(err, os.ErrNotExist) {
		return ns, fmt.Errorf("open network namespace %s: %w", path, dataplane.ErrNoNetNS)
	}
	if err != nil {
		return ns, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(ns), &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		ns.Close()
		return ns, fmt.Errorf("open network namespace %s: not a namespace: %w", path, dataplane.ErrNoNetNS)
	}
	own, err := netns.Get()
	if err != nil {
		ns.Close()
		return ns, fmt.Errorf("open the network namespace of the node: %w", err)
	}
	defer own.Close()
	if own.Equal(ns) {
		ns.Close()
		return ns, fmt.Errorf("network namespace %s is that of the node: %w", path, dataplane.ErrInterfaceKind)
	}
	return ns, nil
}

// identify returns what no other network namespace of this machine has: the ID of this boot, and the cookie that the kernel
// gave the namespace (SO_NETNS_COOKIE). Paths and inode numbers are used again, as /proc/PID/ns/net is.
func identify(ns netns.NsHandle) (string, error) {
	boot, err := BootID()
	if err != nil {
		return "", err
	}
	var cookie uint64
	err = inNetNS(ns, func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open a socket: %w", err)
		}
		defer unix.Close(fd)
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return fmt.Sprintf("%s/%d", boot, cookie), err
}

// BootID returns what tells this boot of the machine from all others. Indexes of interfaces and cookies of namespaces begin again
// at each boot.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

// isWhole reports whether the peer of the host end is the pod's end in the namespace.
func isWhole(s PairSpec, ns netns.NsHandle, host netlink.Link, p Pair) (bool, error) {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return false, fmt.Errorf("enter network namespace %s: %w", s.NetNS, err)
	}
	defer h.Close()
	peer, err := h.LinkByName(s.IfName)
	if isGone(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find interface %s in %s: %w", s.IfName, s.NetNS, err)
	}
	return host.Attrs().Alias == Alias(s.ID) &&
		peer.Attrs().ParentIndex == host.Attrs().Index && host.Attrs().ParentIndex == peer.Attrs().Index &&
		peer.Attrs().HardwareAddr.String() == p.PodMAC.String(), nil
}

// refuseForeign returns an error if the pod already has another interface of that name.
func refuseForeign(s PairSpec, ns netns.NsHandle) error {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", s.NetNS, err)
	}
	defer h.Close()
	if _, err := h.LinkByName(s.IfName); err == nil {
		return fmt.Errorf("interface %s in %s: %w: remove it or choose another name", s.IfName, s.NetNS, dataplane.ErrInterfaceExists)
	} else if !isGone(err) {
		return fmt.Errorf("find interface %s in %s: %w", s.IfName, s.NetNS, err)
	}
	return nil
}

func isGone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}

// Index returns the index of an interface by name.
func Index(name string) (int, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("find interface %s: %w", name, err)
	}
	return l.Attrs().Index, nil
}

// Exists reports whether an interface with an index exists, whatever its name is now.
func Exists(index int) (bool, error) {
	name, err := NameOf(index)
	return name != "", err
}

// NameOf returns the name of the interface with an index; "" if there is none.
func NameOf(index int) (string, error) {
	l, err := netlink.LinkByIndex(index)
	if isGone(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("find interface %d: %w", index, err)
	}
	return l.Attrs().Name, nil
}

// Found is an interface that has the form of an endpoint's.
type Found struct {
	Name  string
	Index int
	// ID is empty if the creation of the pair was interrupted.
	ID model.EndpointID
	Up bool
}

// List returns the host ends of all pairs.
func List() ([]Found, error) {
	links, err := Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var all []Found
	for _, l := range links {
		a := l.Attrs()
		id, ours := strings.CutPrefix(a.Alias, aliasPrefix)
		named := l.Type() == "veth" && strings.HasPrefix(a.Name, namePrefix) && len(a.Name) == len(namePrefix)+hashLength
		if named && (ours || a.Alias == "") {
			all = append(all, Found{Name: a.Name, Index: a.Index, ID: model.EndpointID(id), Up: a.Flags&net.FlagUp != 0})
		}
	}
	return all, nil
}
