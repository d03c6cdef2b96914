package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// asProgram is the environment variable with which the test binary behaves as nodelet.
const asProgram = "NODELET_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
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
	usage := map[string]string{}
	for _, c := range commands() {
		usage[c.Name] = c.Usage
	}
	for args, want := range map[string]string{
		"--help":                        "Usage: nodelet [flags]",
		"-h":                            "Usage: nodelet [flags]",
		"help":                          "Usage: nodelet [flags]",
		"help --help":                   "Usage: nodelet [flags]",
		"help systemd":                  usage["systemd"],
		"help explain":                  usage["explain"],
		"explain --help":                usage["explain"],
		"explain -h":                    usage["explain"],
		"completion --help":             "usage: nodelet completion",
		"version --help":                "usage: nodelet version",
		"systemd --help":                usage["systemd"],
		"systemd -h":                    usage["systemd"],
		"systemd install --help":        usage["systemd"],
		"systemd install --own-unit -h": usage["systemd"],
		"systemd install --v=4 --help":  usage["systemd"],
		"systemd uninstall --help":      usage["systemd"],
		"systemd uninstall -h":          usage["systemd"],
		"systemd status --help":         usage["systemd"],
		"systemd unit --help":           usage["systemd"],
		"systemd unit --kubelet -h":     usage["systemd"],
	} {
		out, errs, code := program(t, strings.Fields(args)...)
		if code != 0 || !strings.Contains(out, want) || errs != "" {
			t.Errorf("nodelet %s: got exit code %d, output %q, errors %q, want 0 and %q", args, code, out, errs, want)
		}
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
		"--root-dir=/nonexistent explain":    `unexpected argument "explain": a command must come before all flags`,
		"explain --nosuch":                   "unknown flag: --nosuch",
		"version now":                        `unexpected argument "now"`,
		"completion zsh":                     `unexpected argument "zsh"`,
		"completion bash zsh":                `unexpected argument`,
		"systemd":                            "missing command",
		"systemd instal":                     `did you mean "install"?`,
		"systemd install --kubeconfg=x":      "unknown flag --kubeconfg",
		"systemd install --version":          "not for a service",
		"systemd uninstall now":              `unexpected argument "now"`,
		"systemd uninstall --force":          "unknown flag: --force",
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

// TestHelpListsCommands checks that --help and the completion know every command.
func TestHelpListsCommands(t *testing.T) {
	t.Parallel()
	help, _, _ := program(t, "--help")
	script, _, _ := program(t, "completion")
	for _, c := range commands() {
		if !strings.Contains(help, "\n  "+c.Name+" ") || !strings.Contains(script, c.Name) {
			t.Errorf("command %s is missing in --help or in the completion", c.Name)
		}
	}
}
