// SPDX-License-Identifier: Apache-2.0

// Command vfpctrl stands for vfpctrl.exe of Windows under Wine. It forwards its arguments to the emulated HNS and
// prints the answer. Unlike Windows, it only lists ports and the counters of rules, as JSON.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
	"unicode/utf16"
)

func main() { os.Exit(run(os.Args[1:], os.Getenv("HNSEMU_ADDRESS"), os.Stdout)) }

func run(args []string, address string, out io.Writer) int {
	if address == "" {
		address = "127.0.0.1:47700"
	}
	text, err := ask(address, strings.Join(args, " "))
	if err != nil {
		fmt.Fprintln(out, err)
		return 1
	}
	fmt.Fprint(out, text)
	return 0
}

// ask makes the call Run.vfpctrl; the wire is described in dll/wire.h.
func ask(address, args string) (string, error) {
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return "", err
	}
	client := make([]byte, 16, 64)
	_, _ = rand.Read(client)
	if _, err := conn.Write(append(client, request("Run.vfpctrl", args, "", "")...)); err != nil {
		return "", err
	}
	var size uint32
	if err := binary.Read(conn, binary.LittleEndian, &size); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, int64(size)))
	if err != nil {
		return "", err
	}
	return decode(answer)
}

func request(texts ...string) []byte {
	b := make([]byte, 4+8+16) // size, handle, GUID
	for _, t := range texts {
		units := utf16.Encode([]rune(t))
		b = binary.LittleEndian.AppendUint32(b, uint32(2*len(units)))
		for _, u := range units {
			b = binary.LittleEndian.AppendUint16(b, u)
		}
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func decode(answer []byte) (string, error) {
	r := bytes.NewReader(answer)
	var head struct {
		Result uint32
		Handle uint64
	}
	if err := binary.Read(r, binary.LittleEndian, &head); err != nil {
		return "", err
	}
	output, err := text(r)
	if err != nil {
		return "", err
	}
	if reason, err := text(r); err != nil || head.Result != 0 {
		return "", errors.Join(err, fmt.Errorf("0x%08x %s", head.Result, reason))
	}
	return output, nil
}

// text reads a string, which is empty if it is absent.
func text(r *bytes.Reader) (string, error) {
	var size uint32
	if err := binary.Read(r, binary.LittleEndian, &size); err != nil {
		return "", err
	}
	if size == ^uint32(0) {
		return "", nil
	}
	if int64(size) > int64(r.Len()) {
		return "", io.ErrUnexpectedEOF
	}
	units := make([]uint16, size/2)
	err := binary.Read(r, binary.LittleEndian, units)
	return string(utf16.Decode(units)), err
}
