// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
)

// CheckHTTPAddress checks the value of --http-address, which may be empty. A name is none: its address could be any.
func CheckHTTPAddress(text string) error {
	if text == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err == nil && host != "" && host != "localhost" {
		_, err = netip.ParseAddr(host)
	}
	if err != nil {
		return fmt.Errorf("--http-address %q: give ADDRESS:PORT, or :PORT for all addresses, or nothing", text)
	}
	return nil
}

// LogEnd logs that a program has stopped: as an error if that is why.
func LogEnd(log *slog.Logger, message string, err error) {
	if err != nil {
		log.Error(message, "error", err)
		return
	}
	log.Info(message)
}
