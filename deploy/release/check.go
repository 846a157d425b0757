// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// compareBuilds makes the release of a commit in two new clones under different names, each
// with an empty build cache, and compares every byte. It leaves the first in the directory.
func compareBuilds(ctx context.Context, s source, o options, w, progress io.Writer) error {
	work, err := os.MkdirTemp("", "isthmus-compare")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	dirs := []string{o.out, filepath.Join(work, "second")}
	for i, name := range []string{"a", "another/longer/path"} {
		clone := filepath.Join(work, name)
		if _, err := git(ctx, s.dir, "clone", "--quiet", "--no-hardlinks", ".", clone); err != nil {
			return err
		}
		if _, err := git(ctx, clone, "checkout", "--quiet", "--detach", s.commit); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", "run", ".", "-version", o.version, "-o", dirs[i], "-key", o.key)
		cmd.Dir = filepath.Join(clone, "deploy", "release")
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GOCACHE="+filepath.Join(work, fmt.Sprint("cache", i)), []string{"TZ=UTC", "TZ=Asia/Kathmandu"}[i])
		if o.key == "" {
			cmd.Env = append(cmd.Env, "SIGNING_KEY=")
		}
		fmt.Fprintf(progress, "release: build %d of 2 has an empty cache\n", i+1)
		cmd.Stdout, cmd.Stderr = w, progress
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("run %s: %w", strings.Join(cmd.Args, " "), err)
		}
	}
	n, err := sameFiles(dirs[0], dirs[1])
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "release-check: builds=2 files=%d differ=0\n", n)
	return nil
}

// sameFiles compares two directories and returns the number of files.
func sameFiles(a, b string) (int, error) {
	first, err := contents(a)
	if err != nil {
		return 0, err
	}
	second, err := contents(b)
	if err != nil {
		return 0, err
	}
	var differ []error
	for name, content := range first {
		other, ok := second[name]
		if !ok {
			differ = append(differ, fmt.Errorf("%s: only the first build has it", name))
		} else if !bytes.Equal(content, other) {
			differ = append(differ, fmt.Errorf("%s: %d and %d bytes, which differ", name, len(content), len(other)))
		}
	}
	for name := range second {
		if _, ok := first[name]; !ok {
			differ = append(differ, fmt.Errorf("%s: only the second build has it", name))
		}
	}
	if len(first) == 0 {
		differ = append(differ, errors.New("no files"))
	}
	return len(first), errors.Join(differ...)
}

func contents(dir string) (map[string][]byte, error) {
	files := make(map[string][]byte)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		files[name], err = os.ReadFile(path)
		return err
	})
	return files, err
}
