package volumes

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// TestTwoGroupsOfOneVolume checks that pods with different fsGroups that begin to use a volume at the same time leave
// all its files to one of the groups.
func TestTwoGroupsOfOneVolume(t *testing.T) {
	m := newMigration(t)
	m.oneVolume.driver.Spec.FSGroupPolicy = ptr.To(storagev1.FileFSGroupPolicy)
	m.bind()
	dir := filepath.Join(m.Dir, "state/volumes", m.id+".img")
	for i := range 2000 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	groups := map[types.UID]int64{"uid": 1001, "uid-2": 1002}
	var all sync.WaitGroup
	for uid, group := range groups {
		all.Go(func() {
			r := lunRequest(claimVolume)
			r.Pod.UID = uid
			r.Pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
			if _, err := m.manager.Mount(t.Context(), r, nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	files := map[uint32]int{}
	for i := range 2000 {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, fmt.Sprint(i)), &st); err != nil {
			t.Fatal(err)
		}
		files[st.Gid]++
	}
	if len(files) != 1 || files[1001]+files[1002] != 2000 {
		t.Errorf("got this many files by group: %v, want all in one of %v", files, groups)
	}
	m.unmount(t, "uid-2")
	m.takeDown(t, "uid")
}
