// Package service is the command group `nodelet systemd`: it makes nodelet the agent of the node under systemd, undoes
// that, and shows which agent manages the node.
//
// It owns the command line; package systemd owns the units and changes them. It never touches pods. What a crash leaves
// behind is described in package systemd.
package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/kube/certs"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/systemd"
)

// Command is `nodelet systemd`.
func Command() *command.Command {
	return &command.Command{
		Name:  "systemd",
		Short: "install or remove nodelet as the agent of this node under systemd, show which agent manages the node",
		Sub:   []*command.Command{install(), uninstall(), status(), unit()},
	}
}

func install() *command.Command {
	return &command.Command{
		Name:       "install",
		Args:       "[FLAG]...",
		AgentFlags: true,
		Short:      "make nodelet the agent of this node",
		Long: `If the machine has kubelet.service, nodelet replaces the kubelet in it and keeps its flags and files; pods keep
running. Otherwise, or with --own-unit, it creates nodelet.service with the FLAGs as its arguments.

It first checks the program, the container runtime, and the settings of the kubelet: settings on which pods rely and
that have no effect in nodelet must be accepted by name. It refuses flags with which nodelet would remove running pods,
such as those without --kubeconfig in a cluster. If nodelet is not ready in time, the old agent comes back.`,
		Setup: func(flags *pflag.FlagSet) command.Run {
			o := installOptions{
				separate: flags.Bool("own-unit", false, "create nodelet.service, even if the machine has kubelet.service"),
				dryRun:   flags.Bool("dry-run", false, "print the steps and change nothing"),
				wait:     flags.Duration("wait", readyLimit, "how long nodelet may take to be ready; 0 does not wait"),
				accept:   flags.StringSlice("accept-missing", nil, "settings without effect to accept, such as qosReserved"),
			}
			return o.run
		},
	}
}

// readyLimit is the default of --wait.
const readyLimit = 2 * time.Minute

type installOptions struct {
	separate, dryRun *bool
	wait             *time.Duration
	accept           *[]string
}

func (o installOptions) run(c command.Call) error {
	if err := checkFlags(c.Args); err != nil {
		return err
	}
	if err := needRoot("install", *o.dryRun); err != nil {
		return err
	}
	i := changer(c, *o.dryRun, *o.wait)
	if len(*o.accept) > 0 {
		i.Flags = []string{"--accept-missing=" + strings.Join(*o.accept, ",")}
	}
	cfg, err := o.configuration(c, i)
	if err != nil {
		return err
	}
	if cfg != nil {
		before, unit, err := running(c.Context, i)
		if err != nil {
			return err
		}
		if before == nil {
			before = cfg
		}
		if err := sameNode(before, cfg, unit); err != nil {
			return err
		}
		if err := o.refuse(c, before, cfg); err != nil {
			return err
		}
		client := podapi.NewClient(cfg.Paths.Root)
		i.Ready = func(ctx context.Context) string { return waitsFor(ctx, client) }
	}
	return i.Install(c.Context, *o.separate, c.Args)
}

// configuration returns the configuration with which nodelet will run, or nil if it is not known.
func (o installOptions) configuration(c command.Call, i *systemd.Installer) (*config.Config, error) {
	args, dir, err := i.Arguments(c.Context, *o.separate, c.Args)
	if err != nil {
		return nil, fmt.Errorf("install nodelet: %w", err)
	}
	if args == nil {
		fmt.Fprintln(c.Out, "note: no kubelet runs now, so its settings, container runtime and pods are not checked, and "+
			"install waits only until nodelet runs: if you can, start the kubelet and run this again; before "+
			"kubeadm init or kubeadm join, use --wait 0")
		return nil, nil
	}
	cfg, err := config.LoadIn(dir, args)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of the node: %w", err)
	}
	if dir == "" {
		err = absolutePaths(cfg)
	}
	return cfg, err
}

// running returns the configuration of the agent that runs now, and its unit; nil if none does, or if nodelet cannot
// read its flags, such as those of a kubelet that a script starts.
func running(ctx context.Context, i *systemd.Installer) (before *config.Config, unit string, err error) {
	agent, err := i.Running(ctx)
	if err != nil || agent == nil || agent.Args == nil {
		return nil, "", err
	}
	before, err = config.LoadIn(agent.Dir, agent.Args)
	if err != nil {
		return nil, "", nil
	}
	before.Node.Name = cmp.Or(certified(before), before.Node.Name) // the host name may have changed since it started
	return before, agent.Unit, nil
}

// certified returns the node of the client certificate with which an agent would start, if it would be another node by
// its host name.
func certified(c *config.Config) (node string) {
	leaf, _ := certs.Present(certs.ClientSettings(c), time.Now()) // the check reports an error
	return certs.OtherNode(c, leaf)
}

