// Command vm proves the Debian package in a booted machine: systemd as PID 1, cgroup v2, the systemd cgroup driver, containerd.
//
// It owns one virtual machine (qemu, emulated, without a network), which dies with it, and the parts that it is built from, which
// stay in the user's cache. It never touches the machine it runs on but for that cache and Debian packages that it needs. `make vm`
// calls it. A crash leaves a directory in the temporary directory, and no process.
package main

import (
	"context"
	"embed"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"github.com/nodelet/nodelet/test/testbed"
)

//go:embed guest
var guest embed.FS

func main() {
	runtime.LockOSThread() // qemu dies with the thread that started it
	deb := flag.String("deb", "bin/nodelet.deb", "the package to prove")
	skip := flag.String("skip", "", "a regular expression: steps to leave out")
	flag.Parse()
	if err := prove(*deb, *skip); err != nil {
		fmt.Println("FAIL:", err)
		os.Exit(1)
	}
	fmt.Println("PASS")
}

func prove(deb, skip string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	p, err := getParts(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "nodelet-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	payload, err := makePayload(ctx, dir, deb)
	if err != nil {
		return err
	}
	m, err := newMachine(ctx, p, dir, payload)
	if err != nil {
		return err
	}
	defer m.cut()
	ended := make(chan struct{})
	defer close(ended)
	go func() { // an interrupted run leaves nothing
		select {
		case <-ctx.Done():
			m.cut()
			_ = os.RemoveAll(dir)
			fmt.Println("interrupted")
			os.Exit(1)
		case <-ended:
		}
	}()
	s := &scenario{m: m, began: time.Now(), patience: 5 * time.Second}
	if skip != "" {
		if s.skip, err = regexp.Compile(skip); err != nil {
			return err
		}
	}
	if err := s.all(); err != nil {
		s.show()
		return err
	}
	return nil
}

// makePayload gathers what the machine gets beside Debian and the runtime.
func makePayload(ctx context.Context, dir, deb string) (string, error) {
	payload := filepath.Join(dir, "payload")
	if err := os.Mkdir(payload, 0o755); err != nil {
		return "", err
	}
	cache, err := testbed.OpenCache(os.Stdout)
	if err != nil {
		return "", err
	}
	kubernetes, err := cache.Programs(ctx, "kubernetes", "kubelet")
	if err != nil {
		return "", err
	}
	images, err := cache.Images(ctx)
	if err != nil {
		return "", err
	}
	files := append([]string{deb, filepath.Join(kubernetes, "kubelet")}, images...)
	for _, f := range files {
		if filepath.Base(f) == "agnhost-2.63.0.tar" {
			continue // not needed, and large
		}
		if err := run(ctx, "", "cp", f, payload); err != nil {
			return "", err
		}
	}
	for _, name := range []string{"config.yaml", "pod.yaml", "kubelet.service"} {
		text, err := guest.ReadFile("guest/" + name)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(payload, name), text, 0o644); err != nil {
			return "", err
		}
	}
	return payload, nil
}
