package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// all makes the artefacts twice, compares the two, and signs the checksums if key is not empty.
func all(ctx context.Context, o options, key string) error {
	if err := askGit(ctx, &o); err != nil {
		return err
	}
	began := time.Now()
	if err := build(ctx, o); err != nil {
		return err
	}
	fmt.Printf("built in %s; building again from a copy of the tree with an empty cache\n", since(began))
	if err := compareWithCopy(ctx, o); err != nil {
		return err
	}
	fmt.Printf("both builds are equal, after %s\n", since(began))
	if key == "" {
		fmt.Println("not signed: no SIGN_KEY")
		return nil
	}
	return signSums(o.out, key)
}

func since(began time.Time) time.Duration { return time.Since(began).Round(time.Second) }

// askGit fills in the commit and its time. A release of files that no commit has could not be reproduced.
func askGit(ctx context.Context, o *options) error {
	changed, err := output(ctx, o.root, nil, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("build a release of %s: these changes have no commit; commit them first:\n%s", o.root, changed)
	}
	if o.commit, err = output(ctx, o.root, nil, "git", "rev-parse", "HEAD"); err != nil {
		return err
	}
	seconds, err := output(ctx, o.root, nil, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	o.epoch, err = strconv.ParseInt(seconds, 10, 64)
	return err
}

// compareWithCopy builds again in a copy of the commit, with another path and an empty build cache, and compares the
// checksums.
func compareWithCopy(ctx context.Context, o options) error {
	temp, err := os.MkdirTemp("", "nodelet-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	again := o
	again.root, again.out = filepath.Join(temp, "source"), filepath.Join(temp, "dist")
	if _, err := output(ctx, ".", nil, "git", "clone", "-q", "--no-checkout", o.root, again.root); err != nil {
		return err
	}
	if _, err := output(ctx, again.root, nil, "git", "checkout", "-q", o.commit); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "run", ".", "build", "-root", again.root, "-out", again.out,
		"-version", o.version, "-commit", o.commit, "-epoch", strconv.FormatInt(o.epoch, 10), "-builder", o.builder,
		"-arch", strings.Join(o.arches, ","), "-tags", o.tags, "-gcflags", o.gcflags,
		"-ldflags", o.ldflags)
	cmd.Dir = filepath.Join(again.root, "packaging", "release")
	cmd.Env = append(os.Environ(), "GOCACHE="+filepath.Join(temp, "cache"), "PWD="+cmd.Dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build again: %w", err)
	}
	return compareSums(filepath.Join(o.out, sumsName), filepath.Join(again.out, sumsName))
}

// compareSums reports the artefacts that differ between two files of checksums.
func compareSums(first, second string) error {
	a, err := readLines(first)
	if err != nil {
		return err
	}
	b, err := readLines(second)
	if err != nil {
		return err
	}
	var differ []string
	for _, line := range a {
		if !slices.Contains(b, line) {
			differ = append(differ, line)
		}
	}
	if len(differ) > 0 || len(a) != len(b) {
		return fmt.Errorf("the two builds differ (%d and %d files): %s", len(a), len(b), strings.Join(differ, ", "))
	}
	return nil
}

func readLines(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lines []string
	s := bufio.NewScanner(f)
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	return lines, s.Err()
}

// build makes all artefacts once. It starts with an empty output directory.
func build(ctx context.Context, o options) error {
	work, err := os.MkdirTemp("", "nodelet-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := emptyDir(o.out); err != nil {
		return err
	}
	native := filepath.Join(work, "nodelet")
	if err := compile(ctx, o, runtime.GOARCH, native); err != nil {
		return err
	}
	p, err := readParts(ctx, o, native)
	if err != nil {
		return err
	}
	img := image{name: "ghcr.io/nodelet/nodelet:" + o.version, created: o.when()}
	for _, arch := range o.arches {
		began := time.Now()
		platform, err := buildArch(ctx, o, p, arch, filepath.Join(work, arch))
		if err != nil {
			return err
		}
		img.platforms = append(img.platforms, platform)
		fmt.Printf("%s: built and packed in %s\n", arch, since(began))
	}
	if err := writeArtefact(o.out, "nodelet-"+o.version+"-image.tar", img.write); err != nil {
		return err
	}
	if err := writeProvenance(o); err != nil {
		return err
	}
	return writeSums(o.out)
}

// buildArch makes the artefacts of one architecture, and returns its part of the container image.
func buildArch(ctx context.Context, o options, p parts, arch, binary string) (platform, error) {
	if err := compile(ctx, o, arch, binary); err != nil {
		return platform{}, err
	}
	body, err := os.ReadFile(binary)
	if err != nil {
		return platform{}, err
	}
	if p.licenses, err = licensesOf(ctx, o, arch); err != nil {
		return platform{}, err
	}
	bill, err := newSBOM(o, arch, binary, body, p.licenses)
	if err != nil {
		return platform{}, err
	}
	base := "nodelet-" + o.version + "-linux-" + arch
	named := fileVersion(o.version)
	for name, write := range map[string]func(io.Writer) error{
		base + ".tar.gz":    archive{dir: base, files: archiveFiles(p, body), when: o.when()}.write,
		base + ".spdx.json": bill.write,
		fmt.Sprintf("nodelet_%s_%s.deb", named, debArch(arch)):         nodeletDeb(o, p, arch, body).write,
		fmt.Sprintf("nodelet-kubelet_%s_%s.deb", named, debArch(arch)): kubeletDeb(o, p, arch).write,
		fmt.Sprintf("nodelet-%s-1.%s.rpm", named, rpmArch(arch)):       nodeletRPM(o, p, arch, body).write,
	} {
		if err := writeArtefact(o.out, name, write); err != nil {
			return platform{}, err
		}
	}
	return platform{arch: arch, files: imageFiles(p, body)}, nil
}

// compile builds the program for an architecture. The flags leave no trace of the machine in the program: no paths, no
// C compiler, no state of a version control system.
func compile(ctx context.Context, o options, arch, binary string) error {
	_, err := output(ctx, o.root, goEnv(arch), "go", "build", "-trimpath", "-buildvcs=false", "-tags", o.tags,
		"-gcflags", o.gcflags, "-ldflags", o.ldflags, "-o", binary, "./cmd/nodelet")
	return err
}

// goEnv sets what would otherwise come from the user's environment and change the program.
func goEnv(arch string) []string {
	return []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=",
		"GOAMD64=v1", "GOARM64=v8.0", "GORISCV64=rva20u64"}
}

// emptyDir makes a directory without files. It removes only the files of an earlier release, also one that was killed,
// so that a wrong name cannot empty another directory.
func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		own := func(prefix string) bool { return strings.HasPrefix(e.Name(), prefix) }
		if !own("nodelet") && !own(sumsName) && !own(unfinished) {
			return fmt.Errorf("empty %s: %s is not a file of a release; choose another directory with OUT=", dir, e.Name())
		}
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// unfinished is how the names of files begin that are still being written.
const unfinished = ".release-"

// writeArtefact writes a file of the output directory. The file appears when it is complete.
func writeArtefact(dir, name string, write func(io.Writer) error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, unfinished)
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	err = errors.Join(write(temp), temp.Chmod(0o644), temp.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.Rename(temp.Name(), filepath.Join(dir, name))
}

// output runs a program and returns what it prints, without the last newline.
func output(ctx context.Context, dir string, env []string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s %s: %w: %s", program, args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