// sameNode returns an error if nodelet would run a node of another name, in another root directory or with another
// container runtime than the agent of a unit: it would have other pods, or not the volumes of these, or not see them.
func sameNode(before, c *config.Config, unit string) error {
	had, has := before.Kubelet.ContainerRuntimeEndpoint, c.Kubelet.ContainerRuntimeEndpoint
	var flag string
	switch {
	case before.Node.Name != c.Node.Name:
		flag = "--hostname-override=" + before.Node.Name
	case !sameFile(before.Paths.Root, c.Paths.Root):
		flag = "--root-dir=" + before.Paths.Root
	case !sameFile(strings.TrimPrefix(had, "unix:"), strings.TrimPrefix(has, "unix:")):
		flag = "--container-runtime-endpoint=" + had
	default:
		return nil
	}
	return fmt.Errorf("nodelet would not manage the pods of %s as they are: add %s, or end its pods, such as with "+
		"kubectl drain, and then stop %[1]s", unit, flag)
}

// sameFile reports whether two paths of services lead to the same file, whether it exists or not. Only those of
// nodelet.service may be relative here, and that runs in /.
func sameFile(a, b string) bool {
	a, b = filepath.Join("/", a), filepath.Join("/", b)
	one, err := os.Stat(a)
	other, otherErr := os.Stat(b)
	return a == b || err == nil && otherErr == nil && os.SameFile(one, other)
}

// refuse returns an error if pods would lose what the settings promise them, if the node would not have its name, if
// the container runtime does not answer, if nodelet would remove pods that run under the configuration before, or if it
// has no source of pods.
func (o installOptions) refuse(c command.Call, before, cfg *config.Config) error {
	if err := cfg.Missing(*o.accept...); err != nil {
		return err
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintf(c.Out, "note: %s\n", w)
	}
	if node := certified(cfg); node != "" {
		return fmt.Errorf("the client certificate is that of node %s: %s", node, certs.JoinAgain(node))
	}
	endpoint := cfg.Kubelet.ContainerRuntimeEndpoint
	dial := cri.Options{Log: slog.New(slog.DiscardHandler), Timeout: 10 * time.Second}
	client, err := cri.Dial(endpoint, dial)
	if err != nil {
		return err
	}
	defer client.Close()
	v, err := client.Version(c.Context)
	if err != nil {
		return fmt.Errorf("no container runtime answers at %s, so nodelet could not run pods: %s: %s",
			endpoint, cri.Message(err), cri.Remedy(err))
	}
	fmt.Fprintf(c.Out, "container runtime: %s %s\n", v.RuntimeName, v.RuntimeVersion)
	if err := keepsPods(c.Context, client, before, cfg); err != nil {
		return err
	}
	return cfg.CheckSources()
}

// keepsPods returns an error if a pod runs whose source the configuration does not have, or has in another place than
// the one before: nodelet would remove the pod.
func keepsPods(ctx context.Context, client *cri.Client, before, c *config.Config) error {
	all, err := client.Relist(ctx)
	if err != nil {
		return err
	}
	missing := map[pods.Source]string{}
	if c.Paths.Kubeconfig == "" {
		missing[pods.SourceAPI] = "--kubeconfig=FILE"
	}
	had, has := before.Kubelet.StaticPodPath, c.Kubelet.StaticPodPath
	if has == "" || had != "" && !sameFile(had, has) {
		missing[pods.SourceFile] = "staticPodPath (--manifests=" + cmp.Or(had, "DIR") + ")"
	}
	had, has = before.Kubelet.StaticPodURL, c.Kubelet.StaticPodURL
	if has == "" || had != "" && had != has {
		missing[pods.SourceHTTP] = "staticPodURL (--manifest-url=URL)" // which may have a password
	}
	for _, pod := range all {
		if setting := missing[pods.Source(pod.Source)]; pod.Ready && setting != "" {
			return fmt.Errorf("nodelet would remove the running pod %s/%s: set %s as the agent that started the pod does, "+
				"or end the pod first, such as with kubectl drain or crictl rmp", pod.Namespace, pod.Name, setting)
		}
	}
	return nil
}

// waitsFor returns why the node is not ready; empty if it is.
func waitsFor(ctx context.Context, client *podapi.Client) string {
	node, err := client.Node(ctx)
	if err != nil {
		return err.Error()
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return ""
		} else if condition.Type == corev1.NodeReady {
			return condition.Message
		}
	}
	return "the node has no status yet"
}

