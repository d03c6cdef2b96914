package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nodelet/nodelet/test/testbed"
)

// run has the suite's runner run the specs, and reads its report. Failed specs are no error.
func run(ctx context.Context, o options, suite string, tb *testbed.Testbed) (*report, error) {
	args := o.runnerArgs()
	if o.listOnly {
		args = append(args, "--procs=1", "--dry-run", "-v") // of the first flag the last counts
	}
	args = append(args, filepath.Join(suite, "e2e.test"), "--",
		"--provider=skeleton", "--num-nodes="+fmt.Sprint(o.testbed.Nodes),
		"--dns-domain=cluster.local", "--disable-log-dump", "--e2e-output-dir="+o.reports)
	cmd := exec.CommandContext(ctx, filepath.Join(suite, "ginkgo"), args...)
	cmd.Env = os.Environ()
	if tb != nil {
		n := tb.Nodes[0]
		cmd.Env = append(cmd.Env, "KUBECONFIG="+tb.Kubeconfig, "PATH="+tb.Path()) // the last of a name counts
		cmd.Args = append(cmd.Args, "--kubeconfig="+tb.Kubeconfig, "--container-runtime-endpoint="+n.Runtime.Endpoint,
			"--kubelet-root-dir="+n.RootDir)
	}
	return results(ctx, o, cmd)
}

// runnerArgs are the arguments of the suite's runner. With -v it says of each spec how it ended.
func (o options) runnerArgs() []string {
	args := []string{
		"--no-color", "-v", "--poll-progress-after=0", "--procs=" + fmt.Sprint(o.procs), "--timeout=" + o.timeout.String(),
		"--focus=" + o.focus, "--label-filter=" + o.label,
		"--output-dir=" + o.reports, "--junit-report=junit.xml", "--json-report=report.json",
	}
	if o.skip != "" { // beside others, the empty expression would match every spec
		args = append(args, "--skip="+o.skip)
	}
	return append(args, o.more...)
}

// patience is how long an interrupted suite may take to clean up and to write its report.
const patience = 2 * time.Minute

// interruptible makes the end of ctx an interrupt of all processes of the suite, and kills those that outlast their
// patience; stop ends that. The processes get no other signal: the runner passes none on to its specs, and after a
// second one, such as that of the terminal, they write no report.
func interruptible(ctx context.Context, cmd *exec.Cmd) (stop func() bool) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = patience
	return context.AfterFunc(ctx, func() {
		time.Sleep(patience)
		if cmd.Process != nil { // it was started
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the suite's API server may outlast its runner
		}
	})
}

// results runs the suite's runner and reads its report, also when ctx has ended meanwhile.
func results(ctx context.Context, o options, cmd *exec.Cmd) (*report, error) {
	defer interruptible(ctx, cmd)()
	runErr, err := follow(cmd, filepath.Join(o.reports, "suite.log"), o.listOnly)
	if err != nil {
		return nil, err
	}
	report, err := readReport(filepath.Join(o.reports, "report.json"))
	if err != nil {
		return nil, errors.Join(
			fmt.Errorf("the suite left no report, see %s", filepath.Join(o.reports, "suite.log")),
			runErr,
			err,
		)
	}
	return report, nil
}

// follow runs the command with its output in a file, and prints a line for each spec that has ended. ran is what the
// command itself came to.
func follow(cmd *exec.Cmd, logFile string, all bool) (ran, err error) {
	log, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = log
	fmt.Fprintf(os.Stderr, "running the suite; its output is in %s\n", logFile)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := progress{to: os.Stderr, names: all}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		io.WriteString(log, line)
		p.line(line)
		if err != nil {
			break
		}
	}
	return cmd.Wait(), nil
}
