/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * bcryptprimitives.dll for Wine 8, which has none: ProcessPrng, where Go gets
 * its random numbers. Go loads it before anything else in every process and
 * finds all procedures by GetProcAddress. So this is also the place to replace
 * procedures of ntdll and ws2_32 that do less in Wine than unmodified Go programs
 * need:
 *
 *   - NtSetInformationFile: the newer classes for deleting and renaming, by the
 *     older ones;
 *   - NtCreateNamedPipeFile: an instance opened without the right to read or
 *     write takes no client on Windows; on Wine it does, and go-winio, which
 *     holds the name of a pipe that way, then waits for ever. Wine also lets any
 *     process add to a pipe that it asked to create;
 *   - WSAIoctl: SIO_UDP_NETRESET succeeds;
 *   - GetProcAddress, as the program itself imports it: procedures that
 *     iphlpapi.dll lacks, or has in part, are those of iphlpapi-more.dll. Those of
 *     events in advapi32.dll and tdh.dll, which do nothing, are those of etw-more.dll.
 */
#include <winsock2.h>
#include <windows.h>
#include <winternl.h>
#include <string.h>

#ifndef SIO_UDP_NETRESET
#define SIO_UDP_NETRESET _WSAIOW(IOC_VENDOR, 15)
#endif

#ifndef STATUS_ACCESS_DENIED
#define STATUS_ACCESS_DENIED ((NTSTATUS)0xC0000022)
#endif

/* Classes of NtSetInformationFile, and the flags of the newer ones. */
enum { RENAME = 10, DISPOSITION = 13, DISPOSITION_EX = 64, RENAME_EX = 65 };
enum { DELETE_IT = 1, REPLACE_IF_EXISTS = 1 };

typedef NTSTATUS(NTAPI *set_information)(HANDLE, IO_STATUS_BLOCK *, void *, ULONG, int);
typedef NTSTATUS(NTAPI *create_pipe)(HANDLE *, ULONG, OBJECT_ATTRIBUTES *, IO_STATUS_BLOCK *, ULONG, ULONG, ULONG,
				     ULONG, ULONG, ULONG, ULONG, ULONG, ULONG, LARGE_INTEGER *);
typedef NTSTATUS(NTAPI *open_file)(HANDLE *, ACCESS_MASK, OBJECT_ATTRIBUTES *, IO_STATUS_BLOCK *, ULONG, ULONG);
typedef int(WSAAPI *ioctl)(SOCKET, DWORD, void *, DWORD, void *, DWORD, DWORD *, WSAOVERLAPPED *,
			   LPWSAOVERLAPPED_COMPLETION_ROUTINE);

static set_information wine_set_information;
static create_pipe wine_create_pipe;
static open_file wine_open_file;
static ioctl wine_ioctl;

BOOLEAN NTAPI SystemFunction036(void *, ULONG); /* RtlGenRandom */

__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *to, SIZE_T size)
{
	return SystemFunction036(to, (ULONG)size);
}

static NTSTATUS NTAPI set_information_replaced(HANDLE file, IO_STATUS_BLOCK *io, void *info, ULONG size, int class)
{
	NTSTATUS status;
	ULONG flags;
	BYTE *older;

	if ((class != DISPOSITION_EX && class != RENAME_EX) || size < sizeof flags)
		return wine_set_information(file, io, info, size, class);
	memcpy(&flags, info, sizeof flags);
	if (class == DISPOSITION_EX) {
		BOOLEAN delete = flags & DELETE_IT;

		return wine_set_information(file, io, &delete, sizeof delete, DISPOSITION);
	}
	/* The same document, but a byte where the flags are. */
	older = HeapAlloc(GetProcessHeap(), 0, size);
	if (!older)
		return STATUS_NO_MEMORY;
	memcpy(older, info, size);
	memset(older, 0, sizeof flags);
	older[0] = flags & REPLACE_IF_EXISTS;
	status = wine_set_information(file, io, older, size, RENAME);
	HeapFree(GetProcessHeap(), 0, older);
	return status;
}

