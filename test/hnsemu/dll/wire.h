/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The client side of the wire to the emulated HNS (service/wire.go says what is
 * on it). A DLL has no state but idle connections and knows nothing of what it
 * carries.
 */
#ifndef HNSEMU_WIRE_H
#define HNSEMU_WIRE_H

#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>
#include <windows.h>
#include <objbase.h>
#include <stdlib.h>
#include <string.h>

/* Where the emulator listens unless HNSEMU_ADDRESS says otherwise. */
#define DEFAULT_ADDRESS "127.0.0.1:47700"
#define MAX_IDLE 32
#define ABSENT 0xFFFFFFFFu
#define ANSWER_HEAD (4 + 8) /* HRESULT, handle */

/* What a caller sees when the service does not run. */
#define UNAVAILABLE HRESULT_FROM_WIN32(RPC_S_SERVER_UNAVAILABLE)

struct request {
	const char *op;
	UINT64 handle;
	const GUID *guid;       /* or NULL */
	const WCHAR *args[3];   /* or NULL */
};

/* Where an answer goes; each may be NULL. Strings are for CoTaskMemFree. */
struct answer {
	UINT64 *handle;
	PWSTR *output;
	PWSTR *error;
};

static SRWLOCK idle_lock = SRWLOCK_INIT;
static SOCKET idle[MAX_IDLE];
static int idle_count;
static INIT_ONCE started = INIT_ONCE_STATIC_INIT;

static BOOL CALLBACK start(INIT_ONCE *once, void *unused, void **context)
{
	WSADATA data;

	(void)once, (void)unused, (void)context;
	return WSAStartup(MAKEWORD(2, 2), &data) == 0;
}

static int send_all(SOCKET s, const char *p, int left)
{
	while (left > 0) {
		int n = send(s, p, left, 0);

		if (n <= 0)
			return -1;
		p += n, left -= n;
	}
	return 0;
}

static int receive_all(SOCKET s, char *p, int left)
{
	while (left > 0) {
		int n = recv(s, p, left, 0);

		if (n <= 0)
			return -1;
		p += n, left -= n;
	}
	return 0;
}

/* Tells the emulator which process this is, so that it frees its handles. */
static int introduce(SOCKET s)
{
	struct { UINT64 id; FILETIME began; } name;
	FILETIME unused[3];

	name.id = GetCurrentProcessId();
	GetProcessTimes(GetCurrentProcess(), &name.began, &unused[0], &unused[1], &unused[2]);
	return send_all(s, (const char *)&name, sizeof name);
}

static SOCKET dial(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	char address[64], *colon;
	DWORD n = GetEnvironmentVariableA("HNSEMU_ADDRESS", address, sizeof address);
	BOOL at_once = TRUE;
	SOCKET s;

	if (!InitOnceExecuteOnce(&started, start, NULL, NULL))
		return INVALID_SOCKET;
	if (n == 0 || n >= sizeof address)
		strcpy(address, DEFAULT_ADDRESS);
	colon = strrchr(address, ':');
	if (!colon)
		return INVALID_SOCKET;
	*colon = 0;
	to.sin_addr.s_addr = inet_addr(address);
	to.sin_port = htons((u_short)atoi(colon + 1));
	s = WSASocketW(AF_INET, SOCK_STREAM, IPPROTO_TCP, NULL, 0, WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT);
	if (s == INVALID_SOCKET)
		return s;
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, (const char *)&at_once, sizeof at_once);
	if (connect(s, (struct sockaddr *)&to, sizeof to) || introduce(s)) {
		closesocket(s);
		return INVALID_SOCKET;
	}
	return s;
}

static SOCKET take(void)
{
	SOCKET s = INVALID_SOCKET;

	AcquireSRWLockExclusive(&idle_lock);
	if (idle_count > 0)
		s = idle[--idle_count];
	ReleaseSRWLockExclusive(&idle_lock);
	return s;
}

static void give_back(SOCKET s)
{
	AcquireSRWLockExclusive(&idle_lock);
	if (idle_count < MAX_IDLE) {
		idle[idle_count++] = s;
		s = INVALID_SOCKET;
	}
	ReleaseSRWLockExclusive(&idle_lock);
	if (s != INVALID_SOCKET)
		closesocket(s);
}

