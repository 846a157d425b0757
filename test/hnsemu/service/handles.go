// SPDX-License-Identifier: Apache-2.0

package service

import (
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// handle is an object that a client has opened. The object may have been deleted since.
type handle struct{ client, kind, id string }

// handles assigns numbers to clients. No number is used twice.
type handles struct {
	next    uint64
	objects map[uint64]handle
}

// firstHandle is large, so that a test notices if it is mistaken for an index.
const firstHandle = 0x1000

func newHandles() handles { return handles{next: firstHandle, objects: make(map[uint64]handle)} }

func (h *handles) open(client, kind, id string) uint64 {
	h.next += 4
	h.objects[h.next] = handle{client, kind, id}
	return h.next
}

func (h *handles) get(n uint64, kind string) (handle, error) {
	found, ok := h.objects[n]
	if !ok || found.kind != kind {
		return handle{}, hns.NewError("handle", hnstest.CodeInvalidHandle, "The handle is invalid.")
	}
	return found, nil
}

func (h *handles) close(n uint64) error {
	if _, ok := h.objects[n]; !ok {
		return hns.NewError("handle", hnstest.CodeInvalidHandle, "The handle is invalid.")
	}
	delete(h.objects, n)
	return nil
}

func (h *handles) forget(client string) {
	for n, o := range h.objects {
		if o.client == client {
			delete(h.objects, n)
		}
	}
}
