package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Unit is the smallest length of a range; every length is a multiple of it.
const Unit = 65536

// idsEnd is the first number that is no ID of the host. The kernel takes the largest number of 32 bits for "no ID" and
// maps no range that contains it.
const idsEnd = math.MaxUint32

// File is the file in a pod's directory that holds its range.
const File = "userns"

// Range is a range of IDs of the host, for both users and groups. The first is root in the pod.
type Range struct{ First, Length uint32 }

// end returns the first ID after the range.
func (r Range) end() uint64 { return uint64(r.First) + uint64(r.Length) }

// Config says which ranges may be allocated.
type Config struct {
	// IDsPerPod is KubeletConfiguration userNamespaces.idsPerPod, a multiple of Unit.
	IDsPerPod uint32
	// Pool has the IDs from which ranges are allocated; zero means all IDs except the first IDsPerPod and those after the
	// last multiple of IDsPerPod.
	Pool Range
	// MaxPods is the number of pods for which the pool must be large enough.
	MaxPods int
	Files   PodFiles
}

// Table allocates ranges. It is safe for use by many goroutines.
type Table struct {
	cfg         Config
	first, size uint32 // the pool, counted in ranges

	mu sync.Mutex
	// ranges has the ranges of pods, including those outside the pool.
	ranges map[types.UID]Range
	// refused has the pods whose file cannot be used, with the range that it names, which another pod has; it is zero if
	// it is not known. Their containers may run with it.
	refused map[types.UID]Range
	next    uint32
}

// New checks the pool and reads the ranges of the pods on the disk. For each file that cannot be used New returns an
// error beside the table. Of returns it again for that pod, and if the range is not known, for each pod without one,
// until the file can be used or the pod is released.
func New(cfg Config, pods []types.UID) (*Table, []error, error) {
	t := &Table{cfg: cfg, ranges: map[types.UID]Range{}, refused: map[types.UID]Range{}}
	if err := t.setPool(); err != nil {
		return nil, nil, err
	}
	var bad []error
	for _, pod := range pods {
		if _, err := t.read(pod); err != nil && !errors.Is(err, fs.ErrNotExist) {
			bad = append(bad, err)
		}
	}
	return t, bad, nil
}

func (t *Table) setPool() error {
	n, pool := t.cfg.IDsPerPod, t.cfg.Pool
	if n == 0 || n%Unit != 0 {
		return fmt.Errorf("userNamespaces.idsPerPod %d is not a multiple of %d", n, Unit)
	}
	if pool == (Range{}) {
		pool = Range{First: n, Length: idsEnd/n*n - n}
		if pods := pool.Length / n; int64(pods) < int64(t.cfg.MaxPods) {
			return fmt.Errorf("userNamespaces.idsPerPod %d leaves IDs for %d pods, but maxPods is %d: lower one of them",
				n, pods, t.cfg.MaxPods)
		}
	}
	switch {
	case pool.First < n || pool.First%n != 0 || pool.Length%n != 0:
		return fmt.Errorf("the subordinate IDs of the user kubelet, %d from %d, must begin at a multiple of "+
			"userNamespaces.idsPerPod (%d) above 0 and their number must be a multiple of it; change /etc/subuid and "+
			"/etc/subgid", pool.Length, pool.First, n)
	case pool.end() > idsEnd:
		return fmt.Errorf("the subordinate IDs of the user kubelet, %d from %d, exceed the largest ID that the kernel maps, "+
			"%d; give the user at least %d IDs fewer in /etc/subuid and /etc/subgid", pool.Length, pool.First, idsEnd-1, n)
	case int64(pool.Length/n) < int64(t.cfg.MaxPods):
		return fmt.Errorf("the subordinate IDs of the user kubelet, %d from %d, are enough for %d pods, but maxPods is %d: "+
			"add more in /etc/subuid and /etc/subgid", pool.Length, pool.First, pool.Length/n, t.cfg.MaxPods)
	}
	t.first, t.size = pool.First/n, pool.Length/n
	return nil
}

// Of returns the range of a pod, and allocates one if the pod has none.
func (t *Table) Of(pod types.UID) (Range, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r, known := t.ranges[pod]; known {
		return r, nil
	}
	r, err := t.read(pod)
	if !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	if err := t.unknown(); err != nil {
		return Range{}, fmt.Errorf("allocate IDs for the user namespace of pod %s: those of another pod are not known "+
			"until it is deleted and its volumes are unmounted: %w", pod, err)
	}
	r, ok := t.free()
	if !ok {
		return Range{}, fmt.Errorf("allocate IDs for the user namespace of pod %s: all %d ranges are in use", pod, t.size)
	}
	content, err := json.Marshal(fileOf(r))
	if err == nil {
		err = t.cfg.Files.WritePodFile(pod, File, content)
	}
	if err != nil {
		return Range{}, fmt.Errorf("write the user namespace of pod %s: %w", pod, err)
	}
	t.next = r.First/t.cfg.IDsPerPod - t.first + 1
	t.ranges[pod] = r
	return r, nil
}