/* Reports whether a pipe exists, without a connection to it. */
static BOOL pipe_exists(const UNICODE_STRING *name)
{
	static const WCHAR nt[] = L"\\??\\", win32[] = L"\\\\.\\";
	const size_t prefix = sizeof nt / sizeof *nt - 1, length = name->Length / sizeof(WCHAR);
	WCHAR path[MAX_PATH];

	if (length < prefix || length >= MAX_PATH || memcmp(name->Buffer, nt, prefix * sizeof *nt))
		return FALSE;
	memcpy(path, win32, prefix * sizeof *path);
	memcpy(path + prefix, name->Buffer + prefix, (length - prefix) * sizeof *path);
	path[length] = 0;
	return WaitNamedPipeW(path, 1) || GetLastError() == ERROR_SEM_TIMEOUT;
}

static NTSTATUS NTAPI create_pipe_replaced(HANDLE *pipe, ULONG access, OBJECT_ATTRIBUTES *name, IO_STATUS_BLOCK *io,
					 ULONG share, ULONG disposition, ULONG options, ULONG type, ULONG read_mode,
					 ULONG completion, ULONG instances, ULONG in, ULONG out, LARGE_INTEGER *timeout)
{
	const ULONG usable = GENERIC_READ | GENERIC_WRITE | GENERIC_ALL | FILE_READ_DATA | FILE_WRITE_DATA;
	OBJECT_ATTRIBUTES again;
	IO_STATUS_BLOCK unused;
	NTSTATUS status;
	HANDLE client;

	if (disposition == FILE_CREATE && name->ObjectName && pipe_exists(name->ObjectName))
		return STATUS_ACCESS_DENIED;
	status = wine_create_pipe(pipe, access, name, io, share, disposition, options, type, read_mode, completion,
				  instances, in, out, timeout);
	if (status < 0 || access & usable)
		return status;
	/* No other process can connect to an instance that has a client. This one is
	 * never closed: it must live as long as the instance. */
	again = *name;
	again.SecurityDescriptor = NULL;
	wine_open_file(&client, SYNCHRONIZE | FILE_READ_ATTRIBUTES, &again, &unused,
		       FILE_SHARE_READ | FILE_SHARE_WRITE, 0);
	return status;
}

static int WSAAPI ioctl_replaced(SOCKET s, DWORD code, void *in, DWORD in_size, void *out, DWORD out_size,
			       DWORD *returned, WSAOVERLAPPED *overlapped, LPWSAOVERLAPPED_COMPLETION_ROUTINE done)
{
	if (code != SIO_UDP_NETRESET)
		return wine_ioctl(s, code, in, in_size, out, out_size, returned, overlapped, done);
	if (returned)
		*returned = 0;
	return 0;
}

/* The address in an export table has 32 bits, counted from the module: a jump
 * to anywhere is put behind the module, as near as there is room. */
#define STUB_SIZE 12
#define GRANULE 0x10000
#define MAX_TRIES 0x7000

static BYTE *make_stub(BYTE *module, DWORD module_size, void *target)
{
	ULONG_PTR at = ((ULONG_PTR)module + module_size + GRANULE - 1) & ~(ULONG_PTR)(GRANULE - 1);
	BYTE *stub = NULL;
	int tries;

	for (tries = 0; !stub && tries < MAX_TRIES; tries++, at += GRANULE)
		stub = VirtualAlloc((void *)at, STUB_SIZE, MEM_COMMIT | MEM_RESERVE, PAGE_EXECUTE_READWRITE);
	if (!stub || stub < module || (ULONG_PTR)(stub - module) > MAXDWORD)
		return NULL;
	stub[0] = 0x48, stub[1] = 0xB8; /* mov rax, target */
	memcpy(stub + 2, &target, sizeof target);
	stub[10] = 0xFF, stub[11] = 0xE0; /* jmp rax */
	return stub;
}

