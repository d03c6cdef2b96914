// Package rollout_test checks nodelet-rollout beside stand-ins for kubectl and ssh, which record what is asked of them;
// `make fleet` runs it, and the Ansible role, on a real cluster.
package rollout_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/programs"
)

// kubectl answers for a node from files in $CLUSTER: NODE.agent, NODE.ready and NODE.pods.
const kubectl = `#!/bin/bash
case "$*" in
  "get pods "*) node=${4#*spec.nodeName=}; cat "$CLUSTER/${node%%,*}.pods" ;;
  *kubeletVersion*) cat "$CLUSTER/$3.agent" ;;
  *) cat "$CLUSTER/$3.ready" ;;
esac
`

// ssh records the command, and does to the files of the node what the command does to a node. NODE.SCRIPT is sourced
// after each command, with the command as $2.
const ssh = `#!/bin/bash
node=$1; shift
echo "$node: $*" >> "$CLUSTER/log"
case "$*" in
  *dpkg* | *rpm*) (export NODE=$node; eval "${*//\/var\/tmp/$CLUSTER}") || exit ;;
  "nodelet systemd install"*)
    echo v1.37.2+nodelet.1 > "$CLUSTER/$node.agent"
    [[ "$*" == *--own-unit* ]] && unit=nodelet.service || unit=90-nodelet.conf
    echo $unit > "$CLUSTER/$node.unit" ;;
  "nodelet systemd uninstall"*) echo v1.37.2 > "$CLUSTER/$node.agent"; rm "$CLUSTER/$node.unit" || exit ;;
  "test -e"*) [ -e "$CLUSTER/$node.unit" ] && [[ "$*" == *"/$(cat "$CLUSTER/$node.unit")"* ]] || exit 1 ;;
esac
[ ! -e "$CLUSTER/$node.after" ] || . "$CLUSTER/$node.after" "$node" "$*"
`

// dpkg stores the package that a node installs. If the node has changed a configuration file, it asks whether to keep
// it, unless a flag says so, and fails without an answer.
const dpkg = `#!/bin/bash
[ ! -e "$CLUSTER/$NODE.changed" ] || [[ "$*" == *--force-confold* ]] || read || exit 1
cp "${@: -1}" "$CLUSTER/$NODE.package"
`

// rpm stores the package that a node installs. It takes one that is not newer than the installed one only if flags say
// so.
const rpm = `#!/bin/bash
[[ "$*" == *--replacepkgs* && "$*" == *--oldpackage* ]] || exit 1
cp "${@: -1}" "$CLUSTER/$NODE.package"
`

// cluster is a directory with what the stand-ins know.
type cluster struct {
	t   *testing.T
	dir string
}

const webPod = "pod u1 default/web\ncontainer u1 default/web app containerd://1\n"

func newCluster(t *testing.T, nodes ...string) *cluster {
	c := &cluster{t: t, dir: t.TempDir()}
	c.write("kubectl", kubectl)
	c.write("ssh", ssh)
	c.write("dpkg", dpkg)
	c.write("rpm", rpm)
	c.write("nodelet.deb", "the package")
	for _, n := range nodes {
		c.write(n+".agent", "v1.37.2\n")
		c.write(n+".ready", "True")
		c.write(n+".pods", webPod)
	}
	return c
}

func (c *cluster) write(name, text string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o755); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) read(name string) string {
	text, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil && !os.IsNotExist(err) {
		c.t.Fatal(err)
	}
	return string(text)
}