// unknown returns an error about a pod whose range is not known, if there is one.
func (t *Table) unknown() error {
	for pod, r := range t.refused {
		if r != (Range{}) {
			continue
		}
		_, err := t.read(pod)
		if r, still := t.refused[pod]; still && r == (Range{}) {
			return err
		}
	}
	return nil
}

// free returns a range of the pool that no pod uses. It starts after the last one allocated, so that the IDs of a
// removed pod are not used again at once.
func (t *Table) free() (Range, bool) {
	for i := range t.size {
		at := (t.next + i) % t.size
		r := Range{First: (t.first + at) * t.cfg.IDsPerPod, Length: t.cfg.IDsPerPod}
		_, taken := holder(t.ranges, r)
		_, shared := holder(t.refused, r)
		if !taken && !shared {
			return r, true
		}
	}
	return Range{}, false
}

// Release frees the range of a pod of which nothing runs any more, and removes its file: the range belongs to another
// pod from then on.
func (t *Table) Release(pod types.UID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.ranges[pod]
	_, refused := t.refused[pod]
	if !known && !refused {
		return nil
	}
	if err := t.cfg.Files.RemovePodFile(pod, File); err != nil {
		return fmt.Errorf("free the user namespace of pod %s: %w", pod, err)
	}
	delete(t.ranges, pod)
	delete(t.refused, pod)
	return nil
}

// read adds the range in the file of a pod to the table.
func (t *Table) read(pod types.UID) (Range, error) {
	delete(t.refused, pod)
	content, err := t.cfg.Files.ReadPodFile(pod, File)
	if errors.Is(err, fs.ErrNotExist) {
		return Range{}, err
	}
	var r Range
	if err == nil {
		r, err = parse(content)
	}
	if other, taken := holder(t.ranges, r); taken {
		err = fmt.Errorf("pod %s already has the IDs from %d", other, t.ranges[other].First)
	}
	if err != nil {
		t.refused[pod] = r
		return Range{}, fmt.Errorf("read user namespace of pod %s: file %s: %w", pod, File, err)
	}
	t.ranges[pod] = r
	return r, nil
}

// holder returns a pod whose range overlaps r, if there is one.
func holder(ranges map[types.UID]Range, r Range) (pod types.UID, taken bool) {
	for pod, has := range ranges {
		if uint64(has.First) < r.end() && uint64(r.First) < has.end() {
			return pod, true
		}
	}
	return "", false
}

// file is the content of File, in the kubelet's format.
type file struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

func fileOf(r Range) file {
	all := []mapping{{HostID: r.First, Length: r.Length}}
	return file{UIDs: all, GIDs: all}
}

// parse rejects a range that does not isolate the pod from the host.
func parse(content []byte) (Range, error) {
	var f file
	if err := json.Unmarshal(content, &f); err != nil {
		return Range{}, err
	}
	if len(f.UIDs) != 1 || len(f.GIDs) != 1 || f.UIDs[0] != f.GIDs[0] {
		return Range{}, errors.New("want one mapping, the same for users and groups")
	}
	m := f.UIDs[0]
	switch {
	case m.ContainerID != 0:
		return Range{}, fmt.Errorf("the mapping begins at ID %d of the container, want 0", m.ContainerID)
	case m.HostID < Unit || m.HostID%Unit != 0 || m.Length == 0 || m.Length%Unit != 0:
		return Range{}, fmt.Errorf("%d IDs from %d: both must be multiples of %d", m.Length, m.HostID, Unit)
	}
	r := Range{First: m.HostID, Length: m.Length}
	if r.end() > idsEnd {
		return Range{}, fmt.Errorf("%d IDs from %d exceed the largest ID that the kernel maps, %d; delete the pod",
			m.Length, m.HostID, idsEnd-1)
	}
	return r, nil
}

// parseSubIDs reads what getsubids(1) prints for a user: one line such as "0: kubelet 65536 7208960".
func parseSubIDs(text string) (Range, error) {
	var index int
	var user string
	var r Range
	n, err := fmt.Sscanf(text, "%d: %s %d %d", &index, &user, &r.First, &r.Length)
	if err != nil || n != 4 || r.Length == 0 {
		return Range{}, fmt.Errorf("getsubids printed %q, want a line such as \"0: kubelet 65536 7208960\"", text)
	}
	var more int
	if n, _ := fmt.Sscanf(text, "%d: %s %d %d\n%d:", &index, &user, &r.First, &r.Length, &more); n == 5 {
		return Range{}, errors.New("the user kubelet has more than one range of subordinate IDs; keep only one in " +
			"/etc/subuid and /etc/subgid")
	}
	return r, nil
}
