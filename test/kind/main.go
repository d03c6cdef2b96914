// Command kind proves nodelet in clusters that kind makes: as a node that joins one from outside, and as the kubelet of the node image.
//
// It owns a Docker daemon in a network namespace of its own, and what it is built from, which stays in the user's cache. It
// touches nothing else of the machine but Debian packages that it needs; no registry is asked: the node image is built here, of
// Debian, of the files that kind's module carries and of built programs. `make kind` calls it. When it ends, also by a failure or
// a signal, it takes everything down; what a crash leaves the next run takes down first.
package main

import (
	"context"
	"embed"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

//go:embed files
var files embed.FS

func main() {
	if filepath.Base(os.Args[0]) == runtimeName {
		fmt.Fprintln(os.Stderr, actAsRuntime(os.Args[1:]))
		os.Exit(1)
	}
	nodelet := flag.String("nodelet", "bin/nodelet", "the program to prove")
	deb := flag.String("deb", "bin/nodelet.deb", "its Debian package")
	down := flag.Bool("down", false, "only take down what an interrupted run has left")
	only := flag.String("only", "", "a part to prove alone: extra (a node beside kind's), inside (nodelet in the node image)")
	keep := flag.Bool("keep", false, "after a failure leave everything as it is, to look at")
	flag.Parse()
	if err := prove(*nodelet, *deb, *only, *down, *keep); err != nil {
		fmt.Println("FAIL:", err)
		os.Exit(1)
	}
	fmt.Println("PASS")
}

func prove(nodelet, deb, only string, down, keep bool) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	l, err := openLab(ctx)
	if err != nil {
		return err
	}
	if err := l.clean(); err != nil {
		return fmt.Errorf("take down what an earlier run left: %w", err)
	}
	if down {
		return nil
	}
	archive, err := l.nodeImage(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && keep {
			fmt.Println("left as it is; take it down by: go run ./test/kind -down")
			return
		}
		began := time.Now()
		if e := l.clean(); e != nil && err == nil {
			err = fmt.Errorf("take everything down: %w", e)
		}
		said("everything is down, nothing is left", began)
	}()
	if err := l.startDocker(ctx, archive); err != nil {
		return err
	}
	if only != "inside" {
		if err := l.extraNode(ctx, deb); err != nil {
			return err
		}
	}
	if only == "extra" {
		return nil
	}
	return l.nodeletInside(ctx, nodelet)
}

// step does one thing and says so.
func step(what string, do func() error) error {
	began := time.Now()
	fmt.Printf("--- %s\n", what)
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	said(what, began)
	return nil
}

func said(what string, began time.Time) {
	fmt.Printf("ok  %s (%.1fs)\n", what, time.Since(began).Seconds())
}
