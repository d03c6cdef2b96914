package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// rolloutPage is the guide whose commands are run.
const rolloutPage = "docs/rollout.md"

// rollout runs the code blocks of the rollout guide, as they stand there, on a node that a real kubelet runs: install,
// check, take over, watch, upgrade, roll back, remove. Static pods run on all the time, in the same containers.
type rollout struct {
	*scenario
	before string // the files of the machine before the package was installed
}

// block is the code below a heading of a page.
type block struct{ heading, code string }

// blocks returns the code blocks of a page of Markdown, those indented by four blanks, each with the heading above it.
func blocks(page string) []block {
	var all []block
	heading, inside := "", false
	for line := range strings.Lines(page) {
		code, indented := strings.CutPrefix(line, "    ")
		switch {
		case strings.HasPrefix(line, "## "):
			heading, inside = strings.TrimSpace(line[3:]), false
		case indented && inside:
			all[len(all)-1].code += code
		case indented:
			all, inside = append(all, block{heading, code}), true
		case strings.TrimSpace(line) != "":
			inside = false
		}
	}
	return all
}

func (r *rollout) prove() error {
	page, err := os.ReadFile(rolloutPage)
	if err != nil {
		return err
	}
	steps := []step{
		{"boot", r.boot},
		{"the kubelet runs the node", r.kubelet},
	}
	checks := r.checks()
	for _, b := range blocks(string(page)) {
		check, ok := checks[b.heading]
		if !ok {
			return fmt.Errorf("%s has a code block below %q, which this test does not know", rolloutPage, b.heading)
		}
		delete(checks, b.heading)
		steps = append(steps, step{rolloutPage + ": " + b.heading, func() error { return r.run(b, check) }})
	}
	for heading := range checks {
		return fmt.Errorf("%s has no code block below %q", rolloutPage, heading)
	}
	if err = r.inOrder(steps); err != nil {
		r.show()
	}
	return err
}

// run runs the commands of a block as a user would, in the directory with the package, and then its check. No command
// may fail, and no container may restart.
func (r *rollout) run(b block, check func() error) error {
	out, err := r.sh("cd /root && { set -e\n%s}", b.code)
	fmt.Println(indented(out))
	return errors.Join(err, check(), r.same())
}

func indented(text string) string {
	return "          | " + strings.ReplaceAll(text, "\n", "\n          | ")
}

// kubelet starts the real kubelet with static pods, as kubeadm would set it up, and remembers the files.
func (r *rollout) kubelet() error {
	for name, priority := range pods {
		err := r.need(fmt.Sprintf("mkdir -p /etc/kubernetes/manifests /var/lib/kubelet; "+
			"sed 's/NAME/%[1]s/g; s/PRIORITY/%[2]d/' /payload/pod.yaml > /etc/kubernetes/manifests/%[1]s.yaml", name, priority))
		if err != nil {
			return err
		}
	}
	err := r.need("cp /payload/config.yaml /var/lib/kubelet/config.yaml", "cp /payload/kubelet /usr/bin/kubelet",
		"sed 's:/etc/nodelet/:/var/lib/kubelet/:' /payload/kubelet.service > /etc/systemd/system/kubelet.service",
		"systemctl daemon-reload", "systemctl enable --now kubelet", kubeletHealthy, "cp /payload/nodelet.deb /root/")
	if err != nil {
		return err
	}
	if err := r.running(); err != nil {
		return err
	}
	r.before, err = r.files()
	return err
}

// files lists the files of the machine on which a package or nodelet could have left something.
func (r *rollout) files() (string, error) {
	return r.sh("find /etc /usr /var/lib/systemd/deb-systemd* /var/lib/kubelet -xdev -not -path '*/pods/*' " +
		"| sort; ls /run | grep nodelet || true")
}

// checks are what must be true after the code below each heading of the guide.
func (r *rollout) checks() map[string]func() error {
	return map[string]func() error{
		"Install":   r.stillKubelet,
		"Check":     r.stillKubelet,
		"Take over": r.tookOver,
		"Watch":     r.isNodelet,
		"Upgrade":   r.upgraded,
		"Roll back": r.kubeletRuns,
		"Remove":    r.nothingLeft,
	}
}

func (r *rollout) stillKubelet() error {
	return r.need(kubeletHealthy,
		"readlink /proc/$(systemctl show -p MainPID --value kubelet)/exe | grep -x /usr/bin/kubelet")
}

func (r *rollout) isNodelet() error {
	return r.need("readlink /proc/$(systemctl show -p MainPID --value kubelet)/exe | grep -x /usr/bin/nodelet",
		"grep -x kubelet /proc/$(systemctl show -p MainPID --value kubelet)/comm",
		"systemctl is-active kubelet")
}

// tookOver checks the takeover. It then goes back, and checks a takeover that fails: another process holds the lock of
// the root directory, so nodelet is not ready in time, and the kubelet comes back by itself. The next takeover lasts.
func (r *rollout) tookOver() error {
	// The record of the start has the fields that journald knows from nodelet alone.
	started := "journalctl --no-pager -u kubelet SYSLOG_IDENTIFIER=kubelet MESSAGE_ID=5c1f0a3e6c3b4a7ab0f2a2d8a6f3c901 " +
		"| grep 'nodelet started'"
	if err := errors.Join(r.isNodelet(), r.same(), r.need(started, "nodelet systemd uninstall --wait 5m")); err != nil {
		return err
	}
	if err := errors.Join(r.kubeletRuns(), r.same()); err != nil {
		return err
	}
	out, err := r.sh("flock /var/lib/kubelet/nodelet.lock sleep 1000 & holder=$!; sleep 1; " +
		"nodelet systemd install --wait 20s; echo exit $?; kill $(pgrep -P $holder); wait")
	fmt.Println(indented(out))
	if err != nil {
		return err
	}
	for _, want := range []string{"restoring the kubelet", "nodelet did not become ready", "exit 1"} {
		if !strings.Contains(out, want) {
			return fmt.Errorf("a takeover that fails printed no %q", want)
		}
	}
	if err := errors.Join(r.kubeletRuns(), r.same()); err != nil {
		return err
	}
	// What the next block installs is a newer version.
	return errors.Join(r.need("nodelet systemd install --wait 5m", "cd /root && dpkg-deb -R nodelet.deb new && "+
		"sed -i 's/^Version: .*/&.1/' new/DEBIAN/control && dpkg-deb -b new nodelet.deb && rm -r new"), r.isNodelet())
}

// upgraded checks that the new version is installed and that its program runs.
func (r *rollout) upgraded() error {
	return errors.Join(r.need("dpkg-query -W nodelet | grep '\\.1$'", r.await("kubelet")), r.isNodelet(),
		r.need("! readlink /proc/$(systemctl show -p MainPID --value kubelet)/exe | grep deleted"))
}

// nothingLeft compares the files with those before the installation.
func (r *rollout) nothingLeft() error {
	after, err := r.files()
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for line := range strings.Lines(r.before) {
		known[strings.TrimSpace(line)] = true
	}
	var left []string
	for line := range strings.Lines(after) {
		if line = strings.TrimSpace(line); !known[line] {
			left = append(left, line)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("these files are left: %s", strings.Join(left, " "))
	}
	return r.stillKubelet()
}