// run runs the script and returns what it printed and its exit code.
func (c *cluster) run(args ...string) (string, int) {
	c.t.Helper()
	cmd := exec.Command("./nodelet-rollout", args...)
	cmd.Env = append(os.Environ(), "CLUSTER="+c.dir, "PATH="+c.dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		c.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func (c *cluster) takeOver(args ...string) (string, int) {
	pkg := "--package=" + filepath.Join(c.dir, "nodelet.deb")
	return c.run(append([]string{"take-over", pkg, "--watch=0", "--settle=0", "--ssh=ssh"}, args...)...)
}

// commands returns the commands that nodes got, without those about the package.
func (c *cluster) commands() (all []string) {
	for line := range strings.Lines(c.read("log")) {
		if !strings.Contains(line, "dpkg") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

func TestTakeOver(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	out, code := c.takeOver("--batches=1,2", "--accept-missing=qosReserved", "a", "b", "c")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	var want []string
	for _, n := range []string{"a", "b", "c"} {
		want = append(want, n+": nodelet check --takeover --accept-missing=qosReserved",
			n+": nodelet systemd install --wait=2m --accept-missing=qosReserved")
	}
	if got := strings.Join(c.commands(), "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got commands\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	for _, batch := range []string{"batch: a\n", "batch: b c\n", "done: 3 nodes run nodelet"} {
		if !strings.Contains(out, batch) {
			t.Errorf("got %s\nwant %q in it", out, batch)
		}
	}
	if got, want := c.read("c.package"), "the package"; got != want {
		t.Errorf("got package %q, want %q", got, want)
	}
}

// TestUpgrade: a node that runs nodelet gets the package and nothing else.
func TestUpgrade(t *testing.T) {
	c := newCluster(t, "a")
	c.write("a.agent", "v1.37.2+nodelet.0")
	if out, code := c.takeOver("a"); code != 0 || len(c.commands()) > 0 || c.read("a.package") == "" {
		t.Errorf("got exit code %d, commands %q: %s", code, c.commands(), out)
	}
}

// TestEarlierPackage: an upgrade is undone by the installation of the earlier package.
func TestEarlierPackage(t *testing.T) {
	c := newCluster(t, "a")
	c.write("a.agent", "v1.37.2+nodelet.1")
	c.write("nodelet.rpm", "the earlier package")
	out, code := c.takeOver("--package="+filepath.Join(c.dir, "nodelet.rpm"), "a")
	if got := c.read("a.package"); code != 0 || got != "the earlier package" {
		t.Errorf("got exit code %d, package %q: %s", code, got, out)
	}
}

// TestFileOfAnotherUser: /var/tmp is open to all users and to pods, so no file of another one is taken for the package.
func TestFileOfAnotherUser(t *testing.T) {
	c := newCluster(t, "a")
	c.write("nodelet-rollout.deb", "mine")
	if out, code := c.takeOver("a"); code != 0 {
		t.Errorf("got exit code %d: %s", code, out)
	}
	if got := c.read("nodelet-rollout.deb"); got != "mine" {
		t.Errorf("got file %q of another user after the installation, want it unchanged", got)
	}
	if got := c.read("a.package"); got != "the package" {
		t.Errorf("got package %q", got)
	}
}

// TestChangedConfiguration: a node that has changed a configuration file of the package keeps it.
func TestChangedConfiguration(t *testing.T) {
	c := newCluster(t, "a")
	c.write("a.changed", "")
	if out, code := c.takeOver("a"); code != 0 {
		t.Errorf("got exit code %d: %s", code, out)
	}
}

// TestStops: each problem ends the rollout before the next node, and restores the kubelet where it was replaced.
func TestStops(t *testing.T) {
	const restored = "b: nodelet systemd uninstall --wait=2m"
	install := `case "$2" in "nodelet systemd install"*) `
	for name, test := range map[string]struct {
		after, says string
		restores    bool
	}{
		"package": {`case "$2" in *dpkg*) exit 1 ;; esac`, "the package cannot be copied or installed", false},
		"check":   {`case "$2" in *check*) exit 2 ;; esac`, "solve these problems first", false},
		"ssh":     {`case "$2" in *check*) exit 255 ;; esac`, "nodelet check cannot run, exit code 255", false},
		"install": {install + `echo v1.37.2 > "$CLUSTER/b.agent"; rm "$CLUSTER/b.unit"; exit 1 ;; esac`,
			"nodelet did not take over", false},
		"not ready": {install + `echo False > "$CLUSTER/b.ready" ;; esac`, "node b is not Ready", true},
		"restarted": {install + `sed -i s/1$/2/ "$CLUSTER/b.pods" ;; esac`,
			"pod default/web: container app was Ready, and is not Ready now or has restarted", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, "a", "b", "c")
			c.write("b.after", test.after)
			out, code := c.takeOver("a", "b", "c")
			log := c.read("log")
			if code != 1 || !strings.Contains(out, test.says) || strings.Contains(log, "c: ") {
				t.Errorf("got exit code %d, commands\n%s\n%s", code, log, out)
			}
			if got := strings.Contains(log, restored); got != test.restores {
				t.Errorf("kubelet restored: got %t, want %t: %s", got, test.restores, log)
			}
			if strings.Contains(log, "a: nodelet systemd uninstall") {
				t.Errorf("node a of an earlier batch was rolled back: %s", log)
			}
		})
	}
}

// TestEachProblemHasAnArchive: the archive of an earlier attempt does not stand for the next one. `nodelet support`
// refuses to overwrite a file.
func TestEachProblemHasAnArchive(t *testing.T) {
	c := newCluster(t, "a")
	c.write("nodelet", `#!/bin/bash
set -C
echo "$ATTEMPT" > "${2:-nodelet-support-$ATTEMPT.tar.gz}"
`)
	c.write("a.after", `case "$2" in
  *"nodelet support"*) eval "${2//\/var\/tmp/$CLUSTER}" ;;
  "nodelet systemd install"*) exit 1 ;;
esac`)
	for _, attempt := range []string{"first", "second"} {
		t.Setenv("ATTEMPT", attempt)
		c.write("a.agent", "v1.37.2\n")
		if out, code := c.takeOver("a"); code != 1 {
			t.Fatalf("got exit code %d: %s", code, out)
		}
		found, err := exec.Command("grep", "-l", attempt, "-r", c.dir, "--include=nodelet-support*").Output()
		if err != nil {
			t.Errorf("archive of the %s attempt: got %q, %v; commands\n%s", attempt, found, err, c.read("log"))
		}
	}
}

// TestFailedUpgrade: a node that ran nodelet before keeps it, and the state of each node of the batch that was tried is
// collected.
func TestFailedUpgrade(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	for _, node := range []string{"a", "b", "c"} {
		c.write(node+".agent", "v1.37.2+nodelet.0")
	}
	c.write("b.after", `case "$2" in *dpkg*) echo False > "$CLUSTER/b.ready" ;; esac`)
	if out, code := c.takeOver("--batches=3", "a", "b", "c"); code != 1 || !strings.Contains(out, "node b is not Ready") {
		t.Errorf("got exit code %d: %s", code, out)
	}
	const want = "a: cd /var/tmp && nodelet support\nb: cd /var/tmp && nodelet support"
	if got := strings.Join(c.commands(), "\n"); got != want {
		t.Errorf("got commands\n%s\nwant\n%s", got, want)
	}
}

// TestPodsThatEnd: pods that are gone or being deleted do not stop a rollout.
func TestPodsThatEnd(t *testing.T) {
	c := newCluster(t, "a")
	c.write("a.after", `case "$2" in "nodelet systemd install"*) echo > "$CLUSTER/a.pods" ;; esac`)
	if out, code := c.takeOver("a"); code != 0 {
		t.Errorf("got exit code %d: %s", code, out)
	}
}

// TestWatch: a container that restarts while its batch is watched stops the rollout.
func TestWatch(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.write("kubectl", kubectl+`[[ $* != "get pods "* ]] || [[ $(cat "$CLUSTER/a.agent") != *+nodelet* ]] ||
	sed -i s/1$/2/ "$CLUSTER/a.pods"
`)
	out, code := c.takeOver("--watch=1", "a", "b")
	log := c.read("log")
	if code != 1 || !strings.Contains(log, "a: nodelet systemd uninstall") || strings.Contains(log, "b: ") {
		t.Errorf("got exit code %d, commands\n%s\n%s", code, log, out)
	}
}

// TestCompare: the snapshot may come from standard input, as the Ansible role has it.
func TestCompare(t *testing.T) {
	c := newCluster(t, "a")
	for input, want := range map[string]int{webPod: 0, strings.ReplaceAll(webPod, "//1", "//0"): 1} {
		cmd := exec.Command("./nodelet-rollout", "compare", "--settle=0", "a", "-")
		cmd.Env = append(os.Environ(), "CLUSTER="+c.dir, "PATH="+c.dir+":"+os.Getenv("PATH"))
		cmd.Stdin = strings.NewReader(input)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("compare with %q: got exit code %d, want %d: %s", input, got, want, out)
		}
	}
}

// TestRollBack checks that the kubelet is restored where nodelet has replaced it, in the kubelet's unit or in its own.
func TestRollBack(t *testing.T) {
	for _, unit := range []string{"90-nodelet.conf", "nodelet.service"} {
		c := newCluster(t, "a", "b")
		c.write("a.agent", "v1.37.2+nodelet.1")
		c.write("a.unit", unit+"\n")
		out, code := c.run("roll-back", "--ssh=ssh", "a", "b")
		if code != 0 || !strings.Contains(out, "b: nodelet is not installed") {
			t.Errorf("%s: got exit code %d: %s", unit, code, out)
		}
		log := c.read("log")
		if !strings.Contains(log, "a: nodelet systemd uninstall") || strings.Contains(log, "b: nodelet") {
			t.Errorf("%s: got commands %s", unit, log)
		}
	}
}

// TestKubeletThatDoesNotComeBack: a node whose agent is nodelet for the cluster, although that is uninstalled, ends
// the rollback before the next node. The Node object stays Ready for a time without an agent.
func TestKubeletThatDoesNotComeBack(t *testing.T) {
	for name, after := range map[string]string{
		"no kubelet":    `echo v1.37.2+nodelet.1 > "$CLUSTER/a.agent"`,
		"no API server": `rm -f "$CLUSTER/a.agent"`,
	} {
		c := newCluster(t, "a", "b")
		for _, node := range []string{"a", "b"} {
			c.write(node+".agent", "v1.37.2+nodelet.1")
			c.write(node+".unit", "90-nodelet.conf\n")
		}
		c.write("a.after", `case "$2" in "nodelet systemd uninstall"*) `+after+` ;; esac`)
		out, code := c.run("roll-back", "--settle=0", "--ssh=ssh", "a", "b")
		log := c.read("log")
		if code != 1 || !strings.Contains(out, "a: the kubelet cannot be restored") || strings.Contains(log, "b: ") {
			t.Errorf("%s: got exit code %d, commands\n%s\n%s", name, code, log, out)
		}
	}
}

// TestUnreachableNode: without a connection nobody knows whether nodelet runs a node, so it does not count as restored.
func TestUnreachableNode(t *testing.T) {
	const noConnection = `case "$2" in "test -e"*) exit 255 ;; esac`
	c := newCluster(t, "a", "b")
	c.write("a.agent", "v1.37.2+nodelet.1")
	c.write("a.unit", "90-nodelet.conf\n")
	c.write("a.after", noConnection)
	out, code := c.run("roll-back", "--settle=0", "--ssh=ssh", "a", "b")
	if code != 1 || !strings.Contains(out, "a: the kubelet cannot be restored") || strings.Contains(c.read("log"), "b: ") {
		t.Errorf("roll-back: got exit code %d, commands\n%s\n%s", code, c.read("log"), out)
	}
	c = newCluster(t, "a")
	c.write("a.after", noConnection+`; case "$2" in "nodelet systemd install"*) exit 255 ;; esac`)
	if out, code := c.takeOver("a"); code != 1 || !strings.Contains(out, "a: the kubelet cannot be restored") {
		t.Errorf("take-over: got exit code %d: %s", code, out)
	}
}

// onNodes are the stand-ins beside which a playbook runs. Ansible wraps commands into scripts, so each program of
// a node acts by itself. NODE.PROGRAM is sourced after a program, with its arguments.
var onNodes = map[string]string{
	"ssh": `#!/bin/bash
while [[ $1 == -* ]]; do [[ $1 != -[op] ]] || shift; shift; done
export NODE=$1; shift
eval "$*"
`,
	"test": `#!/bin/bash
[ -e "$CLUSTER/$NODE.unit" ]
`,
	"dpkg": `#!/bin/bash
echo "$NODE: dpkg" >> "$CLUSTER/log"
[ ! -e "$CLUSTER/$NODE.dpkg" ] || . "$CLUSTER/$NODE.dpkg"
`,
	"nodelet": `#!/bin/bash
echo "$NODE: $*" >> "$CLUSTER/log"
case "$*" in
  "systemd install"*) echo v1.37.2+nodelet.1 > "$CLUSTER/$NODE.agent"; touch "$CLUSTER/$NODE.unit" ;;
  "systemd uninstall"*)
    echo v1.37.2 > "$CLUSTER/$NODE.agent"; rm "$CLUSTER/$NODE.unit"; echo True > "$CLUSTER/$NODE.ready" ;;
esac
[ ! -e "$CLUSTER/$NODE.nodelet" ] || . "$CLUSTER/$NODE.nodelet"
`,
}

// playbook runs the playbook for nodes, with further variables as flags, and returns what it printed.
func (c *cluster) playbook(nodes string, vars ...string) (string, error) {
	c.t.Helper()
	ansible := programs.Find(c.t, "ansible-playbook")
	rollout, err := filepath.Abs("nodelet-rollout")
	if err != nil {
		c.t.Fatal(err)
	}
	for program, text := range onNodes {
		c.write(program, text)
	}
	args := []string{"-i", nodes, "ansible/rollout.yaml", "-e", "ansible_become=false", "-e", "nodelet_watch=0",
		"-e", "nodelet_settle=0", "-e", "nodelet_rollout=" + rollout, "-e", "nodelet_package=" + c.dir + "/nodelet.deb",
		"-e", "ansible_python_interpreter=auto_silent"}
	for _, v := range vars {
		args = append(args, "-e", v)
	}
	cmd := exec.Command(ansible, args...)
	cmd.Env = append(os.Environ(), "CLUSTER="+c.dir, "PATH="+c.dir+":"+os.Getenv("PATH"), "ANSIBLE_HOME="+c.dir,
		"ANSIBLE_SSH_EXECUTABLE="+c.dir+"/ssh", "ANSIBLE_SSH_TRANSFER_METHOD=piped", "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestPlaybookStops: each problem of a node ends the playbook before the next batch, and restores the kubelet where it
// was replaced. As long as none of the batch was taken over, none is.
func TestPlaybookStops(t *testing.T) {
	for name, test := range map[string]struct {
		program, does string
		restores      bool
	}{
		"package": {"dpkg", "exit 1", false},
		"check":   {"nodelet", `[[ "$1" != check ]] || exit 2`, false},
		"install": {"nodelet", `[[ "$2" != install ]] || exit 1`, true},
		"ready":   {"nodelet", `[[ "$2" != install ]] || echo False > "$CLUSTER/$NODE.ready"`, true},
	} {
		c := newCluster(t, "a", "b", "c", "d")
		c.write("b."+test.program, test.does)
		out, err := c.playbook("a,b,c,d,", `{"nodelet_batches":[1,2]}`)
		log := c.read("log")
		if err == nil || !strings.Contains(log, "a: systemd install") || strings.Contains(log, "d: ") {
			t.Errorf("%s: got error %v, commands\n%s\n%s", name, err, log, out)
		}
		if got := strings.Contains(log, "b: systemd uninstall"); got != test.restores {
			t.Errorf("%s: kubelet restored: got %t, want %t: %s", name, got, test.restores, log)
		}
		if !test.restores && strings.Contains(log, "c: systemd install") {
			t.Errorf("%s: a node of the same batch was taken over: %s", name, log)
		}
	}
}

// TestPlaybookRollsBack: a node whose kubelet does not publish its version ends the rollback before the next batch.
func TestPlaybookRollsBack(t *testing.T) {
	c := newCluster(t, "a", "b")
	for _, node := range []string{"a", "b"} {
		c.write(node+".agent", "v1.37.2+nodelet.1")
		c.write(node+".unit", "")
	}
	c.write("a.nodelet", `echo v1.37.2+nodelet.1 > "$CLUSTER/a.agent"`)
	out, err := c.playbook("a,b,", "nodelet_state=kubelet", `{"nodelet_batches":[1]}`)
	log := c.read("log")
	if err == nil || !strings.Contains(log, "a: systemd uninstall") || strings.Contains(log, "b: ") {
		t.Errorf("got error %v, commands\n%s\n%s", err, log, out)
	}
}

func TestMisuse(t *testing.T) {
	c := newCluster(t, "a")
	for want, args := range map[string][]string{
		"which command?":                    {},
		`unknown command "install"`:         {"install", "a"},
		"unknown flag --batch=1":            {"take-over", "--batch=1", "a"},
		"which nodes?":                      {"roll-back"},
		"--package= is not a file":          {"take-over", "a"},
		`--batches=1,x: "x" is not a`:       {"take-over", "--package=" + c.dir + "/nodelet.deb", "--batches=1,x", "a"},
		"--watch=10m is not a number":       {"take-over", "--watch=10m", "a"},
		"/kubectl is neither .deb nor .rpm": {"take-over", "--package=" + c.dir + "/kubectl", "a"},
	} {
		if out, code := c.run(args...); code != 2 || !strings.Contains(out, want) {
			t.Errorf("%q: got exit code %d, %q, want 2 and %q", args, code, out, want)
		}
	}
	if out, code := c.run("take-over", "--help"); code != 0 || !strings.HasPrefix(out, "usage:") {
		t.Errorf("--help: got exit code %d, %q", code, out)
	}
	if log := c.read("log"); log != "" {
		t.Errorf("misuse reached nodes: %s", log)
	}
}
