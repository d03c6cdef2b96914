// Command release makes the artefacts of a release from the source tree: for each architecture a program, an archive,
// Debian and RPM packages and an SBOM; for all together a container image, a provenance statement and checksums.
//
// "release all" makes them twice, the second time from a copy of the tree with an empty build cache, and compares.
// "release deb" packs an already built program for the tests that install it. "make release" and "make deb" call it.
// The output directory holds only finished files: each is written under another name first. Temporary directories of
// an interrupted run are below $TMPDIR, with the prefix nodelet-release-.
//
// It is a module of its own, so that its libraries are no dependency of nodelet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"time"
)

// options say what to build. They are the same for both builds of a release.
type options struct {
	root    string   // the source tree
	out     string   // the directory of the artefacts
	version string   // semantic version without "v"
	commit  string   // Git commit of the source tree, for the provenance
	epoch   int64    // time stamp of all files, in seconds since 1970 (SOURCE_DATE_EPOCH)
	arches  []string // GOARCH values
	tags    string   // build tags
	gcflags string   // flags of the compiler
	ldflags string   // flags of the linker
	builder string   // URI of who builds, for the provenance
}

func (o options) when() time.Time { return time.Unix(o.epoch, 0).UTC() }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("no command: want all, build or deb")
	}
	var o options
	flags := flag.NewFlagSet("release "+args[0], flag.ContinueOnError)
	flags.StringVar(&o.root, "root", ".", "source tree")
	flags.StringVar(&o.out, "out", "dist", "directory for the artefacts")
	flags.StringVar(&o.version, "version", "", "version without v, for example 1.2.3")
	flags.StringVar(&o.commit, "commit", "", "Git commit; all asks Git")
	flags.Int64Var(&o.epoch, "epoch", 0, "time stamp of all files in seconds since 1970; all takes the commit's")
	flags.StringVar(&o.tags, "tags", "", "build tags")
	flags.StringVar(&o.gcflags, "gcflags", "", "flags of the compiler")
	flags.StringVar(&o.ldflags, "ldflags", "", "flags of the linker")
	flags.StringVar(&o.builder, "builder", "https://github.com/nodelet/nodelet/tree/main/packaging/release",
		"URI of the builder in the provenance")
	arches := flags.String("arch", "amd64,arm64,riscv64,s390x", "architectures, as GOARCH")
	program := flags.String("program", "", "deb: a built program for this machine")
	key := flags.String("sign-key", "", "all: PEM file of a private key that signs SHA256SUMS")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	o.arches = strings.Split(*arches, ",")
	if o.version == "" {
		return errors.New("no -version")
	}
	switch args[0] {
	case "all":
		return all(ctx, o, *key)
	case "build":
		return build(ctx, o)
	case "deb":
		return debs(ctx, o, *program)
	}
	return fmt.Errorf("unknown command %q: want all, build or deb", args[0])
}

// debs packs the program for this machine as nodelet.deb and nodelet-kubelet.deb.
func debs(ctx context.Context, o options, program string) error {
	p, err := readParts(ctx, o, program)
	if err != nil {
		return err
	}
	body, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	p.licenses, err = licensesOf(ctx, o, runtime.GOARCH)
	if err != nil {
		return err
	}
	for name, pkg := range map[string]debPackage{
		"nodelet.deb":         nodeletDeb(o, p, runtime.GOARCH, body),
		"nodelet-kubelet.deb": kubeletDeb(o, p, runtime.GOARCH),
	} {
		if err := writeArtefact(o.out, name, pkg.write); err != nil {
			return err
		}
	}
	return nil
}
