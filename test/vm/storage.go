package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// storageScenario proves volumes that need a server, in order: the machine is both ends of iSCSI and of NFS.
type storageScenario struct{ *scenario }

const (
	oneTarget, otherTarget = "iqn.2026-01.test.nodelet:one", "iqn.2026-01.test.nodelet:other"
	chapUser, chapPassword = "node", "not-to-be-seen-1"
)

func (s *storageScenario) prove() error {
	err := s.inOrder([]step{
		{"boot", s.boot},
		{"targets and an export", s.serve},
		{"the driver on its own", s.driver},
		{"install the package", s.install},
		{"pods write", s.write},
		{"kill -9 leaves them alone", s.killIdle},
		{"a pod goes and its target stays", s.one},
		{"the pod is back with its data", s.back},
		{"kill -9 while a pod starts", s.killStart},
		{"kill -9 while a pod goes", s.killStop},
		{"power cut", s.powerCut},
		{"nothing is left", s.nothing},
	})
	if err != nil {
		s.show()
	}
	return err
}

func (s *storageScenario) show() {
	s.scenario.show()
	for _, c := range []string{"iscsiadm -m session -P 3; iscsiadm -m node", "grep -E 'kubelet|nfs' /proc/mounts",
		"tgtadm --lld iscsi --mode target --op show", "dmesg | tail -30",
		"find /var/lib/kubelet/plugins /run/nodelet /var/lib/kubelet/pods -maxdepth 5 | head -60"} {
		out, err := s.m.sh(time.Minute, c+" || true")
		fmt.Printf("--- %s (%v)\n%s\n", c, err, out)
	}
}

// serve makes two targets, one with two LUNs, and an export. The kernel keeps them in memory only, so they are made
// again after a power cut.
func (s *storageScenario) serve() error {
	commands := []string{"modprobe -a iscsi_tcp sd_mod nfs nfsd", "systemctl start tgt nfs-server",
		"mkdir -p /srv/share && chmod 777 /srv/share",
		"for n in 1 2 3 4; do [ -e /srv/lun$n ] || truncate -s 64M /srv/lun$n; done",
		"until tgtadm --lld iscsi --mode sys --op show >/dev/null; do sleep 0.5; done",
		"tgtadm --lld iscsi --mode account --op new --user " + chapUser + " --password " + chapPassword,
		"exportfs -o rw,no_root_squash,insecure,fsid=1 127.0.0.1:/srv/share"}
	luns := map[string][]string{oneTarget: {"1", "2"}, otherTarget: {"3", "4"}}
	for i, target := range []string{oneTarget, otherTarget} {
		tid := fmt.Sprint(i + 1)
		commands = append(commands, "tgtadm --lld iscsi --mode target --op new --tid "+tid+" -T "+target)
		for _, lun := range luns[target] {
			commands = append(commands,
				fmt.Sprintf("tgtadm --lld iscsi --mode logicalunit --op new --tid %s --lun %s -b /srv/lun%[2]s", tid, lun))
		}
		commands = append(commands, "tgtadm --lld iscsi --mode target --op bind --tid "+tid+" -I ALL",
			"tgtadm --lld iscsi --mode account --op bind --tid "+tid+" --user "+chapUser)
	}
	return s.need(commands...)
}

// driver runs the tests of the driver that need a target.
func (s *storageScenario) driver() error {
	out, err := s.sh("cd /payload && NODELET_TEST_TARGET=%s NODELET_TEST_CHAP=%s:%s ./iscsi.test -test.v -test.run Target",
		otherTarget, chapUser, chapPassword)
	s.say("%s", out)
	return cmp.Or(err, s.clean())
}

func (s *storageScenario) install() error {
	return s.need("dpkg -i /payload/nodelet.deb", "cp /payload/config.yaml /etc/nodelet/config.yaml",
		"echo 'NODELET_ARGS=--config=/etc/nodelet/config.yaml --node-ip=192.0.2.10 -v=4' > /etc/default/nodelet",
		"mkdir -p /etc/kubernetes/manifests",
		"printf 'apiVersion: v1\\nkind: Secret\\nmetadata: {name: chap, namespace: default}\\n"+
			"stringData: {node.session.auth.username: "+chapUser+", node.session.auth.password: "+chapPassword+"}\\n' "+
			"> /etc/kubernetes/manifests/secret.yaml",
		"systemctl enable --now nodelet")
}

// add and drop change the node's pods.
func (s *storageScenario) add(name, target, lun string) error {
	return s.need(fmt.Sprintf("sed 's/NAME/%[1]s/g; s/IQN/%[2]s/; s/LUN/%[3]s/' /payload/storage.yaml "+
		"> /root/%[1]s.yaml && mv /root/%[1]s.yaml /etc/kubernetes/manifests/", name, target, lun))
}

func (s *storageScenario) drop(name string) error {
	return s.need("rm /etc/kubernetes/manifests/" + name + ".yaml")
}

// container is a shell command that prints the ID of a pod's running container.
func container(name string) string {
	return "$(crictl ps -q --state Running --label io.kubernetes.pod.name=" + name + "-vm)"
}

