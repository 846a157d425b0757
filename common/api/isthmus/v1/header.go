// SPDX-License-Identifier: Apache-2.0

package isthmusv1

// IncompleteHeader is the header of the answer to WatchFlows that says which flows the data path does not report.
const IncompleteHeader = "isthmus-incomplete"
