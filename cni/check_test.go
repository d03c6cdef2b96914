package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/testbed"
)

// TestLostAddress checks, with messages of the kernel, that a lost address counts as trouble, but neither that which
// the kernel itself gave to an interface, nor one that another interface has, nor one of a dummy device. Each pod that
// ends takes such ones with it, or each service that is deleted.
func TestLostAddress(t *testing.T) {
	testbed.NeedPrograms(t, map[string]string{"ip": "iproute2"})
	if _, err := os.Stat("/proc/net/if_inet6"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("needs IPv6")
	}
	runtime.LockOSThread() // for good: the thread and its network end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	socket, err := openAddresses()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	// next reads messages until the next one of a type, and returns it.
	next := func(kind uint16) []byte {
		for b := make([]byte, 16<<10); ; {
			n, err := socket.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			if messages, err := syscall.ParseNetlinkMessage(b[:n]); err != nil || messages[0].Header.Type == kind {
				return b[:n]
			}
		}
	}
	sh(t, "ip", "link", "add", "host", "type", "veth", "peer", "name", "pod")
	sh(t, "ip", "link", "set", "host", "up")
	sh(t, "ip", "link", "set", "pod", "up")
	next(unix.RTM_NEWADDR)
	sh(t, "ip", "link", "del", "pod")
	if lostAddress(next(unix.RTM_DELADDR), isDummy) {
		t.Error("the interface of a pod has gone: got a lost address, want none")
	}
	for _, ip := range []string{"10.9.1.1/32", "fd00::1/128"} { // the plugin ptp gives it to the host's end of each pod
		for _, pod := range []string{"pod1", "pod2"} {
			sh(t, "ip", "link", "add", pod, "type", "veth", "peer", "name", pod+"-peer")
			sh(t, "ip", "addr", "add", ip, "dev", pod, "nodad")
			next(unix.RTM_NEWADDR)
		}
		for _, pod := range []string{"pod1", "pod2"} {
			sh(t, "ip", "link", "del", pod)
			if got, want := lostAddress(next(unix.RTM_DELADDR), isDummy), pod == "pod2"; got != want {
				t.Errorf("%s has gone with %s: got a lost address %v, want %v", pod, ip, got, want)
			}
		}
	}
	for _, kind := range []string{"dummy", "bridge"} {
		if err := exec.Command("ip", "link", "add", "ipvs", "type", kind).Run(); err != nil && kind == "dummy" {
			t.Log("the kernel has no dummy devices")
			continue
		}
		sh(t, "ip", "addr", "add", "10.96.0.1/32", "dev", "ipvs")
		next(unix.RTM_NEWADDR)
		sh(t, "ip", "addr", "del", "10.96.0.1/32", "dev", "ipvs")
		gone := next(unix.RTM_DELADDR)
		if got := lostAddress(gone, isDummy); got != (kind != "dummy") {
			t.Errorf("a device of kind %s has lost an address: got %v", kind, got)
		}
		if lostAddress(gone, func(uint32) bool { return true }) {
			t.Error("a dummy device has lost an address: got a lost address, want none")
		}
		sh(t, "ip", "link", "del", "ipvs")
	}
	sh(t, "ip", "link", "add", "bridge", "type", "bridge")
	sh(t, "ip", "addr", "add", "10.9.0.1/24", "dev", "bridge")
	next(unix.RTM_NEWADDR)
	sh(t, "ip", "addr", "del", "10.9.0.1/24", "dev", "bridge")
	sh(t, "ip", "addr", "add", "10.9.0.1/24", "dev", "bridge")
	if !lostAddress(next(unix.RTM_DELADDR), isDummy) {
		t.Error("the bridge has its address again: got no lost address, want one: its routes were lost, too")
	}
	next(unix.RTM_NEWADDR)
	sh(t, "ip", "link", "del", "bridge")
	if !lostAddress(next(unix.RTM_DELADDR), isDummy) {
		t.Error("the bridge has gone with its address: got no lost address, want one")
	}
}

// TestTroubleWithoutEnd checks that the periodic check does not wait for the end of changes.
func TestTroubleWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.plugin("first", strings.TrimSuffix(answer, "exit 0\n")+`[ "$CNI_COMMAND" != CHECK ]`)
		if err := b.attach("s1", b.network(chain("first"))); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begun, found := time.Now(), time.Duration(0)
		c := NewChecker(CheckerConfig{Driver: b.Driver, Log: discard(), Period: 10 * time.Minute, Found: func(Pod, error) {
			found = time.Since(begun)
		}})
		go c.Run(ctx)
		for range 11 * 60 {
			time.Sleep(time.Second)
			c.Soon()
		}
		synctest.Wait()
		if found != c.Period {
			t.Errorf("got the first check after %v, want it after %v", found, c.Period)
		}
	})
}

