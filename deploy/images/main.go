// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const usage = `usage:
  images [-version V] [-name NAME] -bin DIR -o DIR
      images of the commands in DIR/linux-amd64, DIR/linux-arm64 and DIR/windows-amd64, with
      LICENCES.txt there: an archive of each, and isthmus-index.tar with an index of all
  images -root DIR -name NAME[,NAME...] -entrypoint A[,B...] [-cmd A[,B...]] [-arch amd64] -o FILE
      an image of one directory
`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	f := flag.NewFlagSet("images", flag.ContinueOnError)
	f.Usage = func() { fmt.Fprint(f.Output(), usage); f.PrintDefaults() }
	version := f.String("version", "unknown", "version of Isthmus, also the tag of its images")
	names := f.String("name", "ghcr.io/isthmus-net/isthmus", "repository of the images, or with -root all names with tags")
	bin := f.String("bin", "", "directory of the built commands, by system and architecture")
	root := f.String("root", "", "directory that becomes an image")
	entrypoint := f.String("entrypoint", "", "with -root: what is run")
	command := f.String("cmd", "", "with -root: its default arguments")
	arch := f.String("arch", "amd64", "with -root: the architecture")
	out := f.String("o", "", "where to write to")
	if err := f.Parse(args); err != nil {
		return err
	}
	switch {
	case *out == "" || f.NArg() > 0 || (*bin == "") == (*root == ""):
		return errors.New("give -o and either -bin or -root: see images -h")
	case *bin != "":
		return product(*bin, *names, *version, *out)
	}
	files, err := readTree(*root)
	if err != nil {
		return err
	}
	image, err := newImage(files, v1.Platform{OS: "linux", Architecture: *arch},
		v1.Config{Entrypoint: words(*entrypoint), Cmd: words(*command), Env: []string{path}})
	if err != nil {
		return err
	}
	return archive(*out, image, words(*names)...)
}

// path is the PATH of the processes in a container.
const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func words(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// platformImage is the image of one platform, under its own name with tag.
type platformImage struct {
	platform v1.Platform
	name     string
	image    v1.Image
}

// product writes the images of Isthmus into a directory: one archive per platform, which
// a node imports, and isthmus-index.tar, which a registry takes. It prints names and digests.
func product(bin, name, version, out string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("create directory of images: %w", err)
	}
	var images []platformImage
	for _, p := range []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}, {OS: "windows", Architecture: "amd64"}} {
		image, err := productImage(bin, version, p)
		if err != nil {
			return err
		}
		tagged := name + ":" + version
		if p.OS == "windows" {
			tagged += "-windows" // has its own, for nodes that import single archives
		}
		images = append(images, platformImage{p, tagged, image})
		to := filepath.Join(out, "isthmus-"+p.OS+"-"+p.Architecture+".tar")
		if err := archive(to, image, tagged); err != nil {
			return err
		}
		digest, err := image.Digest()
		if err != nil {
			return err
		}
		fmt.Println(filepath.Base(to), tagged, digest)
	}
	const index = "isthmus-index.tar"
	digest, err := archiveIndex(filepath.Join(out, index), name+":"+version, images)
	if err != nil {
		return err
	}
	fmt.Println(index, name+":"+version, digest)
	return nil
}

// productImage returns the image of one platform.
func productImage(bin, version string, p v1.Platform) (v1.Image, error) {
	suffix, entrypoint := "", "/isthmus-agent"
	if p.OS == "windows" {
		// Paths of HostProcess containers are relative to their mount point.
		suffix, entrypoint = ".exe", "isthmus-agent.exe"
	}
	commands := []string{"isthmus-agent", "isthmus-cni", "isthmusctl"}
	if p.OS == "linux" {
		commands = append(commands, "isthmus-controller", "isthmus-relay") // the controller and the relay run on Linux nodes only
	}
	var files []file
	for _, command := range commands {
		content, err := os.ReadFile(filepath.Join(bin, p.OS+"-"+p.Architecture, command+suffix))
		if err != nil {
			return nil, fmt.Errorf("read command: %w: build it first", err)
		}
		files = append(files, file{name: command + suffix, mode: 0o755, content: content})
	}
	// The licences of most modules ask for their text beside the binaries.
	licences, err := os.ReadFile(filepath.Join(bin, p.OS+"-"+p.Architecture, "LICENCES.txt"))
	if err != nil {
		return nil, fmt.Errorf("read licences: %w: write them with 'release -licences-only %s' in deploy/release", err, bin)
	}
	files = append(files, file{name: "LICENCES.txt", mode: 0o644, content: licences})
	return newImage(files, p, v1.Config{Entrypoint: []string{entrypoint}, Labels: map[string]string{
		"org.opencontainers.image.title":    "Isthmus",
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.source":   "https://github.com/isthmus-net/isthmus",
		"org.opencontainers.image.licenses": "Apache-2.0",
	}})
}
