// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// once is a fault that hits one call.
func once(op string, code uint32) []Fault { return []Fault{{Op: op, Times: 1, Code: code}} }

// always is a fault that hits every call until the faults are cleared. The agent retries calls by
// itself, so a fault that hits one call could end before the ADD that a test makes.
func always(op string, code uint32) []Fault { return []Fault{{Op: op, Code: code}} }

func lies(op string) []Fault { return []Fault{{Op: op, Times: 1, Lie: true}} }

func says(op string, code uint32, text string) []Fault {
	return []Fault{{Op: op, Times: 1, Code: code, Text: text}}
}

// lose removes all networks, so that the agent creates its network again.
func lose(t Target) error { t.HNS.Lose(); return nil }

func loses(name string, faults []Fault, answer string) Way {
	return Way{Name: name, Do: lose, Faults: faults, Says: answer}
}

func quirk(name string, q hnstest.Quirks, answer string) Way {
	return Way{Name: name, Do: func(t Target) error { t.HNS.SetQuirks(q); return nil }, Says: answer}
}

// Result codes of attachments that HNS refuses after a bad policy.
const (
	codeBadState    uint32 = 0x803B0017
	codeAttachFails uint32 = 0x803B002E
)

// Catalogue lists all known failures of HNS, in the order of docs/windows.md.
func Catalogue() []Row {
	return append(append(objects(), service()...), policies()...)
}

