package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/faulttest"
	"github.com/nodelet/nodelet/test/waittest"
)

// crashEnv names the directory in which a copy of this test attaches a sandbox until it is killed.
const crashEnv = "NODELET_CNI_CRASH"

// listed is a runtime with these sandboxes.
func listed(ids ...string) func(context.Context) (map[string]bool, error) {
	all := map[string]bool{}
	for _, id := range ids {
		all[id] = true
	}
	return func(context.Context) (map[string]bool, error) { return all, nil }
}

func TestReap(t *testing.T) {
	b := newBench(t)
	b.plugin("first", answer)
	n := b.network(fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"first","ipam":{"type":"host-local",
		"dataDir":%q}}]}`, b.store.addresses()))
	change := map[string]func(*Record){
		"alive":        func(*Record) {},
		"known":        func(r *Record) { r.NetNS = "/nowhere" }, // the runtime removes it
		"other-boot":   func(r *Record) { r.Boot = "another" },
		"no-namespace": func(r *Record) { r.NetNS = "/nowhere" },
		"runtime-gone": func(r *Record) { r.Runtime.Start = "7" },
		"old-unknown":  func(r *Record) { r.Began, r.Uptime = r.Began.Add(-time.Hour), r.Uptime-time.Hour },
		"of-program":   func(r *Record) { r.Pod, r.Runtime.Start = Pod{Name: "c"}, "7" }, // podman, which has ended
		"old-program":  func(r *Record) { r.Pod, r.Uptime = Pod{}, r.Uptime-time.Hour },
		"program-gone": func(r *Record) { r.Pod, r.NetNS = Pod{}, "/nowhere" },
		"clock-set":    func(r *Record) { r.Began = r.Began.Add(-time.Hour) }, // forward, while it was attached
	}
	addresses := filepath.Join(b.store.addresses(), "net")
	if err := os.MkdirAll(addresses, 0o755); err != nil {
		t.Fatal(err)
	}
	reserve := func(ip, id string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(addresses, ip), []byte(id+"\r\neth0"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"lock", "last_reserved_ip.0"} {
		if err := os.WriteFile(filepath.Join(addresses, file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for id, f := range change {
		if err := b.attach(id, n); err != nil {
			t.Fatal(err)
		}
		rec, err := b.store.read(id)
		if err != nil {
			t.Fatal(err)
		}
		f(rec)
		if err := b.store.write(rec); err != nil {
			t.Fatal(err)
		}
	}
	reserve("10.9.0.2", "alive")
	reserve("10.9.0.3", "known")
	reserve("10.9.0.4", "never-heard-of")
	reserve("fd00::4", "")
	reserve("10.9.0.5", "unrecorded-but-known")
	if _, err := b.Reap(t.Context(), Alive{List: listed("known", "unrecorded-but-known"), Own: n}); err != nil {
		t.Fatal(err)
	}
	if got := b.kept(); !slices.Equal(got, []string{"alive", "clock-set", "known", "of-program", "old-program"}) {
		t.Errorf("on record: got %q, want alive, clock-set, known, and those of other programs", got)
	}
	left, err := filepath.Glob(filepath.Join(addresses, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if want := []string{"10.9.0.2", "10.9.0.3", "10.9.0.5", "last_reserved_ip.0", "lock"}; !slices.Equal(left, want) {
		t.Errorf("addresses %q, want %q", left, want)
	}
}

// TestReapWhileRuntimeRestarts checks that a sandbox keeps its network if the runtime ends after it has listed its
// sandboxes, which then do not include this one yet, because its ADD had not ended.
func TestReapWhileRuntimeRestarts(t *testing.T) {
	b := newBench(t)
	b.plugin("first", answer)
	n := b.network(chain("first"))
	if err := b.attach("new", n); err != nil {
		t.Fatal(err)
	}
	_, err := b.Reap(t.Context(), Alive{Own: n, List: func(context.Context) (map[string]bool, error) {
		rec, err := b.store.read("new")
		if err != nil {
			return nil, err
		}
		rec.Runtime.Start = "7" // of a process that has ended
		return nil, b.store.write(rec)
	}})
	if got := b.kept(); err != nil || !slices.Equal(got, []string{"new"}) {
		t.Errorf("on record: got %q, %v, want new", got, err)
	}
}

// TestReapWithoutFileDescriptors checks that a shortage of file descriptors does not make a sandbox that is just being
// created count as one that a killed runtime, or an earlier boot, has left.
func TestReapWithoutFileDescriptors(t *testing.T) {
	b := newBench(t)
	const own = "/proc/self/ns/net"
	for name, rec := range map[string]*Record{
		"identified":     {NetNS: own, Boot: bootID(), Runtime: processOf(os.Getpid()), Began: time.Now()},
		"not identified": {NetNS: own, Began: time.Now()}, // for want of a file descriptor
	} {
		if b.leaked("new", rec) {
			t.Errorf("%s: got a leak, want a sandbox that is being created", name)
		}
		restore := faulttest.NoFiles(t)
		leaked := b.leaked("new", rec)
		restore()
		if leaked {
			t.Errorf("%s, without file descriptors: got a leak, want a sandbox that is being created", name)
		}
	}
}

// TestReapSharedAddresses checks which addresses are freed in a directory that other programs use too, for nodelet's
// own network and for that of the runtime: those that were reserved for ten minutes without a sandbox, whatever the
// time of their files, but not those of other programs.
func TestReapSharedAddresses(t *testing.T) {
	empty := emptyNamespace(t)
	for name, alive := range map[string]func(*Network) Alive{
		"own":     func(n *Network) Alive { return Alive{Own: n} },
		"foreign": func(n *Network) Alive { return Alive{Foreign: n} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { reapShared(t, alive, empty) })
		})
	}
}

// emptyNamespace returns a network namespace without a process, as a killed runtime leaves one, or, if this process may
// not make one, a path where there is none.
func emptyNamespace(t *testing.T) string {
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := cmd.Start(); errors.Is(err, fs.ErrPermission) {
		return "/nowhere"
	} else if err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { held.Close() })
	return fmt.Sprintf("/proc/self/fd/%d", held.Fd())
}

func reapShared(t *testing.T, alive func(*Network) Alive, empty string) {
	b := newBench(t)
	n := b.network(fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"first","ipam":{
		"type":"host-local","dataDir":%q}}]}`, b.dir))
	addresses := filepath.Join(b.dir, "net")
	if err := os.MkdirAll(addresses, 0o755); err != nil {
		t.Fatal(err)
	}
	id := func(digit string) string { return strings.Repeat(digit, 64) }
	write := func(file, content string, age time.Duration) {
		t.Helper()
		file = filepath.Join(addresses, file)
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, time.Now().Add(-age), time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	for file, content := range map[string]string{
		"lock":     "",
		"10.9.0.2": id("a") + "\r\neth0",              // a sandbox that the runtime has
		"10.9.0.3": id("b") + "\r\neth0",              // one that it has lost
		"10.9.0.4": id("c") + "\r\neth0",              // one that it has lost, too
		"10.9.0.5": "default-" + id("d") + "\r\neth0", // a container of nerdctl
		"10.9.0.6": "",                                // cut off by a loss of power
		"10.9.0.7": id("f") + "\r\neth0",              // a container of podman
		"10.9.0.8": id("0") + "\r\neth0",              // one of before the boot
		"10.9.0.9": id("1") + "\r\neth0",              // a sandbox of a runtime that was killed during ADD
	} {
		write(file, content, 24*time.Hour) // or the clock was set forward
	}
	b.cache = t.TempDir()
	for owner, netns := range map[string]string{id("f"): "/proc/self/ns/net", id("0"): "/nowhere", id("1"): empty} {
		file := filepath.Join(b.cache, "results", "net-"+owner+"-eth0")
		text := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":"net","result":{
			"cniVersion":"0.4.0","interfaces":[{"name":"cni-podman0"},{"name":"eth0","sandbox":%q}]}}`, owner, netns)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range [][]string{nil, {"10.9.0.3", "10.9.0.6", "10.9.0.8", "10.9.0.9"}} {
		a := alive(n)
		a.List = listed(id("a"))
		r, err := b.Reap(t.Context(), a)
		if err != nil || !slices.Equal(r.Addresses, want) {
			t.Errorf("freed: got %q, %v, want %q", r.Addresses, err, want)
		}
		time.Sleep(abandoned)
		write("10.9.0.4", id("e")+"\r\neth0", 0) // reserved for one that the runtime may list soon
	}
}

// TestReapHostPorts checks which sandboxes without a record lose their host ports: all in nodelet's own network, at
// once, and in one that other programs use too only those for which the rules were there for ten minutes, and not the
// containers of others.
func TestReapHostPorts(t *testing.T) {
	id := func(digit string) string { return strings.Repeat(digit, 64) }
	running, lost := id("a"), id("b")
	other := "default-" + id("d") // of nerdctl
	bin := t.TempDir()
	list := "#!/bin/sh\ncat <<'END'\n"
	for _, owner := range []string{running, lost, other} {
		list += `-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"net\" id: \"` + owner +
			`\"" -m multiport --dports 80 -j CNI-DN-0` + "\n"
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		writeProgram(t, filepath.Join(bin, name), list+"END\n")
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.plugin("first", pass)
			dir, want := b.store.addresses(), [][]string{{lost, other}}
			if shared {
				dir, want = b.dir, [][]string{nil, {lost}}
			}
			n := b.network(fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"first","ipam":{
				"type":"host-local","dataDir":%q}}]}`, dir))
			for _, w := range want {
				r, err := b.Reap(t.Context(), Alive{Own: n, List: listed(running)})
				if err != nil || !slices.Equal(r.Sandboxes, w) || len(b.calls()) != len(w) {
					t.Errorf("shared %v: got %q, %v and calls %q, want DEL of %q", shared, r.Sandboxes, err, b.calls(), w)
				}
				time.Sleep(abandoned)
			}
		})
	}
}

// TestReapDamagedAddress damages files of addresses: one that a running sandbox has is not given to another sandbox,
// one that is not in use is freed.
func TestReapDamagedAddress(t *testing.T) {
	for name, text := range map[string]string{"emptied": "", "cut": "runn", "garbage": "\x00\x01 not what it was \xff"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.plugin("first", answer)
			n := b.network(fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"first","ipam":{
				"type":"host-local","dataDir":%q}}]}`, b.store.addresses()))
			if err := b.attach("running", n); err != nil {
				t.Fatal(err)
			}
			addresses := filepath.Join(b.store.addresses(), "net")
			if err := os.MkdirAll(addresses, 0o755); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{"lock": "", "10.9.0.2": text, "10.9.0.3": text} {
				if err := os.WriteFile(filepath.Join(addresses, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			r, err := b.Reap(t.Context(), Alive{List: listed("running"), Own: n})
			if err != nil || !slices.Equal(r.Addresses, []string{"10.9.0.3"}) {
				t.Errorf("freed: got %q, %v; want only the address that is on no record", r.Addresses, err)
			}
		})
	}
}

