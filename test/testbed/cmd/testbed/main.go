// Command testbed starts, shows and removes testbeds, small Kubernetes clusters on this machine. See the package
// github.com/nodelet/nodelet/test/testbed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/nodelet/nodelet/test/testbed"
)

const usage = `usage: testbed COMMAND [flags]

  build       build all programs and images into the cache: minutes, the first time
  mirror DIR  copy what "up --lean" needs to a directory, for NODELET_BINARIES_URL and NODELET_BINARIES_SUM
  up          build what is missing and start a testbed
  run CMD …   start a testbed, run a command in its environment, and stop it again; the flags are those of up
  standalone  start a node without a control plane, and a pod that answers HTTP; --debian takes Debian's containerd
  status      show processes, addresses and nodes
  kubeconfig  print the path of the administrator's kubeconfig
  env         print the environment for the testbed; use: eval "$(testbed env)"
  logs [ROLE] print the paths of all logs, or the content of one; -f follows it
  down        stop the testbed and remove all that it has created

All commands have the flag --name; "testbed COMMAND -h" shows the other flags.
`

const runtimeUsage = "the nodes' container `runtime`: containerd or crio; +crun after it selects another OCI runtime"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "testbed:", err)
		}
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return flag.ErrHelp
	}
	flags := flag.NewFlagSet("testbed "+args[0], flag.ContinueOnError)
	name := flags.String("name", testbed.DefaultName, "the testbed's `name`")
	switch args[0] {
	case "up", "run":
		o, err := upOptions(flags, name, args[1:])
		if err != nil {
			return err
		}
		if args[0] == "run" {
			return run(ctx, o, flags.Args())
		}
		return up(ctx, o)
	case "standalone":
		return standalone(ctx, flags, name, args[1:])
	case "build":
		runtime := flags.String("runtime", "containerd", runtimeUsage)
		programs := flags.Bool("programs", false, "get the programs of the distribution that some tests run, too")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return build(ctx, *runtime, *programs)
	case "mirror":
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return mirror(ctx, flags.Arg(0))
	case "down":
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return testbed.Down(ctx, *name, os.Stderr)
	case "status", "kubeconfig", "env", "logs":
		follow := args[0] == "logs" && flags.Bool("f", false, "follow the log") != nil
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		tb, err := testbed.Open(ctx, *name, os.Stderr)
		if err != nil {
			return err
		}
		if follow {
			return logs(ctx, tb, flags)
		}
		return show(ctx, tb, args[0])
	}
	fmt.Fprint(os.Stderr, usage)
	return fmt.Errorf("unknown command %q", args[0])
}

// testPackages maps the programs that some tests run, where they find them, to their Debian packages. None of these
// starts a service. man-db starts a timer on a machine with systemd.
var testPackages = map[string]string{
	"ansible-playbook":   "ansible-core",
	"dbus-daemon":        "dbus-daemon",
	"deb-systemd-helper": "init-system-helpers",
	"fish":               "fish",
	"man":                "man-db",
	"mkfs.btrfs":         "btrfs-progs",
	"openssl":            "openssl",
	"rpm":                "rpm",
	"skopeo":             "skopeo",
	"zsh":                "zsh",
}

// build builds and fetches what the tests as root need, and perhaps what other tests use if it is there. Of that it
// gets as much as it can. Prometheus is only unpacked: its package would start a server.
func build(ctx context.Context, runtime string, programs bool) error {
	err := testbed.Build(ctx, testbed.Options{
		Agent:     testbed.Kubelet,
		Runtime:   runtime,
		KubeProxy: true,
		DNS:       true,
		Progress:  os.Stderr,
	})
	if err != nil {
		return err
	}
	cache, err := testbed.OpenCache(os.Stderr)
	if err != nil {
		return err
	}
	if programs {
		return errors.Join(testbed.InstallDebian(ctx, os.Stderr, testPackages), cache.TestPrograms(ctx))
	}
	_, err = cache.Registry(ctx)
	return err
}

func mirror(ctx context.Context, dir string) error {
	if dir == "" {
		return errors.New("mirror: no directory")
	}
	sum, err := testbed.Mirror(ctx, testbed.Options{Shape: testbed.LeanShape, Progress: os.Stderr}, dir)
	if err == nil {
		fmt.Printf("make run BINARIES_URL=%s BINARIES_SUM=%s\n", dir, sum)
	}
	return err
}