/* Puts target in place of an export; returns what was there, or NULL. */
static void *replace(HMODULE handle, const char *export, void *target)
{
	BYTE *module = (BYTE *)handle;
	IMAGE_NT_HEADERS *headers = (void *)(module + ((IMAGE_DOS_HEADER *)module)->e_lfanew);
	IMAGE_EXPORT_DIRECTORY *table = (void *)(module + headers->OptionalHeader.DataDirectory[0].VirtualAddress);
	DWORD *names = (void *)(module + table->AddressOfNames);
	DWORD *functions = (void *)(module + table->AddressOfFunctions);
	WORD *ordinals = (void *)(module + table->AddressOfNameOrdinals);
	DWORD i, old;

	for (i = 0; i < table->NumberOfNames; i++) {
		DWORD *slot = &functions[ordinals[i]];
		void *was = module + *slot;
		BYTE *stub;

		if (strcmp((const char *)module + names[i], export))
			continue;
		stub = make_stub(module, headers->OptionalHeader.SizeOfImage, target);
		if (!stub || !VirtualProtect(slot, sizeof *slot, PAGE_READWRITE, &old))
			return NULL;
		*slot = (DWORD)(stub - module);
		VirtualProtect(slot, sizeof *slot, old, &old);
		return was;
	}
	return NULL;
}

/* Reports whether a procedure is about events. A program imports few from these DLLs. */
static BOOL about_events(HMODULE module, LPCSTR name)
{
	if (module == GetModuleHandleA("tdh.dll"))
		return TRUE;
	return module == GetModuleHandleA("advapi32.dll") && (strstr(name, "Trace") != NULL);
}

static FARPROC WINAPI get_address_replaced(HMODULE module, LPCSTR name)
{
	FARPROC found = GetProcAddress(module, name);
	HMODULE more;

	if ((ULONG_PTR)name > 0xFFFF && about_events(module, name)) {
		more = LoadLibraryA("etw-more.dll");
		return more ? GetProcAddress(more, name) : found;
	}
	if (module != GetModuleHandleA("iphlpapi.dll") || !name)
		return found;
	if (found && strcmp(name, "GetIpForwardTable2")) /* its own knows no metrics, and no IPv6 */
		return found;
	more = LoadLibraryA("iphlpapi-more.dll");
	return more ? GetProcAddress(more, name) : found;
}

/* Puts target in place of what the program imports from kernel32.dll. An export
 * that does not exist cannot be replaced where it is exported. */
static void replace_import(const char *import, void *target)
{
	BYTE *program = (BYTE *)GetModuleHandleA(NULL);
	IMAGE_NT_HEADERS *headers = (void *)(program + ((IMAGE_DOS_HEADER *)program)->e_lfanew);
	IMAGE_DATA_DIRECTORY *at = &headers->OptionalHeader.DataDirectory[IMAGE_DIRECTORY_ENTRY_IMPORT];
	void *was = (void *)GetProcAddress(GetModuleHandleA("kernel32.dll"), import);
	IMAGE_IMPORT_DESCRIPTOR *d;
	DWORD old;

	if (!at->VirtualAddress || !was)
		return;
	for (d = (void *)(program + at->VirtualAddress); d->Name; d++) {
		void **slot = (void *)(program + d->FirstThunk);

		for (; *slot; slot++) {
			if (*slot != was || !VirtualProtect(slot, sizeof *slot, PAGE_READWRITE, &old))
				continue;
			*slot = target;
			VirtualProtect(slot, sizeof *slot, old, &old);
		}
	}
}

BOOL WINAPI DllMain(HINSTANCE self, DWORD reason, void *unused)
{
	HMODULE ntdll, sockets;

	(void)unused;
	if (reason != DLL_PROCESS_ATTACH)
		return TRUE;
	DisableThreadLibraryCalls(self);
	ntdll = GetModuleHandleA("ntdll.dll");
	if (!ntdll || !GetProcAddress(ntdll, "wine_get_version"))
		return TRUE; /* Windows needs no replacements */
	wine_open_file = (open_file)(void *)GetProcAddress(ntdll, "NtOpenFile");
	wine_set_information = (set_information)replace(ntdll, "NtSetInformationFile", set_information_replaced);
	wine_create_pipe = (create_pipe)replace(ntdll, "NtCreateNamedPipeFile", create_pipe_replaced);
	replace_import("GetProcAddress", (void *)get_address_replaced);
	sockets = LoadLibraryA("ws2_32.dll");
	if (sockets)
		wine_ioctl = (ioctl)replace(sockets, "WSAIoctl", ioctl_replaced);
	return TRUE;
}
