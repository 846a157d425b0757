// SPDX-License-Identifier: Apache-2.0

package etw

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// The structs of evntrace.h and evntcons.h, as they are on 64-bit systems. The arrays at the end hold what follows the
// struct in memory.

// traceProperties is EVENT_TRACE_PROPERTIES, with room for the name of the session.
type traceProperties struct {
	bufferSize        uint32 // of all this
	_                 uint32
	historicalContext uint64
	_                 int64
	guid              windows.GUID
	clientContext     uint32 // the clock
	flags             uint32

	bufferKB, minimumBuffers, maximumBuffers, _         uint32
	logFileMode, flushTimer, enableFlags, _             uint32
	numberOfBuffers, freeBuffers, eventsLost            uint32
	buffersWritten, logBuffersLost, realTimeBuffersLost uint32
	_                                                   windows.Handle
	logFileNameOffset, loggerNameOffset                 uint32
	name                                                [128]uint16
	_                                                   [8]byte
}

// propertiesSize is the size of EVENT_TRACE_PROPERTIES itself.
const propertiesSize = 120

// eventDescriptor is EVENT_DESCRIPTOR.
type eventDescriptor struct {
	id                      uint16
	version, channel, level uint8
	opcode                  uint8
	task                    uint16
	keyword                 uint64
}

// eventRecord is EVENT_RECORD. Windows owns it, and what it refers to, until the callback returns.
type eventRecord struct {
	_              [16]byte
	timeStamp      int64 // 100 ns since 1601
	provider       windows.GUID
	descriptor     eventDescriptor
	_              [24]byte
	_              uint32
	_              uint16
	userDataLength uint16
	_              uintptr
	userData       *byte
	userContext    *reader
}

// traceLogfile is EVENT_TRACE_LOGFILEW.
type traceLogfile struct {
	_                   *uint16
	loggerName          *uint16
	_                   int64
	_                   uint32
	processTraceMode    uint32
	_                   [88]byte  // EVENT_TRACE
	_                   [280]byte // TRACE_LOGFILE_HEADER
	_                   uintptr
	_, _, _             uint32
	eventRecordCallback uintptr
	_                   uint32
	context             *reader
}

// filterDescriptor is EVENT_FILTER_DESCRIPTOR.
type filterDescriptor struct {
	pointer  uint64
	size     uint32
	kindOfIt uint32
}

// eventIDFilter is EVENT_FILTER_EVENT_ID.
type eventIDFilter struct {
	filterIn uint8
	_        uint8
	count    uint16
	ids      [maxFilterIDs]uint16
}

// maxFilterIDs is MAX_EVENT_FILTER_EVENT_ID_COUNT.
const maxFilterIDs = 64

// enableParameters is ENABLE_TRACE_PARAMETERS, version 2.
type enableParameters struct {
	version, enableProperty, controlFlags uint32
	sourceID                              windows.GUID
	filters                               *filterDescriptor
	filterCount                           uint32
}

// The sizes that Windows expects. A wrong one does not compile.
var (
	_ [propertiesSize - unsafe.Offsetof(traceProperties{}.name)]byte
	_ [unsafe.Offsetof(traceProperties{}.name) - propertiesSize]byte
	_ [112 - unsafe.Sizeof(eventRecord{})]byte
	_ [unsafe.Sizeof(eventRecord{}) - 112]byte
	_ [448 - unsafe.Sizeof(traceLogfile{})]byte
	_ [unsafe.Sizeof(traceLogfile{}) - 448]byte
	_ [48 - unsafe.Sizeof(enableParameters{})]byte
	_ [unsafe.Sizeof(enableParameters{}) - 48]byte
)
