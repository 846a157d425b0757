// SPDX-License-Identifier: Apache-2.0

// Package programs builds plugins and daemons of other networks from the modules beside it, for tests. It does not build
// those of Windows, except azure-vnet.exe: test/wine does.
package programs
