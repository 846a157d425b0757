// SPDX-License-Identifier: Apache-2.0

// Package hostprocess makes the command line of a HostProcess container of Windows, as a kubelet and hcsshim make it of the
// words in a pod.
//
// It starts nothing.
package hostprocess

import "strings"

// Mount is the directory of the image's files, where hcsshim can bind them there. Elsewhere it is below that directory.
const Mount = `C:\hpc`

// mountPoint is the variable that hcsshim replaces, and adds to the environment of the process.
const mountPoint = "CONTAINER_SANDBOX_MOUNT_POINT"

// Expand returns the words of a command and its arguments. A kubelet replaces $(NAME) for the variables of the container only,
// and that of the mount point is none of them. Later hcsshim replaces the mount point in its two own spellings.
func Expand(words []string, env map[string]string, mount string) []string {
	var all []string
	for _, word := range words {
		for name, value := range env {
			word = strings.ReplaceAll(word, "$("+name+")", value)
		}
		for _, spelling := range []string{"%" + mountPoint + "%", "$env:" + mountPoint} {
			word = strings.ReplaceAll(word, spelling, mount)
		}
		all = append(all, word)
	}
	return all
}

// Environment adds what hcsshim adds to the variables of a container.
func Environment(env map[string]string, mount string) map[string]string {
	all := map[string]string{mountPoint: mount + `\`}
	for name, value := range env {
		all[name] = value
	}
	return all
}
