package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/cmd/nodelet/command/app"
	"github.com/nodelet/nodelet/host/self"
	"github.com/nodelet/nodelet/test/ownmounts"
	"github.com/nodelet/nodelet/test/programs"
	"github.com/nodelet/nodelet/test/waittest"
)

// asProgram is the environment variable with which the test binary behaves as nodelet.
const asProgram = "NODELET_TEST_AS_PROGRAM"

// testRoot is the environment variable with the root of the file system that the commands see, testPath the one with
// the path of the program in it.
const (
	testRoot = "NODELET_TEST_ROOT"
	testPath = "NODELET_TEST_PATH"
	// asKubelet makes a process a kubelet that does nothing until its standard input ends.
	asKubelet = "NODELET_TEST_AS_KUBELET"
)

func TestMain(m *testing.M) {
	if os.Getenv(asKubelet) != "" {
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // it ends in any case
		return
	}
	if os.Getenv(asProgram) != "" {
		root := os.Getenv(testRoot)
		if root != "" && len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
			exit(runCommand(command.Call{Args: os.Args[1:], Root: root, Program: os.Getenv(testPath)}))
		}
		main()
		return
	}
	flag.Parse()
	ownmounts.Main(m)
}

// program runs this program as nodelet. It finds no other program, so it can change no unit of this machine.
func program(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(path, args...)
	c.Env = []string{asProgram + "=1", "PATH="}
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := c.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}

// TestHelpNeverActs checks that each command prints its usage when it is asked for help, and does nothing else.
func TestHelpNeverActs(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--help":                        "Usage: nodelet [flags]",
		"-h":                            "Usage: nodelet [flags]",
		"help":                          "Usage: nodelet [flags]",
		"help --help":                   "Usage: nodelet [flags]",
		"help systemd":                  "usage: nodelet systemd COMMAND",
		"help systemd install":          "usage: nodelet systemd install",
		"systemd install --own-unit -h": "usage: nodelet systemd install",
		"systemd install --v=4 --help":  "usage: nodelet systemd install",
		"systemd unit --kubelet -h":     "usage: nodelet systemd unit",
	} {
		checkUsage(t, args, want)
	}
	eachCommand(app.Root(), "", func(path string, _ *command.Command) {
		for _, form := range []string{path + " --help", path + " -h", "help " + path} {
			checkUsage(t, form, "usage: nodelet "+path)
		}
	})
}

func checkUsage(t *testing.T, args, want string) {
	t.Helper()
	out, errs, code := program(t, strings.Fields(args)...)
	if code != 0 || !strings.Contains(out, want) || errs != "" {
		t.Errorf("nodelet %s: got exit code %d, output %q, errors %q, want 0 and %q", args, code, out, errs, want)
	}
}

// eachCommand calls do for all commands below c with their paths.
func eachCommand(c *command.Command, path string, do func(path string, c *command.Command)) {
	for _, sub := range c.Sub {
		below := strings.TrimSpace(path + " " + sub.Name)
		do(below, sub)
		eachCommand(sub, below, do)
	}
}

// TestUsageErrors checks that a wrong command line says what is wrong and ends with exit code 2.
func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"foo":                                `unknown command "foo" (see nodelet --help)`,
		"explan":                             `unknown command "explan"; did you mean "explain"?`,
		"help explan":                        `did you mean "explain"?`,
		"--kubeconfg=x":                      "unknown flag --kubeconfg; did you mean --kubeconfig?",
		"--max-pods=many":                    "--max-pods",
		"--root-dir=/nonexistent explain":    `unexpected argument "explain": flags begin with "--", and a command must`,
		"explain --nosuch":                   "explain: unknown flag --nosuch (see nodelet explain --help)",
		"version now":                        `unexpected argument "now"`,
		"exec web --nosuch -- sh":            "exec: unknown flag --nosuch",
		"completion tcsh":                    `no script for "tcsh": want bash, zsh, fish`,
		"explain -o jsn":                     `"jsn" is not one of json, yaml; did you mean "json"?`,
		"explain -o":                         "-output needs a value",
		"completion bash zsh":                `unexpected argument`,
		"systemd":                            "missing command",
		"systemd instal":                     `did you mean "install"?`,
		"systemd install --kubeconfg=x":      "unknown flag --kubeconfg",
		"systemd install --version":          "not for a service",
		"systemd install foo":                `systemd install: unexpected argument "foo": flags begin with "--"`,
		"systemd uninstall now":              `unexpected argument "now"`,
		"systemd uninstall --force":          "systemd uninstall: unknown flag --force",
		"systemd status kubelet":             `unexpected argument "kubelet"`,
		"systemd unit /usr/bin/nodelet more": `unexpected argument "more"`,
	} {
		out, errs, code := program(t, strings.Fields(args)...)
		if code != 2 || !strings.Contains(errs, want) || out != "" || strings.Count(errs, "\n") != 1 {
			t.Errorf("nodelet %s: got exit code %d, output %q, errors %q, want 2 and %q", args, code, out, errs, want)
		}
	}
}