// upOptions parses the flags of up and run.
func upOptions(flags *flag.FlagSet, name *string, args []string) (o testbed.Options, err error) {
	o.Progress = os.Stderr
	agent := flags.String("agent", string(testbed.NoAgent), "`kind` of agent on the nodes: nodelet, kubelet or none")
	flags.StringVar(&o.NodeletBin, "nodelet-bin", "bin/nodelet", "the `file` of the nodelet binary")
	flags.IntVar(&o.Nodes, "nodes", 1, "`number` of nodes")
	flags.StringVar(&o.Runtime, "runtime", "containerd", runtimeUsage)
	flags.StringVar(&o.Network, "network", "runtime", "`what` sets up the pod network: runtime, agent or none")
	flags.BoolVar(&o.DNS, "dns", false, "start a CoreDNS next to the control plane; needs --kube-proxy")
	flags.BoolVar(&o.DualStack, "dual-stack", false, "use IPv6 addresses in addition to IPv4")
	flags.StringVar(&o.ProxyMode, "proxy-mode", "iptables", "kube-proxy's `mode`: iptables or nftables")
	lean := flags.Bool("lean", false, "build no runtime and no image: take those of the cache, a mirror or Debian")
	flags.BoolVar(&o.KubeProxy, "kube-proxy", false, "start a kube-proxy on each node")
	flags.Func("agent-arg", "additional `flag` for the agent; may be repeated", func(s string) error {
		o.AgentArgs = append(o.AgentArgs, s)
		return nil
	})
	flags.Func("apiserver-arg", "additional `flag` for the kube-apiserver; may be repeated", func(s string) error {
		o.APIServerArgs = append(o.APIServerArgs, s)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.Name, o.Agent = *name, testbed.AgentKind(*agent)
	if *lean {
		o.Shape = testbed.LeanShape
	}
	return o, nil
}

func up(ctx context.Context, o testbed.Options) error {
	tb, err := testbed.Up(ctx, o)
	if err != nil {
		return err
	}
	if err := tb.Describe(ctx, os.Stderr); err != nil {
		return err
	}
	return show(ctx, tb, "env")
}

// run starts a testbed for a command. It waits while another process owns a testbed of this name, and removes what a
// run that was killed has left.
func run(ctx context.Context, o testbed.Options, command []string) (err error) {
	if len(command) == 0 {
		return errors.New("run: no command")
	}
	release, err := testbed.Own(ctx, o.Name, o.Progress)
	if err != nil {
		return err
	}
	defer release()
	tb, err := testbed.Up(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		err = errors.Join(err, tb.Down(clean))
	}()
	cmd := exec.CommandContext(ctx, "env", command...) // it looks for the command in the testbed's PATH
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdin = os.Stdin
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(tb.Env(), "CONTAINER_RUNTIME_ENDPOINT="+tb.Nodes[0].Runtime.Endpoint)
	return cmd.Run()
}

func standalone(ctx context.Context, flags *flag.FlagSet, name *string, args []string) error {
	o := testbed.Options{Progress: os.Stderr}
	flags.StringVar(&o.NodeletBin, "nodelet-bin", "bin/nodelet", "the `file` of the nodelet binary")
	debian := flags.Bool("debian", false, "use Debian's containerd and runc, even if others are built")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.Name = *name
	if *debian {
		o.Shape = testbed.DebianShape
	}
	tb, url, err := testbed.Standalone(ctx, o)
	if err != nil {
		return err
	}
	n := tb.Nodes[0]
	fmt.Printf(`
The node runs. The pod answers at %s
    manifests    %s
    root dir     %s
    agent's log  %s

    bin/nodelet status --root-dir=%[3]s
    bin/nodelet pods --root-dir=%[3]s
    bin/nodelet logs --root-dir=%[3]s web-%[5]s
    nsenter --net=/run/netns/%[6]s bin/nodelet exec -it --root-dir=%[3]s web-%[5]s -- sh
`, url, n.ManifestDir, n.RootDir, n.AgentLog(), n.Name, n.Netns)
	return nil
}

func show(ctx context.Context, tb *testbed.Testbed, what string) error {
	switch what {
	case "status":
		return tb.Describe(ctx, os.Stdout)
	case "kubeconfig":
		fmt.Println(tb.Kubeconfig)
	case "env":
		fmt.Printf("export KUBECONFIG=%s\n", quote(tb.Kubeconfig))
		own := strings.TrimSuffix(tb.Path(), ":"+os.Getenv("PATH"))
		fmt.Printf("export PATH=%s:\"$PATH\"\n", quote(own))
		fmt.Printf("export CONTAINER_RUNTIME_ENDPOINT=%s\n", quote(tb.Nodes[0].Runtime.Endpoint))
	}
	return nil
}

// quote quotes a string as one shell word.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func logs(ctx context.Context, tb *testbed.Testbed, flags *flag.FlagSet) error {
	all, err := tb.Logs()
	if err != nil {
		return err
	}
	if flags.NArg() == 0 {
		for _, l := range all {
			fmt.Println(l)
		}
		return nil
	}
	for _, l := range all {
		if strings.HasSuffix(l, "/"+flags.Arg(0)+".log") {
			args := []string{"-n", "+1"}
			if flags.Lookup("f").Value.String() == "true" {
				args = []string{"-n", "50", "-f"}
			}
			cmd := exec.CommandContext(ctx, "tail", append(args, l)...)
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			return cmd.Run()
		}
	}
	return fmt.Errorf("find log %q: use one of\n%s", flags.Arg(0), strings.Join(all, "\n"))
}
