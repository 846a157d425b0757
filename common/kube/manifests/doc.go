// SPDX-License-Identifier: Apache-2.0

// Package manifests reads objects from YAML and JSON: a text (Parse), files (ReadFiles, ParseFiles), a
// directory (LoadDir), or a watched directory (Directory, a kube.Source). Limits bound what a manifest may
// cost. Errors name file, document, object, field and remedy.
//
// Workloads stand for the pods that their controllers would create.
//
// It does not know kinds: package convert does.
package manifests