// TestReapEmptyDirectory checks that a directory in which no record could be written, and which could not be removed
// then, is removed by the next clean-up, with a record that is not complete, and that one in use is not.
func TestReapEmptyDirectory(t *testing.T) {
	b := newBench(t)
	for _, id := range []string{"failed", "unfinished", "attaching", "damaged", "listed"} {
		if err := os.MkdirAll(b.store.path(id), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(b.store.path("damaged"), recordFile+".bad"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"unfinished", "attaching"} {
		if err := os.WriteFile(filepath.Join(b.store.path(id), "."+recordFile+".new"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	unlock, err := b.store.lock("attaching")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := b.Reap(t.Context(), Alive{List: listed("listed")}); err != nil {
		t.Fatal(err)
	}
	if got, err := b.store.list(); err != nil || !slices.Equal(got, []string{"attaching", "damaged", "listed"}) {
		t.Errorf("directories: got %q, %v; want all but those of the failed calls", got, err)
	}
}

// TestKilledWhileAttaching checks that an agent that is killed while it attaches a sandbox leaves a record of what it
// has begun; the next one gives it back.
func TestKilledWhileAttaching(t *testing.T) {
	if dir := os.Getenv(crashEnv); dir != "" {
		b := &bench{t: t, dir: dir}
		b.Driver = NewDriver(DriverConfig{Dir: filepath.Join(dir, "state"), BinDirs: []string{dir}})
		_ = b.attach("s1", b.network(chain("first", "slow")))
		return
	}
	b := newBench(t)
	b.plugin("first", answer)
	b.plugin("slow", `[ "$CNI_COMMAND" = ADD ] || exit 0
echo $$ >DIR/slow.pid; mv DIR/slow.pid DIR/slow.begun; exec sleep 600`)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWhileAttaching$")
	cmd.Env = append(os.Environ(), crashEnv+"="+b.dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	for end := time.Now().Add(waittest.Limit); pid == 0 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(b.dir, "slow.begun"))
		_, _ = fmt.Sscan(string(text), &pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if pid == 0 {
		t.Fatal("got no call of the plugin, want one")
	}
	_ = unix.Kill(pid, unix.SIGKILL) // it outlives its agent
	rec, err := b.store.read("s1")
	if err != nil || rec == nil || rec.Whole {
		t.Fatalf("record: got %+v, %v, want an unfinished one", rec, err)
	}
	// The "runtime" of the record was the one that was killed.
	r, err := b.Reap(context.Background(), Alive{List: listed()})
	if err != nil || !slices.Equal(r.Sandboxes, []string{"s1"}) || len(b.kept()) != 0 {
		t.Errorf("reaped: got %+v, %v, want s1; on record: got %q, want none", r, err, b.kept())
	}
	want := "ADD first s1 eth0, ADD slow s1 eth0, DEL slow s1 eth0, DEL first s1 eth0"
	if got := strings.Join(b.calls(), ", "); got != want {
		t.Errorf("calls %s, want %s", got, want)
	}
}