// TestCheckOfNextSandbox checks that the problem of a pod ends with the check of its next sandbox, and that this is
// reported.
func TestCheckOfNextSandbox(t *testing.T) {
	b := newBench(t)
	b.plugin("first", strings.TrimSuffix(answer, "exit 0\n")+
		`[ "$CNI_COMMAND" = CHECK ] && [ "$CNI_CONTAINERID" = s1 ] && exit 1; exit 0`)
	var passed []bool
	c := NewChecker(CheckerConfig{Driver: b.Driver, Log: discard(), Found: func(_ Pod, err error) {
		passed = append(passed, err == nil)
	}})
	for _, sandbox := range []string{"s1", "s2"} {
		rec := b.record(sandbox)
		rec.Pod.UID = "pod"
		if err := b.Attach(t.Context(), rec, []Wanted{{Network: b.network(chain("first")), IfName: "eth0"}}); err != nil {
			t.Fatal(err)
		}
		c.round(t.Context())
		if got, want := c.Problem("pod") == "", sandbox == "s2"; got != want {
			t.Errorf("sandbox %s passes: got %v, want %v: %s", sandbox, got, want, c.Problem("pod"))
		}
		if err := b.Detach(t.Context(), sandbox, "", nil); err != nil {
			t.Fatal(err)
		}
	}
	if want := []bool{false, true}; !slices.Equal(passed, want) {
		t.Errorf("reported that the check passes: got %v, want %v", passed, want)
	}
}

// TestCheckOfPodsAlone checks that what another program has attached is not checked: there is no pod for the report.
func TestCheckOfPodsAlone(t *testing.T) {
	b := newBench(t)
	b.plugin("first", strings.TrimSuffix(answer, "exit 0\n")+`[ "$CNI_COMMAND" = CHECK ] && exit 1; exit 0`)
	pods := map[string]Pod{"s1": {Namespace: "default", Name: "p", UID: "u"}, "c1": {Name: "c1"}, "c2": {}}
	for sandbox, pod := range pods {
		rec := b.record(sandbox)
		rec.Pod = pod
		if err := b.Attach(t.Context(), rec, []Wanted{{Network: b.network(chain("first")), IfName: "eth0"}}); err != nil {
			t.Fatal(err)
		}
	}
	var found []string
	NewChecker(CheckerConfig{Driver: b.Driver, Log: discard(), Found: func(p Pod, _ error) {
		found = append(found, p.Name)
	}}).round(t.Context())
	if !slices.Equal(found, []string{"p"}) {
		t.Errorf("got problems of %q, want p", found)
	}
}

// TestCheckOfRemovedSandbox checks that it is no problem of a pod if a DEL comes between the list and its sandbox's
// turn, whether the DEL ends or fails.
func TestCheckOfRemovedSandbox(t *testing.T) {
	b := newBench(t)
	b.plugin("first", strings.TrimSuffix(answer, "exit 0\n")+
		`case $CNI_COMMAND-$CNI_CONTAINERID in CHECK-* | DEL-s3) exit 1; esac; exit 0`)
	for _, sandbox := range []string{"s1", "s2", "s3"} {
		if err := b.attach(sandbox, b.network(chain("first"))); err != nil {
			t.Fatal(err)
		}
	}
	var found []string
	c := NewChecker(CheckerConfig{Driver: b.Driver, Log: discard(), Found: func(p Pod, _ error) {
		if found = append(found, p.UID); len(found) > 1 {
			return
		}
		if err := b.Detach(t.Context(), "s2", "", nil); err != nil {
			t.Error(err)
		}
		if err := b.Detach(t.Context(), "s3", "", nil); err == nil {
			t.Error("DEL of s3: got no error, want that of the plugin")
		}
	}})
	c.round(t.Context())
	if want := []string{"uid-s1"}; !slices.Equal(found, want) {
		t.Errorf("got problems of %v, want %v", found, want)
	}
	for _, uid := range []string{"uid-s2", "uid-s3"} {
		if got := c.Problem(uid); got != "" {
			t.Errorf("pod %s: got %q, want no problem", uid, got)
		}
	}
	if got, want := b.kept(), []string{"s1", "s3"}; !slices.Equal(got, want) {
		t.Errorf("got the records %v, want %v", got, want)
	}
}

// TestAddressesWithoutCheck checks that a runtime which asks for the addresses of its sandboxes with CHECK, as CRI-O
// does at its start, gets them while the agent is away and the network of a pod is broken: the agent reports that.
func TestAddressesWithoutCheck(t *testing.T) {
	s := newService(t)
	list, err := libcni.NetworkConfFromFile(filepath.Join(s.conf, installedFile))
	if err != nil {
		t.Fatal(err)
	}
	crio := libcni.NewCNIConfigWithCacheDir([]string{s.bin}, t.TempDir(), nil)
	sandbox := &libcni.RuntimeConf{ContainerID: "s1", NetNS: "/proc/self/ns/net", IfName: "eth0"}
	if _, err := crio.AddNetworkList(t.Context(), list, sandbox); err != nil {
		t.Fatal(err)
	}
	s.stop()
	s.plugin("first", "exit 1")
	if err := crio.CheckNetworkList(t.Context(), list, sandbox); err != nil {
		t.Errorf("CHECK: got %v, want no error", err)
	}
	result, err := crio.GetNetworkListCachedResult(list, sandbox)
	if text := fmt.Sprint(result); err != nil || !strings.Contains(text, "10.9.0.2") {
		t.Errorf("got %s and %v, want 10.9.0.2", text, err)
	}
}
