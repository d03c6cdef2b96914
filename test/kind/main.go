// Command kind tests nodelet in clusters that kind creates: as an additional node, and as the kubelet of the node
// image.
//
// It owns a Docker daemon in a network namespace of its own, and the parts of the node image, which stay in the
// user's cache. It changes nothing else on the machine, except that it installs the Debian packages that it needs. It
// pulls from no registry: it builds the node image from Debian, from the files in kind's module and from built
// programs. `make kind` calls it. It removes everything when it ends, also after a failure or a signal. After a
// crash, the next run removes what is left. A run waits for the end of another one, of whatever clone.
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

	"github.com/nodelet/nodelet/test/testbed"
)

//go:embed files
var files embed.FS

func main() {
	if filepath.Base(os.Args[0]) == runtimeName {
		fmt.Fprintln(os.Stderr, actAsRuntime(os.Args[1:]))
		os.Exit(1)
	}
	o := options{lock: "/run/lock/nodelet-kind"}
	flag.StringVar(&o.nodelet, "nodelet", "bin/nodelet", "the program to test")
	flag.StringVar(&o.deb, "deb", "bin/nodelet.deb", "the Debian package to test")
	flag.BoolVar(&o.down, "down", false, "only remove what an interrupted run has left")
	flag.StringVar(&o.only, "only", "",
		"test only one part: extra (an additional node), inside (nodelet in the node image)")
	flag.BoolVar(&o.keep, "keep", false, "after a failure, leave everything running for inspection")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := test(ctx, o); err != nil {
		fmt.Println("FAIL:", err)
		os.Exit(1)
	}
	fmt.Println("PASS")
}

type options struct {
	// lock is the file that a run locks. All clones share it, as they do the daemon and its directory.
	lock               string
	nodelet, deb, only string
	down, keep         bool
}

func test(ctx context.Context, o options) (err error) {
	unlock, err := testbed.LockFile(ctx, o.lock, func() {
		fmt.Println("another run tests with kind, waiting for its end")
	})
	if err != nil {
		return err
	}
	defer unlock()
	l, err := openLab(ctx)
	if err != nil {
		return err
	}
	if err := l.clean(); err != nil {
		return fmt.Errorf("remove what an earlier run left: %w", err)
	}
	if o.down {
		return nil
	}
	archive, err := l.nodeImage(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && o.keep {
			fmt.Println("left everything running; remove it with: go run ./test/kind -down")
			return
		}
		began := time.Now()
		if e := l.clean(); e != nil && err == nil {
			err = fmt.Errorf("remove everything: %w", e)
		}
		report("removed everything", began)
	}()
	if err := l.startDocker(ctx, archive); err != nil {
		return err
	}
	if o.only != "inside" {
		if err := l.extraNode(ctx, o.deb); err != nil {
			return err
		}
	}
	if o.only == "extra" {
		return nil
	}
	return l.nodeletInside(ctx, o.nodelet)
}

// step runs do and prints the result.
func step(what string, do func() error) error {
	began := time.Now()
	fmt.Printf("--- %s\n", what)
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	report(what, began)
	return nil
}

func report(what string, began time.Time) {
	fmt.Printf("ok  %s (%.1fs)\n", what, time.Since(began).Seconds())
}
