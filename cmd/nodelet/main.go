// Command nodelet is a node agent for Kubernetes: a drop-in replacement for the kubelet.
//
// It owns the process: flags, the wiring of the packages, signals and exit codes. It never decides about pods. systemd
// or a user starts it; `nodelet explain` asks a running agent what its pods are waiting for. When it stops or crashes,
// pods keep running, and the next start rebuilds its state from the runtime and the disk.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nodelet/nodelet/agent/shutdown"
	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/cmd/nodelet/command/app"
	"github.com/nodelet/nodelet/cmd/nodelet/command/check"
	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/cni/shim"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/kernel"
	"github.com/nodelet/nodelet/host/self"
	"github.com/nodelet/nodelet/internal/periodic"
	"github.com/nodelet/nodelet/kube/server/endpoints"
	"github.com/nodelet/nodelet/systemd"
)

func main() {
	if call := shim.Pending(); call != nil { // the runtime runs this program as its network plugin, and no agent answers
		os.Exit(cni.Plugin(call, os.Stdout))
	}
	args := os.Args[1:]
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		exit(runCommand(command.Call{Args: args}))
	}
	cfg, err := config.Load(args)
	if text, ok := errors.AsType[*config.TextRequest](err); ok {
		if text.Help {
			text.Text = app.Help()
		}
		fmt.Print(text.Text)
		return
	}
	if err != nil {
		exit(err)
	}
	exit(serve(cfg))
}

// runCommand runs a command until it ends, or SIGTERM or SIGINT ends its context. It completes call.
func runCommand(call command.Call) (err error) {
	var stop context.CancelFunc
	call.Context, stop = signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	call.In = os.Stdin
	call.Out, call.Err = os.Stdout, os.Stderr
	if call.Program == "" {
		if call.Program, err = os.Executable(); err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
	}
	return app.Run(call)
}

// exit ends the process: 0 without an error, 2 if the command line is wrong, 1 for any other error, or the code that a
// command returns. `systemctl status` shows the error too.
func exit(err error) {
	if err == nil {
		os.Exit(0)
	}
	if code, ok := errors.AsType[*command.ExitError](err); ok {
		os.Exit(code.Code)
	}
	priority := ""
	if systemd.ToJournal() {
		priority = "<3>" // see sd-daemon(3)
	}
	fmt.Fprintln(os.Stderr, priority+"nodelet:", err)
	_ = systemd.Notify(systemd.Status("failed: " + err.Error()))
	if _, ok := errors.AsType[*config.UsageError](err); ok {
		os.Exit(2)
	}
	os.Exit(1)
}

// serve runs the agent until SIGTERM or SIGINT.
func serve(cfg *config.Config) error {
	stored := systemd.TakeStored(len(shutdown.Groups(cfg)) > 0)
	self.BoundMemory()
	go self.GrowFileTable()
	w := &self.LogWriter{To: os.Stderr}
	out := output{verbosity: &endpoints.Verbosity{}, health: w.Health}
	out.verbosity.SetVerbosity(uint64(cfg.Kubelet.Logging.Verbosity))
	log := slog.New(systemd.LogHandler(w, cfg.Kubelet.Logging.Format == "json", out.verbosity))
	out.log = log
	klog.SetSlogLogger(log.With("from", "client-go"))
	if stored != nil {
		log.Warn("cannot release the delay lock of an earlier run", "err", stored)
	}
	systemd.TakeName(log)
	self.Protect(int(*cfg.Kubelet.OOMScoreAdj), log)
	log.Info("Effective KubeletConfiguration", "config", cfg.Kubelet)
	if err := cmp.Or(cfg.Missing(), cfg.CheckSources()); err != nil {
		return err
	}
	check.LogAtStart(cfg, log)
	periodic.Spread()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	unlock, err := self.LockRoot(ctx, cfg.Paths.Root)
	if err != nil {
		return err
	}
	defer unlock()
	err = kernel.Prepare(kernel.Config{
		Protect:    cfg.Kubelet.ProtectKernelDefaults,
		RefuseSwap: cfg.RefusesSwap(),
		Log:        log,
	})
	if err != nil {
		return err
	}
	p, work, err := assemble(cfg, out)
	if err != nil {
		return err
	}
	log.Info("nodelet started", "version", config.KubeletVersion(), "node", cfg.Node.Name, "root", cfg.Paths.Root)
	err = p.Run(ctx, work)
	log.Info("nodelet stopped; pods keep running")
	return err
}
