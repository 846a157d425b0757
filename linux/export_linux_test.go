// SPDX-License-Identifier: Apache-2.0

package linux

import "github.com/isthmus-net/isthmus/common/dataplane"

// AddComponent appends a component to the list of makeComponents.
func (b *Backend) AddComponent(c dataplane.Component) { b.components = append(b.components, c) }
