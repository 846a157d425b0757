// SPDX-License-Identifier: Apache-2.0

// Package corpus reads the cases of policy semantics: *.txtar files, each with
// a comment that explains the case and cites the text that decides it, and these files:
//
//	-- cluster.yaml --     namespaces, nodes, pods; default.yaml if left out
//	-- policies.yaml --    objects of the first step
//	-- stored --           empty; the objects are read as if an API server had stored them
//	-- warnings --         warnings of the source, a part of each message
//	-- flows --            SRC -> DST PROTO/PORT allow|deny, one per line
//	-- 2/apply.yaml --     objects created or replaced in the second step
//	-- 2/delete --         objects deleted in it, Kind ns/name, one per line
//	-- 2/warnings, 2/flows --
//	-- golden/tables, golden/maps, golden/acls -- compiled forms of the last step
//
// SRC and DST are ns/pod, ns/pod@ADDRESS, node:NAME or an address. The cases
// with golden sections together use every construct. The package evaluates nothing.
package corpus