// TestCommandOutput checks the commands that print and end.
func TestCommandOutput(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"version":                       "Kubernetes v1.",
		"--version":                     "Kubernetes v1.",
		"completion":                    "complete -F _nodelet nodelet",
		"completion bash":               "complete -F _nodelet nodelet",
		"systemd unit /usr/bin/nodelet": "ExecStart=/usr/bin/nodelet $NODELET_ARGS\n",
		"systemd unit --kubelet /usr/bin/kubelet": "ExecStart=/usr/bin/kubelet\n",
	} {
		if out, errs, code := program(t, strings.Fields(args)...); code != 0 || !strings.Contains(out, want) || errs != "" {
			t.Errorf("nodelet %s: got exit code %d, output %q, errors %q, want 0 and %q", args, code, out, errs, want)
		}
	}
}

// TestStoredLock checks that an agent that does not delay shutdowns lets go of the delay lock of an earlier run, which
// systemd has stored, before it does anything that can fail.
func TestStoredLock(t *testing.T) {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lock, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	agent := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, path, "--hostname-override=n",
		"--qos-reserved=memory=50%", "--feature-gates=QOSReserved=true")
	agent.Env = []string{asProgram + "=1", "NOTIFY_SOCKET=" + socket, "LISTEN_FDS=1", "LISTEN_FDNAMES=shutdown-lock"}
	agent.ExtraFiles = []*os.File{lock}
	if out, _ := agent.CombinedOutput(); !strings.Contains(string(out), "qosReserved") {
		t.Fatalf("got %s, want an agent that does not start", out)
	}
	buf := make([]byte, 100)
	if err := c.SetReadDeadline(time.Now().Add(waittest.Limit)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(buf); string(buf[:n]) != "FDSTOREREMOVE=1\nFDNAME=shutdown-lock" {
		t.Errorf("got %q, %v, want the removal of the lock", buf[:n], err)
	}
}

// TestSecondAgent checks that a second agent does not start in the same root directory, and waits for one that is
// ending.
func TestSecondAgent(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		unlock, err := self.LockRoot(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("another agent (pid %d) works in %s: stop it first", os.Getpid(), root)
		if _, err := self.LockRoot(t.Context(), root); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		time.AfterFunc(100*time.Millisecond, unlock) // the kernel ends the first one
		if unlock, err = self.LockRoot(t.Context(), root); err != nil {
			t.Fatal(err)
		}
		unlock()
	})
}

// TestKubeletInRoot checks that no agent starts in the root directory of a running kubelet, which takes no lock.
func TestKubeletInRoot(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "pod-resources")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir) // the path of a socket must be short
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "kubelet.sock"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	t.Chdir(root)
	want := "a kubelet works in .: stop it first"
	if _, err := self.LockRoot(t.Context(), "."); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want one that names the kubelet", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	unlock, err := self.LockRoot(t.Context(), ".")
	if err != nil {
		t.Fatalf("after the end of the kubelet, whose socket stays: got %v", err)
	}
	unlock()
}

