/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * computenetwork.dll for Wine: the procedures of the Host Compute Network API,
 * forwarded. All five kinds of objects have the same seven.
 */
#include "wire.h"

#define API __declspec(dllexport) HRESULT WINAPI

#define CALL(...) forward(&(struct request){ __VA_ARGS__ }, &(struct answer)

#define KIND(Name, Plural, kind)                                                                             \
	API HcnEnumerate##Plural(PCWSTR query, PWSTR *ids, PWSTR *error)                                     \
	{                                                                                                    \
		return CALL("Enumerate." kind, .args = { query }) { .output = ids, .error = error });        \
	}                                                                                                    \
	API HcnOpen##Name(const GUID *id, UINT64 *handle, PWSTR *error)                                      \
	{                                                                                                    \
		return CALL("Open." kind, .guid = id) { .handle = handle, .error = error });                 \
	}                                                                                                    \
	API HcnModify##Name(UINT64 handle, PCWSTR settings, PWSTR *error)                                    \
	{                                                                                                    \
		return CALL("Modify." kind, .handle = handle, .args = { settings }) { .error = error });     \
	}                                                                                                    \
	API HcnQuery##Name##Properties(UINT64 handle, PCWSTR query, PWSTR *properties, PWSTR *error)         \
	{                                                                                                    \
		return CALL("Query." kind, .handle = handle, .args = { query })                              \
			{ .output = properties, .error = error });                                           \
	}                                                                                                    \
	API HcnDelete##Name(const GUID *id, PWSTR *error)                                                    \
	{                                                                                                    \
		return CALL("Delete." kind, .guid = id) { .error = error });                                 \
	}                                                                                                    \
	API HcnClose##Name(UINT64 handle)                                                                    \
	{                                                                                                    \
		return CALL("Close." kind, .handle = handle) { 0 });                                         \
	}

#define CREATE(Name, kind)                                                                                   \
	API HcnCreate##Name(const GUID *id, PCWSTR settings, UINT64 *handle, PWSTR *error)                   \
	{                                                                                                    \
		return CALL("Create." kind, .guid = id, .args = { settings })                                \
			{ .handle = handle, .error = error });                                               \
	}

KIND(Network, Networks, "network")
KIND(Endpoint, Endpoints, "endpoint")
KIND(Namespace, Namespaces, "namespace")
KIND(LoadBalancer, LoadBalancers, "loadbalancer")
KIND(SdnRoute, SdnRoutes, "sdnroute")

CREATE(Network, "network")
CREATE(Namespace, "namespace")
CREATE(LoadBalancer, "loadbalancer")
CREATE(SdnRoute, "sdnroute")

/* An endpoint is made on a network. */
API HcnCreateEndpoint(UINT64 network, const GUID *id, PCWSTR settings, UINT64 *handle, PWSTR *error)
{
	return CALL("Create.endpoint", .handle = network, .guid = id, .args = { settings })
		{ .handle = handle, .error = error });
}

API HcnQueryEndpointStats(UINT64 endpoint, PCWSTR query, PWSTR *stats, PWSTR *error)
{
	return CALL("Stats.endpoint", .handle = endpoint, .args = { query }) { .output = stats, .error = error });
}
