/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * vmcompute.dll for Wine: HNSCall, the old schema of HNS, forwarded. Of the Host
 * Compute Service, which is the rest of this DLL, there is only the answer that
 * no compute system exists.
 */
#include "wire.h"

#define API __declspec(dllexport) HRESULT WINAPI

/* HCS_E_SYSTEM_NOT_FOUND */
#define NO_SYSTEM ((HRESULT)0xC037010E)

API HNSCall(PCWSTR method, PCWSTR path, PCWSTR object, PWSTR *response)
{
	return forward(&(struct request){ "HNSCall", .args = { method, path, object } },
		       &(struct answer){ .output = response });
}

API HcsOpenComputeSystem(PCWSTR id, void **system, PWSTR *result)
{
	(void)id;
	if (system)
		*system = NULL;
	if (result)
		*result = NULL;
	return NO_SYSTEM;
}