// TestLostConnection checks that an installation goes on when the connection of the operator's terminal is lost: the
// kubelet still comes back if nodelet does not become ready.
func TestLostConnection(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root installs")
	}
	m := newTranscriptMachine(t, []string{"systemd", "kubelet"})
	lost := filepath.Join(m.root, "lost")
	script := strings.Replace(systemctl, "case", `case "$*" in
"daemon-reload") while [ ! -e "$NODELET_TEST_ROOT/lost" ]; do :; done ;;
"restart"*) echo ActiveState=failed >> "$NODELET_TEST_ROOT/kubelet" ;;
esac
case`, 1)
	if err := os.WriteFile(filepath.Join(m.bin, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	c := m.command("exec nodelet systemd install")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	written := bufio.NewScanner(out)
	for written.Scan() && !strings.HasPrefix(written.Text(), "run systemctl daemon-reload") {
	}
	err = errors.Join(out.Close(), c.Process.Signal(unix.SIGHUP), os.WriteFile(lost, nil, 0o644))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); c.ProcessState.ExitCode() != 1 {
		t.Errorf("got %v, want exit code 1", err)
	}
	if left, err := os.ReadDir(filepath.Join(m.root, "etc/systemd/system/kubelet.service.d")); err == nil {
		t.Errorf("got the drop-in %v, want none", left)
	}
}

// TestInstallChecksPackageFlags checks that an installation checks the flags in the file of the package as it checks
// those on its command line.
func TestInstallChecksPackageFlags(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the program must belong to root")
	}
	m := newTranscriptMachine(t, []string{"systemd"})
	dir := filepath.Join(m.root, "etc/default")
	const flags = "NODELET_ARGS=--container-runtime-endpoint=unix:///nonexistent.sock\n"
	err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "nodelet"), []byte(flags), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	const want = "nodelet: no container runtime answers at unix:///nonexistent.sock"
	if got := m.run(t, "nodelet systemd install --own-unit --dry-run"); !strings.HasPrefix(got, want) {
		t.Errorf("got %s, want %q", got, want)
	}
}