// wrote waits until a pod has written to both of its volumes as often as it was started.
func (s *storageScenario) wrote(name string, times int) error {
	in := "crictl exec " + container(name)
	return s.need(poll(300, "1", in+" test -e /tmp/written 2>/dev/null", in+" cat /disk/log"),
		fmt.Sprintf("%[1]s cat /disk/log; [ $(%[1]s cat /disk/log | grep -c started) = %[2]d ] && "+
			"[ $(grep -c started /srv/share/%[3]s) = %[2]d ]", in, times, name))
}

// gone waits until nothing of a pod is on the disk.
func (s *storageScenario) gone(pods int) error {
	check := fmt.Sprintf("[ $(ls /var/lib/kubelet/pods | wc -l) = %d ]", pods)
	return s.need(poll(300, "1", check, "ls -R /var/lib/kubelet/pods"))
}

// sessions waits until the targets that the node is logged in to are these.
func (s *storageScenario) sessions(targets ...string) error {
	check := fmt.Sprintf(`[ "$(echo $(cat /sys/class/iscsi_session/*/targetname 2>/dev/null | sort))" = '%s' ]`,
		strings.Join(targets, " "))
	return s.need(poll(120, "1", check, "iscsiadm -m session"))
}

func (s *storageScenario) write() error {
	return cmp.Or(s.add("a", oneTarget, "1"), s.add("b", oneTarget, "2"), s.add("c", otherTarget, "3"), s.wrote("a", 1),
		s.wrote("b", 1), s.wrote("c", 1),
		s.sessions(oneTarget, otherTarget),
		s.need("[ $(stat -c %g /proc/$(crictl inspect -o go-template --template '{{.info.pid}}' "+container("a")+
			")/root/disk/log) = 4321 ]",
			"! journalctl -b --no-pager | grep -q "+chapPassword, "! grep -rq "+chapPassword+" /var/lib/kubelet"))
}

// kill kills the agent and waits until systemd has restarted it.
func (s *storageScenario) kill() error {
	pid, err := s.sh("systemctl show -p MainPID --value nodelet")
	return cmp.Or(err, s.need("kill -9 "+pid), s.again("nodelet", pid))
}

func (s *storageScenario) killIdle() error {
	return cmp.Or(s.kill(), s.wrote("a", 1), s.wrote("b", 1), s.wrote("c", 1), s.sessions(oneTarget, otherTarget))
}

// one: the target of a pod that has gone stays while another pod has a LUN of it.
func (s *storageScenario) one() error {
	return cmp.Or(s.drop("a"), s.gone(2), s.sessions(oneTarget, otherTarget), s.wrote("b", 1), s.drop("c"), s.gone(1),
		s.sessions(oneTarget), s.wrote("b", 1),
		s.need("! ls /dev/disk/by-path | grep "+oneTarget+"-lun-1$", "ls /dev/disk/by-path | grep "+oneTarget+"-lun-2$"))
}

func (s *storageScenario) back() error {
	return cmp.Or(s.add("a", oneTarget, "1"), s.add("c", otherTarget, "3"), s.wrote("a", 2), s.wrote("c", 2),
		s.sessions(oneTarget, otherTarget))
}

// killStart kills the agent as soon as it has begun with a LUN.
func (s *storageScenario) killStart() error {
	return cmp.Or(s.drop("c"), s.gone(2), s.sessions(oneTarget), s.add("c", otherTarget, "3"),
		s.need(poll(6000, "0.01",
			"ls /var/lib/kubelet/plugins/kubernetes.io/iscsi/iface-default/*other*/iscsi.json 2>/dev/null", ":")),
		s.kill(), s.wrote("c", 3), s.sessions(oneTarget, otherTarget))
}

// killStop kills it as soon as it has begun to take one down, and drops another pod while it is dead.
func (s *storageScenario) killStop() error {
	return cmp.Or(s.drop("c"),
		s.need(poll(6000, "0.01", "[ $(grep -c 'pods/.*iscsi/disk' /proc/mounts) -le 2 ]", "cat /proc/mounts")),
		s.kill(), s.gone(2), s.sessions(oneTarget))
}

// powerCut takes the power away: the data that was written and synced is there again.
func (s *storageScenario) powerCut() error {
	if err := s.need("sync"); err != nil {
		return err
	}
	s.m.cut()
	return cmp.Or(s.m.start(bootLimit), s.need(mountPayload), s.serve(), s.wrote("a", 3), s.wrote("b", 2),
		s.sessions(oneTarget))
}

// clean: no session, record, device or mount is left.
func (s *storageScenario) clean() error {
	return cmp.Or(s.sessions(),
		s.need("! iscsiadm -m node 2>/dev/null", "! ls -d /dev/disk/by-path/*iscsi* 2>/dev/null", "! grep iscsi /proc/mounts",
			"! grep -r "+chapPassword+" /etc/iscsi", "! ls /run/nodelet/iscsi/* 2>/dev/null"))
}

func (s *storageScenario) nothing() error {
	return cmp.Or(s.drop("a"), s.drop("b"), s.gone(0), s.clean(),
		s.need("! grep -E '127.0.0.1:/srv|/var/lib/kubelet/(pods|plugins)/' /proc/mounts",
			"! ls -d /var/lib/kubelet/plugins/kubernetes.io/iscsi/*/* 2>/dev/null",
			"! ls /var/lib/kubelet/nodelet/csi/*.json 2>/dev/null",
			"! journalctl -b --no-pager | grep -q "+chapPassword))
}
