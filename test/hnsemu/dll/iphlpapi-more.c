/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * iphlpapi-more.dll for Wine 8: what its iphlpapi.dll lacks to read and change the
 * routes and the forwarding of the host. The emulator does it in the node's network
 * namespace (service/stack.go says what is on the wire).
 */
#include <winsock2.h>
#include <ws2tcpip.h>
#include "wire.h"
#include <iphlpapi.h>
#include <stdio.h>

#define WORDS 160

/* The codes of Windows; others of the emulator are one. */
static DWORD code(HRESULT result)
{
	if (SUCCEEDED(result))
		return NO_ERROR;
	return HRESULT_FACILITY(result) == FACILITY_WIN32 ? HRESULT_CODE(result) : ERROR_GEN_FAILURE;
}

static const char *text(const SOCKADDR_INET *a, char *into)
{
	const void *from = a->si_family == AF_INET6 ? (const void *)&a->Ipv6.sin6_addr : (const void *)&a->Ipv4.sin_addr;

	return inet_ntop(a->si_family, from, into, INET6_ADDRSTRLEN) ? into : "?";
}

static DWORD call(const char *op, const char *words, PWSTR *output)
{
	WCHAR wide[WORDS];
	int i = 0;

	do
		wide[i] = (unsigned char)words[i];
	while (words[i++]);
	return code(forward(&(struct request){ op, .args = { wide } }, &(struct answer){ .output = output }));
}

static DWORD change(const char *op, const MIB_IPFORWARD_ROW2 *row)
{
	char words[WORDS], to[INET6_ADDRSTRLEN], hop[INET6_ADDRSTRLEN];

	snprintf(words, sizeof words, "%s %u %s %lu %lu", text(&row->DestinationPrefix.Prefix, to),
		 row->DestinationPrefix.PrefixLength, text(&row->NextHop, hop), row->InterfaceIndex, row->Metric);
	return call(op, words, NULL);
}

__declspec(dllexport) void WINAPI InitializeIpForwardEntry(MIB_IPFORWARD_ROW2 *row)
{
	memset(row, 0, sizeof *row);
	row->ValidLifetime = row->PreferredLifetime = row->Metric = row->Protocol = ~0u;
	row->Loopback = row->AutoconfigureAddress = row->Publish = row->Immortal = TRUE;
}

__declspec(dllexport) DWORD WINAPI CreateIpForwardEntry2(const MIB_IPFORWARD_ROW2 *row)
{
	return change("Add.stack", row);
}

__declspec(dllexport) DWORD WINAPI DeleteIpForwardEntry2(const MIB_IPFORWARD_ROW2 *row)
{
	return change("Remove.stack", row);
}

static void set(SOCKADDR_INET *a, const char *words)
{
	if (strchr(words, ':')) {
		a->si_family = AF_INET6;
		inet_pton(AF_INET6, words, &a->Ipv6.sin6_addr);
	} else {
		a->si_family = AF_INET;
		inet_pton(AF_INET, words, &a->Ipv4.sin_addr);
	}
}

/* Fills rows from lines of DESTINATION BITS NEXTHOP INDEX METRIC PROTOCOL. */
static void fill(MIB_IPFORWARD_TABLE2 *table, const WCHAR *lines, ULONG most)
{
	char to[INET6_ADDRSTRLEN], hop[INET6_ADDRSTRLEN];
	unsigned bits, index, metric, protocol;

	while (table->NumEntries < most &&
	       swscanf(lines, L"%45hs %u %45hs %u %u %u", to, &bits, hop, &index, &metric, &protocol) == 6) {
		MIB_IPFORWARD_ROW2 *row = &table->Table[table->NumEntries++];

		set(&row->DestinationPrefix.Prefix, to);
		set(&row->NextHop, hop);
		row->DestinationPrefix.PrefixLength = (UINT8)bits;
		row->InterfaceIndex = index;
		row->Metric = metric;
		row->Protocol = protocol;
		lines = wcschr(lines, '\n') + 1;
	}
}

/* The table is for FreeMibTable of Wine, which frees memory of the heap. */
__declspec(dllexport) DWORD WINAPI GetIpForwardTable2(ADDRESS_FAMILY family, MIB_IPFORWARD_TABLE2 **table)
{
	PWSTR output = NULL, at;
	ULONG most = 1;
	DWORD result = call("Routes.stack", family == AF_INET ? "4" : family == AF_INET6 ? "6" : "0", &output);

	if (result == NO_ERROR && !output)
		result = ERROR_GEN_FAILURE;
	if (result != NO_ERROR)
		return result;
	for (at = output; (at = wcschr(at, '\n')); at++)
		most++;
	*table = HeapAlloc(GetProcessHeap(), HEAP_ZERO_MEMORY, sizeof **table + most * sizeof(MIB_IPFORWARD_ROW2));
	if (*table)
		fill(*table, output, most);
	CoTaskMemFree(output);
	return *table ? NO_ERROR : ERROR_NOT_ENOUGH_MEMORY;
}

__declspec(dllexport) DWORD WINAPI GetIpInterfaceEntry(MIB_IPINTERFACE_ROW *row)
{
	char words[WORDS];
	PWSTR output = NULL;
	DWORD result, mtu;
	int on;

	snprintf(words, sizeof words, "%lu %d", row->InterfaceIndex, row->Family == AF_INET6 ? 6 : 4);
	result = call("Get.stack", words, &output);
	if (result == NO_ERROR && (!output || swscanf(output, L"%d %lu", &on, &mtu) != 2))
		result = ERROR_GEN_FAILURE;
	CoTaskMemFree(output);
	if (result == NO_ERROR)
		row->ForwardingEnabled = on != 0, row->NlMtu = mtu;
	return result;
}

/* Windows rejects a row whose SitePrefixLength does not fit the family. */
__declspec(dllexport) DWORD WINAPI SetIpInterfaceEntry(MIB_IPINTERFACE_ROW *row)
{
	char words[WORDS];

	if (row->Family == AF_INET && row->SitePrefixLength)
		return ERROR_INVALID_PARAMETER;
	snprintf(words, sizeof words, "%lu %d %d", row->InterfaceIndex, row->Family == AF_INET6 ? 6 : 4, row->ForwardingEnabled ? 1 : 0);
	return call("Set.stack", words, NULL);
}
