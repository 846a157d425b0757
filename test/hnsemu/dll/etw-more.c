/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * etw-more.dll for Wine 8, whose advapi32.dll and tdh.dll have no events: real-time
 * sessions of the emulator (service/etw.go says what is on the wire). One program has
 * one session at a time.
 */
#include "wire.h"
/* The headers declare the procedures as those of other DLLs. */
#define StartTraceW declared_StartTraceW
#define ControlTraceW declared_ControlTraceW
#define EnableTraceEx2 declared_EnableTraceEx2
#define OpenTraceW declared_OpenTraceW
#define ProcessTrace declared_ProcessTrace
#define CloseTrace declared_CloseTrace
#define TdhGetEventInformation declared_TdhGetEventInformation
#define TdhGetEventMapInformation declared_TdhGetEventMapInformation
#include <wmistr.h>
#include <evntrace.h>
#include <evntcons.h>
#include <tdh.h>
#undef StartTraceW
#undef ControlTraceW
#undef EnableTraceEx2
#undef OpenTraceW
#undef ProcessTrace
#undef CloseTrace
#undef TdhGetEventInformation
#undef TdhGetEventMapInformation
#include <stddef.h>
#include <stdio.h>

#define WORDS 512

/* The layouts that windows/etw relies on. */
_Static_assert(sizeof(EVENT_TRACE_PROPERTIES) == 120, "layout");
_Static_assert(offsetof(EVENT_TRACE_PROPERTIES, EventsLost) == 88 && offsetof(EVENT_TRACE_PROPERTIES, RealTimeBuffersLost) == 100, "layout");
_Static_assert(offsetof(EVENT_TRACE_PROPERTIES, BufferSize) == 48 && offsetof(EVENT_TRACE_PROPERTIES, LogFileMode) == 64, "layout");
_Static_assert(offsetof(EVENT_TRACE_PROPERTIES, LoggerNameOffset) == 116, "layout");
_Static_assert(sizeof(EVENT_TRACE_LOGFILEW) == 448 && offsetof(EVENT_TRACE_LOGFILEW, LoggerName) == 8, "layout");
_Static_assert(offsetof(EVENT_TRACE_LOGFILEW, EventRecordCallback) == 424 && offsetof(EVENT_TRACE_LOGFILEW, Context) == 440, "layout");
_Static_assert(offsetof(EVENT_TRACE_LOGFILEW, ProcessTraceMode) == 28, "layout");
_Static_assert(sizeof(EVENT_RECORD) == 112 && offsetof(EVENT_RECORD, EventHeader.EventDescriptor) == 40, "layout");
_Static_assert(offsetof(EVENT_RECORD, EventHeader.TimeStamp) == 16 && offsetof(EVENT_RECORD, UserDataLength) == 86, "layout");
_Static_assert(offsetof(EVENT_RECORD, UserData) == 96 && offsetof(EVENT_RECORD, UserContext) == 104, "layout");
_Static_assert(offsetof(TRACE_EVENT_INFO, PropertyCount) == 100 && offsetof(TRACE_EVENT_INFO, TopLevelPropertyCount) == 104, "layout");
_Static_assert(offsetof(TRACE_EVENT_INFO, EventPropertyInfoArray) == 112 && sizeof(EVENT_PROPERTY_INFO) == 24, "layout");
_Static_assert(offsetof(EVENT_PROPERTY_INFO, NameOffset) == 4 && offsetof(EVENT_PROPERTY_INFO, nonStructType) == 8, "layout");
_Static_assert(offsetof(EVENT_PROPERTY_INFO, nonStructType.MapNameOffset) == 12 && offsetof(EVENT_PROPERTY_INFO, count) == 16, "layout");
_Static_assert(offsetof(EVENT_PROPERTY_INFO, length) == 18, "layout");
_Static_assert(offsetof(EVENT_MAP_INFO, Flag) == 4 && offsetof(EVENT_MAP_INFO, EntryCount) == 8, "layout");
_Static_assert(offsetof(EVENT_MAP_INFO, MapEntryArray) == 16 && sizeof(EVENT_MAP_ENTRY) == 8, "layout");
_Static_assert(offsetof(ENABLE_TRACE_PARAMETERS, EnableFilterDesc) == 32, "layout");

/* What follows EnableFilterDesc in version 2 of ENABLE_TRACE_PARAMETERS. */
struct parameters {
	ULONG version, property, flags;
	GUID source;
	EVENT_FILTER_DESCRIPTOR *filters;
	ULONG filter_count;
};