// checkFlags refuses flags that nodelet does not know, because the service would never start with them.
func checkFlags(args []string) error {
	_, err := config.Load(args)
	if wrong, ok := errors.AsType[*config.UsageError](err); ok {
		return command.Usagef("systemd install: %w", wrong)
	}
	if _, ok := errors.AsType[*config.TextRequest](err); ok {
		return command.Usagef("systemd install: %s is not for a service", strings.Join(args, " "))
	}
	return nil // the files are read again when it is known whether nodelet replaces a kubelet
}

// absolutePaths refuses relative paths in flags of nodelet.service, because it runs in another directory.
func absolutePaths(c *config.Config) error {
	for _, s := range config.Settings() {
		var paths []string
		switch {
		case s.Flag == "cni-bin-dir":
			paths = c.Network.BinDirs
		case (s.Value == "FILE" || s.Value == "DIR") && c.Flags[s.Flag] != "":
			paths = []string{c.Flags[s.Flag]}
		}
		absolute := make([]string, len(paths))
		for i, path := range paths {
			var err error
			if absolute[i], err = filepath.Abs(path); err != nil {
				return err
			}
		}
		relative := slices.IndexFunc(paths, func(path string) bool { return !filepath.IsAbs(path) })
		if relative >= 0 {
			return command.Usagef("systemd install: --%s: %q is not an absolute path, and the service runs in /: "+
				"write --%[1]s=%[3]s", s.Flag, paths[relative], strings.Join(absolute, ","))
		}
	}
	return nil
}

func uninstall() *command.Command {
	return &command.Command{
		Name:  "uninstall",
		Short: "undo install: restore the kubelet, or remove nodelet.service; pods keep running",
		Setup: func(flags *pflag.FlagSet) command.Run {
			dryRun := flags.Bool("dry-run", false, "print the steps and change nothing")
			wait := flags.Duration("wait", readyLimit, "how long the kubelet may take to start; 0 does not wait")
			return func(c command.Call) error {
				if err := needRoot("uninstall", *dryRun); err != nil {
					return err
				}
				return changer(c, *dryRun, *wait).Uninstall(c.Context)
			}
		},
	}
}

// kubeletWaits returns why the kubelet does not work; empty if it does, or has no health checks. Its unit is active as
// soon as it has a process. If the flags cannot be read, as in that process before it has become the kubelet, the
// kubelet is asked at its default port.
func kubeletWaits(ctx context.Context, i *systemd.Installer) string {
	agent, err := i.Running(ctx, "kubelet.service")
	switch {
	case err != nil:
		return err.Error()
	case agent == nil:
		return "the kubelet does not run"
	}
	cfg, err := config.LoadIn(agent.Dir, agent.Args)
	if err != nil {
		cfg, err = config.LoadHealthz(agent.Dir, agent.Args)
	}
	switch {
	case err != nil:
		return err.Error()
	case cfg.Healthz().Port() == 0:
		return ""
	}
	return ask(ctx, "http://"+cfg.Healthz().String()+"/healthz")
}

// ask returns why the health checks at url fail; empty if they do not.
func ask(ctx context.Context, url string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second} // no proxy
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return url + ": " + response.Status
	}
	return ""
}

func status() *command.Command {
	return &command.Command{
		Name:  "status",
		Short: "show which agent manages the node",
		Setup: func(*pflag.FlagSet) command.Run {
			return func(c command.Call) error { return installer(c).Status(c.Context) }
		},
	}
}

func unit() *command.Command {
	return &command.Command{
		Name:    "unit",
		Args:    "[PROGRAM]",
		MaxArgs: 1,
		Short:   "print nodelet.service for the program",
		Setup: func(flags *pflag.FlagSet) command.Run {
			kubelet := flags.Bool("kubelet", false, "print a kubelet.service whose program is nodelet")
			return func(c command.Call) error {
				program := c.Program
				if len(c.Args) > 0 {
					program = c.Args[0]
				}
				text := systemd.Unit
				if *kubelet {
					text = systemd.KubeletUnit
				}
				_, err := io.WriteString(c.Out, text(program))
				return err
			}
		},
	}
}

func needRoot(verb string, dryRun bool) error {
	if os.Geteuid() != 0 && !dryRun {
		return fmt.Errorf("nodelet systemd %s changes units of the system: run it as root, or with --dry-run", verb)
	}
	return nil
}

// changer returns an Installer whose work goes on when the connection of the operator's terminal is lost, so that the
// kubelet comes back also then.
func changer(c command.Call, dryRun bool, wait time.Duration) *systemd.Installer {
	signal.Ignore(unix.SIGHUP, unix.SIGPIPE)
	i := installer(c)
	i.DryRun, i.Wait = dryRun, wait
	i.KubeletReady = func(ctx context.Context) string { return kubeletWaits(ctx, i) }
	return i
}

func installer(c command.Call) *systemd.Installer {
	return &systemd.Installer{Program: c.Program, Out: c.Out, Root: c.Root}
}