// TestAcceptedSettingIsNoProblem checks that `nodelet check --takeover` takes the settings that the operator accepts
// beside the flags of the kubelet that runs.
func TestAcceptedSettingIsNoProblem(t *testing.T) {
	m := newTranscriptMachine(t, []string{"systemd", "kubelet"})
	kubelet := exec.Command(filepath.Join(m.bin, "nodelet"), "--hostname-override=n", "--qos-reserved=memory=50%",
		"--feature-gates=QOSReserved=true")
	kubelet.Env = []string{asKubelet + "=1"}
	in, err := kubelet.StdinPipe()
	if err == nil {
		err = kubelet.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer kubelet.Wait() //nolint:errcheck // it ends when its input does
	defer in.Close()
	state := fmt.Sprintf("LoadState=loaded\nActiveState=active\nMainPID=%d\n", kubelet.Process.Pid)
	if err := os.WriteFile(filepath.Join(m.root, "kubelet"), []byte(state), 0o644); err != nil {
		t.Fatal(err)
	}
	for flags, level := range map[string]string{"": "problem", " --accept-missing=qosReserved": "warning"} {
		want := fmt.Sprintf("\n%-8s setting   --qos-reserved", level)
		if got := m.run(t, "nodelet check --takeover"+flags); !strings.Contains(got, want) {
			t.Errorf("flags %q: got %s, want %q in it", flags, got, want)
		}
	}
}

// TestHelpListsCommands checks that --help knows every command.
func TestHelpListsCommands(t *testing.T) {
	t.Parallel()
	help, _, _ := program(t, "--help")
	for _, c := range app.Root().Sub {
		if !strings.Contains(help, "\n  "+c.Name+" ") {
			t.Errorf("--help: got no command %s, want it", c.Name)
		}
	}
}

// completes asks a shell what its script, the first argument, offers for the last of the other arguments.
var completes = map[string][]string{
	"bash": {"--norc", "-c", `compopt() { :; }; . "$1"; shift
		COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _nodelet "$1"
		for w in "${COMPREPLY[@]}"; do printf '%s\n' "$w"; done`, "bash"},
	"zsh": {"-f", "-c", `compdef() {}; compset() {}
		_files() { if [[ $1 == -/ ]]; then print -rl -- *(/N); else print -rl -- *(N); fi }
		_describe() { local w; for w in "${(@P)2}"; do print -r -- $w; done }
		. $1; shift; words=("$@") CURRENT=$#; _nodelet`, "zsh"},
	"fish": {"-N", "-c", `source $argv[1]; complete -C "$argv[2..-1]"`},
}

// offers returns what a shell offers for the last word of a command line in dir, where the programs are: without
// descriptions, the flag that a value belongs to, and the slash after a directory.
func offers(t *testing.T, shell, script, line, dir string) (words []string) {
	t.Helper()
	args := strings.Split(line, " ")
	if shell == "bash" { // "=" is a word
		args = strings.Fields(strings.ReplaceAll(line, "=", " = "))
		if strings.HasSuffix(line, " ") {
			args = append(args, "")
		}
	}
	ask := exec.Command(shell, slices.Concat(completes[shell], []string{script}, args)...)
	ask.Dir, ask.Env = dir, append(os.Environ(), asProgram+"=1", "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := ask.Output()
	if err != nil {
		t.Errorf("%s: %q: %v", shell, line, err)
	}
	for l := range strings.Lines(string(out)) {
		word, _, _ := strings.Cut(strings.TrimSuffix(l, "\n"), "\t")
		if shell == "zsh" {
			word, _, _ = strings.Cut(word, ":")
		}
		_, value, _ := strings.Cut(word, "=")
		words = append(words, strings.TrimSuffix(cmp.Or(value, word), "/"))
	}
	return words
}

// TestCompletion asks each shell for completions. The program that is on the command line answers.
func TestCompletion(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	dir := t.TempDir()
	if err := errors.Join(err, os.Symlink(self, filepath.Join(dir, "nodelet")),
		os.Symlink(self, filepath.Join(dir, "kubelet")), os.Mkdir(filepath.Join(dir, "conf.d"), 0o755),
		os.WriteFile(filepath.Join(dir, "config.yaml"), nil, 0o644),
		os.WriteFile(filepath.Join(dir, "new config.yaml"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, shell := range command.Shells {
		t.Run(shell, func(t *testing.T) {
			programs.Find(t, shell)
			out, errs, code := program(t, "completion", shell)
			script := filepath.Join(t.TempDir(), "nodelet")
			if err := os.WriteFile(script, []byte(out), 0o600); err != nil || code != 0 {
				t.Fatal(err, errs)
			}
			if text, err := exec.Command(shell, "-n", script).CombinedOutput(); err != nil {
				t.Errorf("%s -n: got %v: %s", shell, err, text)
			}
			for _, c := range []struct{ line, want, not string }{
				{"nodelet ", "systemd", "install"},
				{"nodelet s", "status", "__complete"},
				{"nodelet -", "--kubeconfig", "systemd"},
				{"kubelet ", "explain", "--config"},
				{"nodelet systemd ", "install", "explain"},
				{"nodelet help systemd ", "unit", "help"},
				{"nodelet completion ", "fish", "status"},
				{"nodelet explain -o ", "json", "help"},
				{"nodelet explain -o json -", "--root-dir", "json"},
				{"nodelet explain --output=", "json", "--output"},
				{"nodelet --network ", "agent", "explain"},
				{"nodelet --network=a", "agent", "explain"},
				{"nodelet --node-ip ", "", ""},
				{"nodelet --node-ip config ", "systemd", "view"},
				{"nodelet systemd install -", "--kubeconfig", "--since"},
				{"nodelet --config conf", "config.yaml", "help"},
				{"nodelet --config new", "new config.yaml", "help"},
				{"nodelet --config=conf", "config.yaml", "help"},
				{"nodelet --root-dir conf", "conf.d", "config.yaml"},
				{"nodelet --root-dir=conf", "conf.d", "config.yaml"},
			} {
				got := offers(t, shell, script, c.line, dir)
				lacks := c.want == "" && len(got) > 0 || c.want != "" && !slices.Contains(got, c.want)
				if lacks || slices.Contains(got, c.not) {
					t.Errorf("%s: %q: got %q, want %q and not %q", shell, c.line, got, c.want, c.not)
				}
			}
		})
	}
}
