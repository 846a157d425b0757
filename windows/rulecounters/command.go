// SPDX-License-Identifier: Apache-2.0

package rulecounters

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"time"
)

// Runner runs vfpctrl with arguments and returns what it prints.
type Runner func(ctx context.Context, args ...string) ([]byte, error)

// commandTime bounds one run.
const commandTime = 20 * time.Second

// ErrMissing is the error of a host without vfpctrl.
var ErrMissing = errors.New("this host has no vfpctrl.exe")

// Command returns a Runner of the program with this absolute path.
func Command(path string) Runner {
	return func(ctx context.Context, args ...string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, commandTime)
		defer cancel()
		var out bounded
		c := exec.CommandContext(ctx, path, args...)
		c.Stdout, c.WaitDelay = &out, 5*time.Second
		err := c.Run()
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound):
			return nil, ErrMissing
		case ctx.Err() != nil:
			return nil, fmt.Errorf("vfpctrl.exe did not end within %s: %w", commandTime, ctx.Err())
		case err != nil:
			return nil, fmt.Errorf("run vfpctrl.exe: %w", err)
		}
		return out.buffer.Bytes(), nil
	}
}

// bounded is output of at most MaxOutput bytes. More ends the program.
type bounded struct{ buffer bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.buffer.Len()+len(p) > MaxOutput {
		return 0, fmt.Errorf("it has printed more than %d bytes", MaxOutput)
	}
	return b.buffer.Write(p)
}