// objects are failures of networks, endpoints and namespaces.
func objects() []Row {
	return []Row{
		{Fault: "an object vanishes between the list and its opening: the whole list fails", Answer: "lists again, up to four times",
			Ways: []Way{{Name: "an endpoint vanishes", Faults: once("Open.endpoint", hns.CodeNotFound)}, {Name: "a network vanishes", Faults: once("Open.network", hns.CodeNotFound)}}},
		{Fault: "an endpoint is gone when it is modified (0x80070490 or 0x803B0002)", Answer: "looks for it by name and writes again; if it is really gone, the audit recreates it",
			Ways: []Way{{Name: "gone on modify, by one code", Faults: once("Modify.endpoint", hns.CodeNotFound)}, {Name: "gone on modify, by another", Faults: once("Modify.endpoint", hns.CodeEndpointNotFound)}}},
		{Fault: "a port mapping or load balancer exists already (0x803B0013) and no list shows it", Answer: "a leaked endpoint of ours that has the port is removed; otherwise ADD fails, names the ports and says where to look",
			Ways: []Way{{Name: "a port is in use without an endpoint", Faults: once("Create.endpoint", hns.CodePortExists), Says: "0x803b0013"}}},
		{Fault: "an object exists twice under other ids after a restart of HNS (0x800700B7)", Answer: "Isthmus goes by names: finds the owner of the address, removes what is stale, retries",
			Ways: []Way{{Name: "exists already", Faults: once("Create.endpoint", hns.CodeAlreadyExists)}}},
		{Fault: "a removal gives an error once, or succeeds and the object is still listed", Answer: "removes again; an endpoint that is still listed makes DEL fail, and the runtime retries",
			Ways: []Way{{Name: "not deleted at once", When: BeforeDel, Faults: once("Delete.endpoint", hns.CodeUnspecified)}, {Name: "deleted and still there", When: BeforeDel, Faults: lies("Delete.endpoint")},
				{Name: "deleted and an error", When: BeforeDel, Faults: []Fault{{Op: "Delete.endpoint", Times: 1, Code: hns.CodeUnspecified, After: true}}},
				{Name: "referred to by a load balancer", When: BeforeDel, Faults: once("Delete.endpoint", hnstest.CodeHasReferences)}}},
		{Fault: "the address is taken (0x80071392), by a leaked endpoint or by none that is listed", Answer: "a leaked endpoint of ours is removed; one of others is named in the error",
			Ways: []Way{{Name: "an address is in use without an endpoint", Faults: once("Create.endpoint", hns.CodeObjectExists)},
				{Name: "an address is taken for long", Faults: []Fault{{Op: "Create.endpoint", Times: 2, Code: hns.CodeObjectExists}}, Says: "0x80071392"},
				{Name: "a leaked endpoint has the address", Do: func(t Target) error { return t.squat(hns.Endpoint{Name: "leaked_eth0_isthmus"}) }}}},
		{Fault: "a remote endpoint has a local pod's address: refused, or both exist", Answer: "the remote one is removed before the pod's is made: the address is of this node's range",
			Ways: []Way{{Name: "a remote endpoint has the address", Do: func(t Target) error { return t.squat(hns.Endpoint{Flags: hns.RemoteEndpoint}) }},
				{Name: "a remote endpoint may have the address", Do: func(t Target) error {
					t.HNS.SetQuirks(hnstest.Quirks{RemotesApart: true})
					return t.squat(hns.Endpoint{Flags: hns.RemoteEndpoint})
				}}}},
		{Fault: "an endpoint stays after a failed attachment", Answer: "undone; if that fails too, when the agent is idle, at DEL, GC and start",
			Ways: []Way{{Name: "neither attached nor removed", Faults: []Fault{{Op: "Modify.namespace", Times: 1, Code: codeAttachFails}, {Op: "Delete.endpoint", Times: 1, Code: hns.CodeRequestUnsupported}}, Says: "0x803b002e"}}},
		{Fault: "a namespace cannot be left or removed while its container lives (0x803B0015), or is gone before DEL", Answer: "removes the endpoint all the same; the namespace is the runtime's",
			Ways: []Way{{Name: "the namespace cannot be left", When: BeforeDel, Faults: once("Modify.namespace", hns.CodeRequestUnsupported)},
				{Name: "not in its namespace", When: BeforeDel, Faults: once("Modify.namespace", hns.CodeNotFound)},
				{Name: "the namespace is gone", When: BeforeDel, Do: func(t Target) error { t.HNS.RemoveNamespace(t.Namespace); return nil }}}},
		{Fault: "an attachment fails (0x803B002E, 0x803B0017), the endpoint is Degraded", Answer: "undone, and ADD fails; an attached endpoint that degrades is reported and recreated",
			Ways: []Way{{Name: "not attached", Faults: once("Modify.namespace", codeAttachFails), Says: "0x803b002e"}, {Name: "not attached in this state", Faults: once("Modify.namespace", codeBadState), Says: "0x803b0017"},
				{Name: "attached and an error", Faults: []Fault{{Op: "Modify.namespace", Times: 1, Code: codeAttachFails, After: true}}, Says: "0x803b002e"},
				{Name: "degraded", When: WhileItRuns, Do: func(t Target) error { return t.setState(hns.StateDegraded) }}}},
		{Fault: "an endpoint that was in one namespace is refused in another (Server 2019)", Answer: "never tried: a pod whose namespace is new gets a new endpoint",
			Ways: []Way{quirk("attached once only", hnstest.Quirks{AttachOnce: true}, "")}},
	}
}