struct id_filter {
	BOOLEAN in;
	UCHAR reserved;
	USHORT count, ids[];
};

#define FILTER_EVENT_ID 0x80000200

static WCHAR session[128];
static UINT64 reader;
static EVENT_TRACE_LOGFILEW opened;

static ULONG code(HRESULT result)
{
	if (SUCCEEDED(result))
		return ERROR_SUCCESS;
	return HRESULT_FACILITY(result) == FACILITY_WIN32 ? HRESULT_CODE(result) : ERROR_GEN_FAILURE;
}

static ULONG call(const char *op, const WCHAR *words, PWSTR *output)
{
	return code(forward(&(struct request){ op, .args = { words } }, &(struct answer){ .output = output }));
}

/* Returns the value of a hexadecimal digit, or -1. */
static int nibble(WCHAR c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Takes bytes from hexadecimal digits; returns how many. swscanf would take longer than packets arrive. */
static ULONG bytes(const WCHAR *digits, BYTE *to, ULONG room)
{
	ULONG n = 0;

	for (; n < room && nibble(digits[0]) >= 0 && nibble(digits[1]) >= 0; digits += 2)
		to[n++] = (BYTE)(nibble(digits[0]) << 4 | nibble(digits[1]));
	return n;
}

/* Answers as the procedures of tdh.dll do with a buffer that the caller has made. */
static ULONG answer(const char *op, const WCHAR *words, void *buffer, ULONG *size)
{
	PWSTR digits = NULL;
	ULONG result = call(op, words, &digits), length;

	if (result != ERROR_SUCCESS)
		return result;
	if (!digits)
		return ERROR_NOT_FOUND;
	length = (ULONG)wcslen(digits) / 2;
	if (!buffer || *size < length)
		result = ERROR_INSUFFICIENT_BUFFER;
	else
		bytes(digits, buffer, length);
	*size = length;
	CoTaskMemFree(digits);
	return result;
}

__declspec(dllexport) ULONG WINAPI StartTraceW(TRACEHANDLE *handle, const WCHAR *name, EVENT_TRACE_PROPERTIES *p)
{
	ULONG result;

	if (p->Wnode.BufferSize < sizeof *p + 2 * (wcslen(name) + 1) || p->LoggerNameOffset < sizeof *p ||
	    !(p->LogFileMode & EVENT_TRACE_REAL_TIME_MODE) || !(p->Wnode.Flags & WNODE_FLAG_TRACED_GUID) || wcslen(name) >= 128)
		return ERROR_INVALID_PARAMETER;
	result = call("Start.etw", name, NULL);
	if (result == ERROR_SUCCESS) {
		wcscpy(session, name);
		*handle = 1;
	}
	return result;
}

__declspec(dllexport) ULONG WINAPI ControlTraceW(TRACEHANDLE handle, const WCHAR *name, EVENT_TRACE_PROPERTIES *p, ULONG control)
{
	PWSTR output = NULL;
	ULONG result, lost;

	(void)handle;
	if (p->Wnode.BufferSize < sizeof *p || !name)
		return ERROR_INVALID_PARAMETER;
	if (control == EVENT_TRACE_CONTROL_STOP)
		return call("Stop.etw", name, NULL);
	if (control != EVENT_TRACE_CONTROL_QUERY)
		return ERROR_NOT_SUPPORTED;
	result = call("Query.etw", name, &output);
	if (result == ERROR_SUCCESS && output && swscanf(output, L"%lu", &lost) == 1)
		p->EventsLost = lost;
	CoTaskMemFree(output);
	return result;
}

__declspec(dllexport) ULONG WINAPI EnableTraceEx2(TRACEHANDLE handle, const GUID *provider, ULONG control, UCHAR level, ULONGLONG any,
						  ULONGLONG every, ULONG timeout, struct parameters *p)
{
	static const GUID vfpext = { 0x9f2660ea, 0xcfe7, 0x428f, { 0x98, 0x50, 0xae, 0xca, 0x61, 0x26, 0x19, 0xb0 } };
	WCHAR words[WORDS];
	ULONG i;
	int at = swprintf(words, WORDS, L"%ls", session);

	(void)every, (void)timeout;
	if (handle != 1 || control != EVENT_CONTROL_CODE_ENABLE_PROVIDER || memcmp(provider, &vfpext, sizeof vfpext) || level < 4 || !(any & 4))
		return ERROR_INVALID_PARAMETER;
	for (i = 0; p && i < p->filter_count; i++) {
		struct id_filter *f = (void *)(ULONG_PTR)p->filters[i].Ptr;
		USHORT n;

		if (p->version != 2 || p->filters[i].Type != FILTER_EVENT_ID || !f->in || p->filters[i].Size < 4u + 2u * f->count)
			return ERROR_INVALID_PARAMETER;
		for (n = 0; n < f->count && at < WORDS - 8; n++)
			at += swprintf(words + at, WORDS - at, L" %u", f->ids[n]);
	}
	return call("Enable.etw", words, NULL);
}

__declspec(dllexport) TRACEHANDLE WINAPI OpenTraceW(EVENT_TRACE_LOGFILEW *file)
{
	UINT64 handle = 0;
	HRESULT result = E_INVALIDARG;

	if (file->ProcessTraceMode == (PROCESS_TRACE_MODE_REAL_TIME | PROCESS_TRACE_MODE_EVENT_RECORD))
		result = forward(&(struct request){ "Open.etw", .args = { file->LoggerName } }, &(struct answer){ .handle = &handle });
	if (FAILED(result)) {
		SetLastError(code(result));
		return INVALID_PROCESSTRACE_HANDLE;
	}
	opened = *file;
	reader = handle;
	return handle;
}

/* Passes the events of lines of ID FILETIME DATA on. */
static void deliver(const WCHAR *lines)
{
	BYTE data[4096];
	WCHAR *at;

	while (lines && *lines) {
		EVENT_RECORD r = { .UserContext = opened.Context, .UserData = data };

		r.EventHeader.EventDescriptor.Id = (USHORT)wcstoul(lines, &at, 10);
		r.EventHeader.TimeStamp.QuadPart = (LONGLONG)_wcstoui64(at, &at, 10);
		if (*at != ' ')
			return;
		r.UserDataLength = (USHORT)bytes(at + 1, data, sizeof data);
		opened.EventRecordCallback(&r);
		lines = wcschr(at, '\n');
		if (lines)
			lines++;
	}
}

__declspec(dllexport) ULONG WINAPI ProcessTrace(TRACEHANDLE *handles, ULONG count, FILETIME *start, FILETIME *end)
{
	(void)start, (void)end;
	if (count != 1 || handles[0] != reader)
		return ERROR_INVALID_HANDLE;
	for (;;) {
		PWSTR lines = NULL;
		HRESULT result = forward(&(struct request){ "Next.etw", .handle = handles[0] }, &(struct answer){ .output = &lines });
		BOOL last = FAILED(result) || !lines || !wcscmp(lines, L"end");

		if (!last)
			deliver(lines);
		CoTaskMemFree(lines);
		if (last)
			return code(result);
	}
}

__declspec(dllexport) ULONG WINAPI CloseTrace(TRACEHANDLE handle)
{
	return handle == reader ? ERROR_SUCCESS : ERROR_INVALID_HANDLE;
}

static ULONG describe(const EVENT_DESCRIPTOR *d, TRACE_EVENT_INFO *info, ULONG *size)
{
	WCHAR words[16];

	swprintf(words, 16, L"%u", d->Id);
	return answer("Info.etw", words, info, size);
}

__declspec(dllexport) ULONG WINAPI TdhGetEventInformation(EVENT_RECORD *r, ULONG count, TDH_CONTEXT *context, TRACE_EVENT_INFO *info, ULONG *size)
{
	(void)count, (void)context;
	return describe(&r->EventHeader.EventDescriptor, info, size);
}

__declspec(dllexport) ULONG WINAPI TdhGetManifestEventInformation(GUID *provider, EVENT_DESCRIPTOR *d, TRACE_EVENT_INFO *info, ULONG *size)
{
	(void)provider;
	return describe(d, info, size);
}

__declspec(dllexport) ULONG WINAPI TdhGetEventMapInformation(EVENT_RECORD *r, WCHAR *name, EVENT_MAP_INFO *info, ULONG *size)
{
	(void)r;
	return answer("Map.etw", name, info, size);
}

__declspec(dllexport) ULONG WINAPI TdhEnumerateManifestProviderEvents(GUID *provider, void *info, ULONG *size)
{
	(void)provider;
	return answer("Provider.etw", L"", info, size);
}
