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
	return results(o, cmd)
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

// reportTimeout is how long an interrupted suite may take to clean up and to write its report.
const reportTimeout = 2 * time.Minute

// interruptible makes the end of the command's context an interrupt of all processes of the suite, and kills those that
// outlast reportTimeout; stop ends that. The processes get no other signal: the runner passes none on to its specs,
// and after a second one, such as that of the terminal, they write no report.
func interruptible(cmd *exec.Cmd) (stop func()) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	ended := make(chan struct{})
	cmd.Cancel = func() error {
		group := -cmd.Process.Pid
		go func() {
			select {
			case <-ended: // another process may have this number
			case <-time.After(reportTimeout):
				_ = syscall.Kill(group, syscall.SIGKILL) // the suite's API server may outlast its runner
			}
		}()
		return syscall.Kill(group, syscall.SIGINT)
	}
	cmd.WaitDelay = reportTimeout
	return func() { close(ended) }
}

// results runs the suite's runner and reads its report, also when it was interrupted.
func results(o options, cmd *exec.Cmd) (*report, error) {
	defer interruptible(cmd)()
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