// service are failures of the whole service, and of the first network.
func service() []Row {
	return []Row{
		{Fault: "HNS restarts: ids are new, objects are lost, the tunnel has another address", Answer: "ids are not kept; lost objects are recreated, also endpoints of pods; a wrong tunnel address is a problem in status",
			Ways: []Way{{Name: "other ids", Do: func(t Target) error { t.HNS.Rehydrate(); return nil }}, {Name: "all is lost", Do: lose},
				{Name: "the tunnel has moved", Mode: "overlay", Do: func(t Target) error { t.HNS.MoveTunnels("198.51.100.99"); return nil }}}},
		{Fault: "the machine restarts: networks and namespaces are gone, switches have new GUIDs, records of addresses stay", Answer: "the network is recreated; records whose namespace is gone wait for DEL or GC, their addresses stay taken until then",
			Ways: []Way{{Name: "restart of the machine", Do: func(t Target) error { t.HNS.Reboot(); return nil }}}},
		{Fault: "the first network: no traffic for seconds, the tunnel's address is empty or 169.254.x.y at first; the metadata route is lost", Answer: "waits 45 s for an address; until it is there the node announces no tunnel and says so in status; the routes of `--keep-route` are put back",
			Ways: []Way{{Name: "no tunnel address at first", Mode: "overlay", Do: func(t Target) error { t.HNS.Lose(); t.HNS.Blackout(30, ""); return nil }},
				{Name: "a link-local tunnel address at first", Mode: "overlay", Do: func(t Target) error { t.HNS.Lose(); t.HNS.Blackout(30, "169.254.7.7"); return nil }}}},
		{Fault: "two networks are made at once (0x80004005)", Answer: "retried, four times in all",
			Ways: []Way{loses("networks made at once", once("Create.network", hns.CodeUnspecified), "")}},
		{Fault: "a network of that name exists, and the list is empty", Answer: "refused, with the remedy (restart HNS); retried",
			Ways: []Way{loses("a ghost has the network's name", always("Create.network", hns.CodeNetworkExists), "restart the hns service")}},
		{Fault: "no adapter, or one without an address (0x803B0006, 0x80070490)", Answer: "refused, with the remedy; retried",
			Ways: []Way{loses("no adapter", always("Create.network", hns.CodeAdapterNotFound), "Get-NetAdapter"), loses("an adapter without address", always("Create.network", hns.CodeNotFound), "Get-NetAdapter")}},
		{Fault: "a call never returns", Answer: "abandoned after its deadline; its object is not written until it returns ([ADR 16](adr/0016-writes-of-hns-that-hang.md)), all others are",
			Ways: []Way{{Name: "a write hangs", When: WhileItRuns, Faults: []Fault{{Op: "Modify.endpoint", Times: 1, Hang: true}}}, {Name: "a write of a network hangs", When: WhileItRuns, Faults: []Fault{{Op: "Modify.network", Times: 1, Hang: true}}},
				{Name: "the making of an endpoint hangs", When: WhileItRuns, Faults: []Fault{{Op: "Create.endpoint", Times: 1, Hang: true}}},
				{Name: "made and no answer in time", Faults: []Fault{{Op: "Create.endpoint", Times: 1, Code: hns.CodeTimeout, After: true}}}}},
		{Fault: "the service is stopped (0x803B0020, 0x800706BA)", Answer: "retried with back-off; pods keep what is in force",
			Ways: []Way{{Name: "the service stops and starts", Faults: []Fault{{Op: "Enumerate.network", Times: 2, Code: hns.CodeManagerStopped}}}, {Name: "the service cannot be reached", Faults: once("Enumerate.endpoint", hns.CodeServerUnavailable)}}},
		{Fault: "the service ends during a call (0x800706BE, also after its effect), starts (0x800706D9), or needs one that is stopped (0x80070426)", Answer: "retried with back-off; what the call has made is found by its address or name",
			Ways: []Way{{Name: "the service ends before an effect", Faults: once("Create.endpoint", hns.CodeCallFailed)}, {Name: "the service ends after an effect", Faults: []Fault{{Op: "Create.endpoint", Times: 1, Code: hns.CodeCallFailed, After: true}}},
				{Name: "the service starts", Faults: once("Modify.namespace", hns.CodeNotRegistered)}, {Name: "the service needs another", Faults: once("Modify.endpoint", hns.CodeServiceNotActive)}}},
		{Fault: "the caller has no rights (0x80070005)", Answer: "refused, with the remedy",
			Ways: []Way{{Name: "no rights", Faults: once("Create.endpoint", hns.CodeAccessDenied), Says: "administrator"}}},
		{Fault: "Windows for clients has no VFP (0x803B000D)", Answer: "refused, with the remedy: no pod starts without its policy",
			Ways: []Way{quirk("no VFP", hnstest.Quirks{NoVFP: true}, "Windows Server")}},
		{Fault: "Windows Server 2019 without updates (HNS 9.1) knows no schema 2", Answer: "the agent does not start, and names the missing updates",
			Ways: []Way{{Name: "HNS 9.1", When: BeforeStart, Do: func(t Target) error { t.HNS.SetVersion(hns.Version{Major: 9, Minor: 1}); return nil }, Says: "too old"}}},
		{Fault: "texts of errors are in the language of Windows", Answer: "the agent reads only codes",
			Ways: []Way{{Name: "an address is taken, in Chinese", Faults: says("Create.endpoint", hns.CodeObjectExists, "对象已存在。")}, {Name: "gone, in German", Faults: says("Open.endpoint", hns.CodeNotFound, "Element nicht gefunden.")}}},
	}
}

