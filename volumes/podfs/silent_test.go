package podfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/test/ownmounts"
	"github.com/nodelet/nodelet/test/waittest"
)

// mountSilent mounts a file system whose unmount waits for an answer of its server, which gives none. The server is
// another process, which ends soon: nothing else ends the wait.
func mountSilent(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o750); err != nil {
		t.Fatal(err)
	}
	device := loopDevice(t)
	connection, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	ownmounts.Need(t, "FUSE", err)
	defer connection.Close()
	server := exec.Command("sleep", "600") // longer than the test waits
	server.ExtraFiles = []*os.File{connection}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", connection.Fd())
	err = unix.Mount(device, path, "fuseblk", 0, options)
	for try := 0; errors.Is(err, unix.EBUSY) && try < claimTries; try++ { // as in mountDevice
		time.Sleep(50 * time.Millisecond)
		err = unix.Mount(device, path, "fuseblk", 0, options)
	}
	ownmounts.Need(t, "FUSE on block devices", err)
	request := make([]byte, 1<<16)
	if _, err := unix.Read(int(connection.Fd()), request); err != nil {
		t.Fatal(err)
	}
	var answer bytes.Buffer // to FUSE_INIT: the header and version 7.31
	for _, v := range []any{
		[2]uint32{16 + 64}, binary.NativeEndian.Uint64(request[8:]), [5]uint32{7, 31}, [11]uint32{4096},
	} {
		if err := binary.Write(&answer, binary.NativeEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := unix.Write(int(connection.Fd()), answer.Bytes()); err != nil {
		t.Fatal(err)
	}
}

// TestUnmountGivesServerUp checks that the end of a pod waits only so long for the server of its share.
func TestUnmountGivesServerUp(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	v.serverTimeout = time.Second
	pod := testPod()
	path := filepath.Join(v.podsDir, string(pod.UID), "volumes/kubernetes.io~nfs/share")
	mountSilent(t, path)
	ended := make(chan error, 1)
	go func() { ended <- v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.NFS, "share"}) }()
	select {
	case err := <-ended:
		if _, there := os.Lstat(path); err != nil || !errors.Is(there, os.ErrNotExist) {
			t.Errorf("got %v and the directory: %v, want both gone", err, there)
		}
	case <-time.After(waittest.Limit):
		t.Error("got an unmount that waits for the server, want it to give up")
	}
}
