package systemd

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const kubeadmUnit = `# /lib/systemd/system/kubelet.service
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
# /usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf ` +
	`--kubeconfig=/etc/kubernetes/kubelet.conf"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS \
  $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`

func TestTakeOver(t *testing.T) {
	i := &Installer{Root: t.TempDir()}
	const kept = "ExecStart=@/usr/bin/nodelet /usr/bin/kubelet --a=b --accept-missing=qosReserved\n"
	for unit, want := range map[string]string{
		kubeadmUnit: "ExecStart=\nExecStart=@/usr/bin/nodelet /usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS " +
			"$KUBELET_CONFIG_ARGS    $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS --accept-missing=qosReserved\n",
		"ExecStart=-/opt/kubelet --a=b\n": "ExecStart=-@/usr/bin/nodelet /opt/kubelet --a=b --accept-missing=qosReserved\n",

		"ExecStart=/usr/bin/kubelet --a=a\n ExecStart =\nExecStart = /usr/bin/kubelet --a=b\n": kept,
		"ExecStart=/usr/bin/kubelet \\\n# about b\n  ; more\n  --a=b\n":                        kept,
	} {
		kubelet, err := i.kubeletCommand(unit)
		if err != nil {
			t.Fatal(err)
		}
		got := takeOver(kubelet, "/usr/bin/nodelet", "--accept-missing=qosReserved")
		waitsForKubeadm(t, got)
		for _, line := range []string{
			want, "SyslogIdentifier=kubelet\n", "Type=notify\n", "KillMode=process\n", "Restart=always\n",
			"FileDescriptorStoreMax=",
		} {
			if !strings.Contains(got, line) {
				t.Errorf("got no %q, want it in\n%s", line, got)
			}
		}
	}
	for name, bad := range map[string]string{
		"none":  "[Unit]\n",
		"reset": "ExecStart=/a\nExecStart=\n",
		"two":   "ExecStart=/a\nExecStart=/b\n",
	} {
		if got, err := i.kubeletCommand(bad); err == nil {
			t.Errorf("%s: got %v, want an error", name, got)
		}
	}
}

// waitsForKubeadm checks that the agent is started only each ten seconds, as in the unit of the package kubelet. Until
// kubeadm has written a configuration, and after kubeadm reset, it only ends and starts again.
func waitsForKubeadm(t *testing.T, unit string) {
	t.Helper()
	last := unit[strings.LastIndex(unit, "RestartSec="):] // it counts
	if !strings.HasPrefix(last, "RestartSec=10s\n") {
		t.Errorf("got\n%s\nwant RestartSec=10s", unit)
	}
}

func TestUnit(t *testing.T) {
	got := Unit("/usr/bin/nodelet")
	if strings.Contains(got, "{{") || !strings.Contains(got, "ExecStart=/usr/bin/nodelet $NODELET_ARGS\n") ||
		!strings.Contains(got, "WatchdogSec=") {
		t.Error(got)
	}
	for _, want := range []string{
		"\nRestartSec=1s\n\n", "OOMScoreAdjust=-999\n", "MemoryMax=2G\n", "OOMPolicy=continue\n",
		"Conflicts=kubelet.service\nAfter=kubelet.service\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got no %q, want it in\n%s", want, got)
		}
	}
}

// TestKubeletUnit checks that kubeadm's drop-in finds a command to replace, and that the unit becomes active only
// when the node can run pods. nodelet.service stops it. If each stopped the other, systemd would choose at random which
// of the two starts with the machine.
func TestKubeletUnit(t *testing.T) {
	got := KubeletUnit("/usr/bin/kubelet")
	for _, want := range []string{
		"ExecStart=/usr/bin/kubelet\n", "Type=notify\n", "KillMode=process\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got no %q, want it in\n%s", want, got)
		}
	}
	waitsForKubeadm(t, got)
	if strings.Contains(got, "{{") || strings.Contains(got, "Conflicts=") {
		t.Error(got)
	}
}

// TestKeep checks that systemd gets the descriptor itself, under its name, and is to keep it until it is removed.
func TestKeep(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := keep("x", os.Stdin); err != nil {
		t.Error(err)
	}
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := keep("lock", file); err != nil {
		t.Fatal(err)
	}
	buf, oob := make([]byte, 100), make([]byte, 100)
	n, oobn, _, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil || string(buf[:n]) != "FDSTORE=1\nFDPOLL=0\nFDNAME=lock" {
		t.Fatalf("got %q, %v, want FDSTORE, FDPOLL and the name", buf[:n], err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		t.Fatalf("got %v %v, want one", messages, err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("got %v %v, want one", fds, err)
	}
	defer unix.Close(fds[0])
	var a, b unix.Stat_t
	if unix.Fstat(fds[0], &a) != nil || unix.Fstat(int(file.Fd()), &b) != nil || a.Ino != b.Ino {
		t.Error("systemd got another file")
	}
}

func TestJournalHandler(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(newJournal(filepath.Join(t.TempDir(), "none"), &out, slog.LevelInfo)).With("a", 1)
	log.Debug("below the level")
	log.Info("one", "b", "x\ny")
	log.WithGroup("g").Warn("two", "c", 3)
	log.Error("three")
	want := "<6>msg=one a=1 b=\"x\\ny\"\n<4>msg=two a=1 g.c=3\n<3>msg=three a=1\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	t.Setenv("JOURNAL_STREAM", "1:2")
	if ToJournal() {
		t.Error("ToJournal: got true for a standard error that is not the journal")
	}
}

// TestLaterDropIn checks that a command is refused that a drop-in sets which systemd reads after that of nodelet: that
// one would have no effect.
func TestLaterDropIn(t *testing.T) {
	const unit = "# /usr/lib/systemd/system/kubelet.service\n[Service]\nExecStart=/usr/bin/kubelet\n"
	const command = "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --v=2\n"
	const dir = "/etc/systemd/system/kubelet.service.d/"
	const later = dir + "override.conf"
	i := &Installer{Root: t.TempDir()}
	for text, want := range map[string]string{
		unit: "",
		unit + "\n# " + dir + "10-kubeadm.conf\n" + command:                                    "",
		unit + "# " + later + "\n" + command:                                                   later,
		unit + "\n# /run/systemd/system/kubelet.service.d/99-a.conf\n# of mine\n" + command:    "/run/systemd/",
		unit + "\n# " + later + "\n[Service]\nCPUWeight=1\n":                                   "",
		unit + "\n# " + later + "\n[Service]\n# /etc/a.conf\nExecStart=\nExecStart=/b/kubelet": later,
	} {
		_, err := i.kubeletCommand(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got error %v, want %q in it", text, err, want)
		}
	}
}