static char *put(char *at, const void *from, UINT32 size)
{
	memcpy(at, from, size);
	return at + size;
}

/* Closes all idle connections: the emulator that they led to has ended. */
static void close_idle(void)
{
	SOCKET s;

	while ((s = take()) != INVALID_SOCKET)
		closesocket(s);
}

/* Returns the request as it goes on the wire, for free(). */
static char *encode(const struct request *r, UINT32 *size)
{
	static const GUID none;
	UINT32 op_length = (UINT32)strlen(r->op), lengths[3], i, body;
	char *frame, *at;

	*size = 4 + 8 + sizeof(GUID) + 4 + 2 * op_length;
	for (i = 0; i < 3; i++) {
		lengths[i] = r->args[i] ? (UINT32)(2 * wcslen(r->args[i])) : 0;
		*size += 4 + lengths[i];
	}
	frame = at = malloc(*size);
	if (!frame)
		return NULL;
	body = *size - 4;
	at = put(at, &body, 4);
	at = put(at, &r->handle, 8);
	at = put(at, r->guid ? r->guid : &none, sizeof(GUID));
	body = 2 * op_length;
	at = put(at, &body, 4);
	for (i = 0; i < op_length; i++) {
		WCHAR unit = (unsigned char)r->op[i];

		at = put(at, &unit, 2);
	}
	for (i = 0; i < 3; i++) {
		at = put(at, &lengths[i], 4);
		if (lengths[i])
			at = put(at, r->args[i], lengths[i]);
	}
	return frame;
}

/* Takes a string from the wire; returns what follows it, or NULL. */
static const char *take_string(const char *at, const char *end, PWSTR *into)
{
	UINT32 length;

	if (end - at < 4)
		return NULL;
	memcpy(&length, at, 4);
	at += 4;
	if (length == ABSENT)
		return at;
	if ((UINT32)(end - at) < length)
		return NULL;
	if (into) {
		*into = CoTaskMemAlloc((SIZE_T)length + 2);
		if (!*into)
			return NULL;
		memcpy(*into, at, length);
		(*into)[length / 2] = 0;
	}
	return at + length;
}

static HRESULT decode(const char *body, UINT32 size, const struct answer *a)
{
	const char *at = body + ANSWER_HEAD, *end = body + size;
	HRESULT result;

	if (size < ANSWER_HEAD)
		return E_UNEXPECTED;
	memcpy(&result, body, 4);
	if (a->handle)
		memcpy(a->handle, body + 4, 8);
	at = take_string(at, end, a->output);
	if (at)
		at = take_string(at, end, a->error);
	return at ? result : E_OUTOFMEMORY;
}

/* Sends a request and waits for the answer; without one, all is off with s. */
static HRESULT exchange(SOCKET s, const char *frame, UINT32 size, const struct answer *a, BOOL *answered)
{
	HRESULT result = UNAVAILABLE;
	UINT32 length;
	char *body;

	*answered = FALSE;
	if (send_all(s, frame, (int)size) || receive_all(s, (char *)&length, sizeof length))
		return UNAVAILABLE;
	body = malloc(length);
	if (!body)
		return E_OUTOFMEMORY;
	if (!receive_all(s, body, (int)length)) {
		*answered = TRUE;
		result = decode(body, length, a);
	}
	free(body);
	return result;
}

/*
 * Makes one call. One that got no answer may have been done and is not sent
 * again: the caller sees that the service is not there, as it would on Windows.
 */
static HRESULT forward(const struct request *r, const struct answer *a)
{
	BOOL answered;
	HRESULT result;
	UINT32 size;
	char *frame;
	SOCKET s;

	if (a->handle)
		*a->handle = 0;
	if (a->output)
		*a->output = NULL;
	if (a->error)
		*a->error = NULL;
	frame = encode(r, &size);
	if (!frame)
		return E_OUTOFMEMORY;
	s = take();
	if (s == INVALID_SOCKET)
		s = dial();
	if (s == INVALID_SOCKET) {
		free(frame);
		return UNAVAILABLE;
	}
	result = exchange(s, frame, size, a, &answered);
	free(frame);
	if (answered) {
		give_back(s);
	} else {
		closesocket(s);
		close_idle();
	}
	return result;
}

#endif
