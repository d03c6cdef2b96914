// Command nodelet is a node agent for Kubernetes: a drop-in replacement for the kubelet.
//
// It owns the process: reading the configuration, wiring the rooms together by hand, signals and exit codes. It decides
// nothing about pods. It is started by systemd or by hand; `nodelet explain` asks a running one what its pods wait for.
// When it ends or crashes, pods keep running and the next start goes on from what it sees.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/cni/shim"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/kube/server/endpoints"
	"github.com/nodelet/nodelet/systemd"
)

func main() {
	if call := shim.Pending(); call != nil { // the runtime runs us as its network plugin, and no agent answers
		os.Exit(cni.Plugin(call, os.Stdout))
	}
	args := os.Args[1:]
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		exit(runCommand(args[0], args[1:], os.Stdout))
	}
	cfg, err := config.Load(args)
	var text *config.TextRequest
	if errors.As(err, &text) {
		fmt.Print(text.Text)
		return
	}
	if err != nil {
		exit(err)
	}
	exit(serve(cfg))
}

// exit ends the process: 0 without an error, 2 if the command line is wrong, 1 for any other error. `systemctl status`
// shows the error too.
func exit(err error) {
	if err == nil {
		os.Exit(0)
	}
	priority := ""
	if systemd.ToJournal(os.Stderr) {
		priority = "<3>" // see sd-daemon(3)
	}
	fmt.Fprintln(os.Stderr, priority+"nodelet:", err)
	_ = systemd.Notify(systemd.Status("failed: " + err.Error()))
	var usage *config.UsageError
	if errors.As(err, &usage) {
		os.Exit(2)
	}
	os.Exit(1)
}

// serve runs the agent until SIGTERM or SIGINT.
func serve(cfg *config.Config) error {
	boundMemory()
	go growFileTable()
	level := &endpoints.Verbosity{}
	log := logger(cfg.Logging, level)
	for _, w := range cfg.Warnings {
		log.Warn("setting without effect", "field", w.Field, "flag", w.Flag, "why", w.Text)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	unlock, err := lockRoot(cfg.Paths.Root)
	if err != nil {
		return err
	}
	defer unlock()
	n, err := assemble(cfg, log, level)
	if err != nil {
		return err
	}
	log.Info("nodelet starts", "version", config.KubeletVersion(), "node", cfg.Node.Name, "root", cfg.Paths.Root)
	err = n.run(ctx)
	log.Info("nodelet ends; pods keep running")
	return err
}

// logger writes to standard error, where journald reads, as much as level says.
func logger(s config.LogSettings, level *endpoints.Verbosity) *slog.Logger {
	level.SetVerbosity(uint64(s.Verbosity))
	o := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(os.Stderr, o)
	switch {
	case s.JSON:
		h = slog.NewJSONHandler(os.Stderr, o)
	case systemd.ToJournal(os.Stderr):
		h = systemd.JournalHandler(os.Stderr, o.Level)
	}
	log := slog.New(h)
	klog.SetSlogLogger(log.With("from", "client-go"))
	return log
}

// cure says what to do about an error of writing below the root directory.
func cure(err error) string {
	switch {
	case errors.Is(err, unix.EROFS):
		return ": mount it writable or choose another --root-dir"
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return ": nodelet needs root"
	case errors.Is(err, unix.ENOSPC):
		return ": make room there"
	}
	return ""
}

// lockRoot makes sure that no other agent works in the same root directory. The kernel gives the lock back when the
// process ends, however it ends.
func lockRoot(root string) (unlock func(), err error) {
	if err := os.MkdirAll(root, 0o750); err != nil {
		return nil, fmt.Errorf("make root directory: %w%s", err, cure(err))
	}
	path := filepath.Join(root, "nodelet.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file of the root directory: %w%s", err, cure(err))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path)
		return nil, fmt.Errorf("another agent (pid %s) works in %s: end it first, or give this one another --root-dir",
			strings.TrimSpace(string(holder)), root)
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return func() { _ = f.Close() }, nil
}
