/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * vmcompute.dll for Wine: HNSCall, the old schema of HNS, forwarded. Of the Host
 * Compute Service, which is the rest of this DLL, there is what the old schema
 * needs to attach endpoints to containers that run already.
 */
#include "wire.h"

#define API __declspec(dllexport) HRESULT WINAPI

API HNSCall(PCWSTR method, PCWSTR path, PCWSTR object, PWSTR *response)
{
	return forward(&(struct request){ "HNSCall", .args = { method, path, object } },
		       &(struct answer){ .output = response });
}

API HcsOpenComputeSystem(PCWSTR id, UINT64 *system, PWSTR *result)
{
	return forward(&(struct request){ "Open.system", .args = { id } },
		       &(struct answer){ .handle = system, .error = result });
}

API HcsGetComputeSystemProperties(UINT64 system, PCWSTR query, PWSTR *properties, PWSTR *result)
{
	return forward(&(struct request){ "Query.system", .handle = system, .args = { query } },
		       &(struct answer){ .output = properties, .error = result });
}

API HcsModifyComputeSystem(UINT64 system, PCWSTR settings, PWSTR *result)
{
	return forward(&(struct request){ "Modify.system", .handle = system, .args = { settings } },
		       &(struct answer){ .error = result });
}

API HcsCloseComputeSystem(UINT64 system)
{
	return forward(&(struct request){ "Close.system", .handle = system }, &(struct answer){ 0 });
}

/* Containers do not end during a test, so no callback is ever called. */
API HcsRegisterComputeSystemCallback(UINT64 system, void *callback, void *context, UINT64 *handle)
{
	(void)callback, (void)context;
	*handle = system;
	return S_OK;
}

API HcsUnregisterComputeSystemCallback(UINT64 handle)
{
	(void)handle;
	return S_OK;
}