// policies are failures of policy enforcement.
func policies() []Row {
	return []Row{
		{Fault: "a change of ACLs cuts live TCP connections", Answer: "a list that still gives the right verdicts is not written ([ADR 9](adr/0009-lists-that-stay.md))",
			Elsewhere: "packets, not calls: `TestChanges` of `test/hnsemu/vfp`; the churn below checks that a second Apply writes nothing"},
		{Fault: "a change of ACLs takes seconds, more with every rule", Answer: "waits up to the deadline; changes that arrive in the meantime are written together",
			Ways: []Way{{Name: "slow by the rule", When: WhileItRuns, Faults: []Fault{{Op: "Modify.endpoint", Times: 3, PerRule: 4 * time.Millisecond}}}, {Name: "slow", Faults: []Fault{{Op: "Modify.endpoint", Times: 2, Delay: 60 * time.Millisecond}}}}},
		{Fault: "a write is accepted and has no effect", Answer: "read back, reported and written again",
			Ways: []Way{{Name: "acls are accepted and not applied", Faults: lies("Modify.endpoint"), Says: "different ones"}, {Name: "a set is accepted and not applied", When: WhileItRuns, Faults: lies("Modify.network")},
				{Name: "acls are applied and an error is given", Faults: []Fault{{Op: "Modify.endpoint", Times: 1, Code: hns.CodeUnspecified, After: true}}}}},
		{Fault: "a request to remove ACLs has no effect, or HNS finds none of them (Azure NPM does not send it)", Answer: "beside other plugins, `uninstall` replaces the list instead, and fails while ACLs of Isthmus deny anything",
			Elsewhere: "`TestRemoveIsIgnored` and `TestNothingIsRemoved` of `windows/foreign`"},
		{Fault: "a new endpoint has no ACLs, which allows everything (not seen so far)", Answer: "ADD fails, and the endpoint is removed before it is attached",
			Ways: []Way{quirk("created without its ACLs", hnstest.Quirks{OpenEndpoints: true}, "default deny")}},
		{Fault: "ACLs are stored and not enforced (NAT networks of Server 2025 before KB5082063)", Answer: "Isthmus makes l2bridge and overlay networks only",
			Elsewhere: "HNS says that all is well; the packet questions of `isthmus-conformance` would show it"},
		{Fault: "an endpoint's state never becomes 3", Answer: "named in status after five minutes, with the remedy",
			Ways: []Way{{Name: "never connected", When: WhileItRuns, Do: func(t Target) error { return t.setState(hns.StateCreated) }}}},
		{Fault: "no free range of ports is left for NAT (0x803B0013)", Answer: "ADD fails and names the command that lists the ranges",
			Ways: []Way{{Name: "no range of ports is left", Faults: once("Create.endpoint", hns.CodePortExists), Says: "excludedportrange"}}},
		{Fault: "load balancers: ghosts, wrong states, lost until kube-proxy restarts", Answer: "Isthmus makes and removes none; pods' ACLs do not depend on them",
			Elsewhere: "kube-proxy's; `TestFaults` checks that no call of Isthmus changes a load balancer"},
	}
}
