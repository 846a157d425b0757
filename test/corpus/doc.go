// SPDX-License-Identifier: Apache-2.0

// Package corpus reads the cases of policy semantics: *.txtar files, each with
// manifests and the verdicts that are right for them, step by step.
//
//	What the case shows, and the text that decides it.
//	-- cluster.yaml --    namespaces, nodes, pods; default.yaml if left out
//	-- policies.yaml --   objects of the first step
//	-- warnings --        what the source warns of, a part of each message
//	-- flows --           one flow a line: SRC -> DST PROTO/PORT allow|deny
//	-- 2/apply.yaml --    objects created or replaced in the second step
//	-- 2/delete --        objects deleted in it, one a line: Kind ns/name
//	-- 2/warnings --
//	-- 2/flows --
//
// SRC and DST are ns/pod, ns/pod@ADDRESS, node:NAME or an address; PORT is left
// out for protocols without ports. It judges nothing: package engine does.
package corpus
