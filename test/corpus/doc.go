// SPDX-License-Identifier: Apache-2.0

// Package corpus reads the cases of policy semantics: *.txtar files, each with
// a comment that says what the case shows and which text decides it, and:
//
//	-- cluster.yaml --     namespaces, nodes, pods; default.yaml if left out
//	-- policies.yaml --    objects of the first step
//	-- stored --           empty: the objects are judged as an API server's own
//	-- warnings --         what the source warns of, a part of each message
//	-- flows --            SRC -> DST PROTO/PORT allow|deny, one a line
//	-- 2/apply.yaml --     objects created or replaced in the second step
//	-- 2/delete --         objects deleted in it, Kind ns/name, one a line
//	-- 2/warnings, 2/flows --
//	-- golden/tables, golden/maps, golden/acls -- what the last step becomes
//
// SRC and DST are ns/pod, ns/pod@ADDRESS, node:NAME or an address. Cases that
// between them use every construct have golden sections. It judges nothing.
package corpus
