// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Map returns a map that the programs share.
func (d *DataPath) Map(name string) *ebpf.Map { return d.maps()[name] }

// MarkOf returns the mark that the program of the last endpoint gives a packet of its pod.
func (d *DataPath) MarkOf(frame []byte) (uint32, error) {
	_, after, err := d.run(SandboxInterface, model.Egress, 0, frame)
	return after.Mark, err
}

// ChangeMark gives a record of a packet, and the hint of its flow, another mark.
func (d *DataPath) ChangeMark(from, to uint32) error {
	var record bpfobj.PodPostDnatRecord
	if err := d.objects.PostDnat.Lookup(from>>16, &record); err != nil {
		return err
	}
	record.Mark = to
	err := d.objects.PostDnat.Put(from>>16, record)
	for i := range d.objects.RecordHints.MaxEntries() {
		var hint bpfobj.PodRecordHint
		if failed := d.objects.RecordHints.Lookup(i, &hint); failed != nil || hint.Mark != from {
			err = errors.Join(err, failed)
			continue
		}
		return errors.Join(err, d.objects.RecordHints.Put(i, bpfobj.PodRecordHint{Mark: to, Epoch: hint.Epoch}))
	}
	return errors.Join(err, fmt.Errorf("no hint has the mark %#x", from))
}
