package userns

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// disk holds the files of pods.
type disk map[types.UID]string

func (d disk) config(c Config) Config {
	c.Files = d
	return c
}

func (d disk) Pods() ([]types.UID, error) { return slices.Collect(maps.Keys(d)), nil }

func (d disk) ReadPodFile(pod types.UID, _ string) ([]byte, error) {
	if text, ok := d[pod]; ok {
		return []byte(text), nil
	}
	return nil, fs.ErrNotExist
}

func (d disk) WritePodFile(pod types.UID, _ string, content []byte) error {
	if pod == "unwritable" {
		return errors.New("disk full")
	}
	d[pod] = string(content)
	return nil
}

func (d disk) RemovePodFile(pod types.UID, _ string) error {
	if pod == "stuck" {
		return errors.New("input/output error")
	}
	delete(d, pod)
	return nil
}

func newTable(t *testing.T, d disk, c Config, pods ...types.UID) *Table {
	t.Helper()
	table, bad, err := New(d.config(c), pods)
	if err != nil || len(bad) > 0 {
		t.Fatal(err, bad)
	}
	return table
}

func TestRangesAreApart(t *testing.T) {
	d := disk{}
	table := newTable(t, d, Config{IDsPerPod: Unit, MaxPods: 110})
	owner := map[uint32]types.UID{}
	for i := range 300 {
		pod := types.UID(fmt.Sprint("pod", i))
		r, err := table.Of(pod)
		if err != nil || r.Length != Unit || r.First < Unit || r.First%Unit != 0 {
			t.Fatalf("%s: got %v, %v, want an aligned range above the host's", pod, r, err)
		}
		if again, err := table.Of(pod); again != r || err != nil {
			t.Fatalf("%s: got %v, then %v (%v), want the same", pod, r, again, err)
		}
		if other, taken := owner[r.First]; taken {
			t.Fatalf("%s and %s: got both %v, want ranges of their own", pod, other, r)
		}
		owner[r.First] = pod
	}
	want := fileText(`{"hostId":65536,"containerId":0,"length":65536}`)
	if d["pod0"] != want {
		t.Errorf("got file %s, want %s", d["pod0"], want)
	}
}

// fileText returns the content of a file with the same mapping for users and groups.
func fileText(mapping string) string { return mixedText(mapping, mapping) }

// mixedText returns the content of a file with one mapping for users and one for groups.
func mixedText(users, groups string) string {
	return `{"uidMappings":[` + users + `],"gidMappings":[` + groups + `]}`
}

func TestRestartKeepsRanges(t *testing.T) {
	d := disk{}
	first := newTable(t, d, Config{IDsPerPod: Unit})
	a, _ := first.Of("a")
	second := newTable(t, d, Config{IDsPerPod: Unit}, "a", "none")
	b, err := second.Of("b")
	if err != nil || b.First == a.First {
		t.Errorf("got a with %v and b with %v (%v), want different ranges", a, b, err)
	}
	if again, _ := second.Of("a"); again != a {
		t.Errorf("a: got %v, then %v, want the same", a, again)
	}
}

// TestLengthChanges checks that running pods keep their ranges when idsPerPod changes.
func TestLengthChanges(t *testing.T) {
	d := disk{}
	small := newTable(t, d, Config{IDsPerPod: Unit})
	for _, pod := range []types.UID{"a", "b", "c"} {
		if _, err := small.Of(pod); err != nil {
			t.Fatal(err)
		}
	}
	big := newTable(t, d, Config{IDsPerPod: 2 * Unit}, "a", "b", "c")
	r, err := big.Of("d") // a to c have 1 to 3 units, so that 4 and 5 are next
	if err != nil || r != (Range{4 * Unit, 2 * Unit}) {
		t.Errorf("d: got %v: %v, want %v", r, err, (Range{4 * Unit, 2 * Unit}))
	}
}

func TestPoolRunsOutAndRefills(t *testing.T) {
	table := newTable(t, disk{}, Config{IDsPerPod: Unit, Pool: Range{10 * Unit, 2 * Unit}, MaxPods: 2})
	for _, pod := range []types.UID{"a", "b"} {
		if r, err := table.Of(pod); err != nil || r.First < 10*Unit || r.First >= 12*Unit {
			t.Fatal(r, err)
		}
	}
	if _, err := table.Of("c"); err == nil || !strings.Contains(err.Error(), "all 2 ranges are in use") {
		t.Errorf("c: got %v, want that all ranges are in use", err)
	}
	for _, pod := range []types.UID{"a", "unknown"} {
		if err := table.Release(pod); err != nil {
			t.Error(err)
		}
	}
	if r, err := table.Of("c"); err != nil || r.First != 10*Unit {
		t.Errorf("c: got %v, %v, want the range that was released", r, err)
	}
}

// TestReleasedRange checks that a range that was released belongs to nobody any more, also after a restart, and that it
// is not given away as long as the file of its pod is there.
func TestReleasedRange(t *testing.T) {
	d, pool := disk{}, Config{IDsPerPod: Unit, Pool: Range{10 * Unit, Unit}, MaxPods: 1}
	table := newTable(t, d, pool)
	for _, pod := range []types.UID{"a", "stuck"} {
		if _, err := table.Of(pod); err != nil {
			t.Fatal(err)
		}
		if err := table.Release(pod); (err != nil) != (pod == "stuck") {
			t.Errorf("release of %s: got %v", pod, err)
		}
	}
	if r, err := table.Of("b"); err == nil {
		t.Errorf("b: got %v, which the file of another pod still has", r)
	}
	if len(d) != 1 {
		t.Errorf("got files %v, want that of stuck alone", d)
	}
	delete(d, "stuck")
	if _, err := newTable(t, d, pool, "a", "stuck").Of("b"); err != nil {
		t.Errorf("b after a restart: %v", err)
	}
}

func TestWriteFails(t *testing.T) {
	table := newTable(t, disk{}, Config{IDsPerPod: Unit})
	if r, err := table.Of("unwritable"); err == nil {
		t.Errorf("got %v, which a restart would give to another pod", r)
	}
	if len(table.ranges) != 0 {
		t.Errorf("taken: got %v, want none", table.ranges)
	}
}

func TestBadPools(t *testing.T) {
	for _, c := range []Config{
		{IDsPerPod: 0},
		{IDsPerPod: 1000},
		{IDsPerPod: Unit, Pool: Range{0, Unit}},
		{IDsPerPod: Unit, Pool: Range{Unit, Unit}, MaxPods: 2},
		{IDsPerPod: Unit, Pool: Range{100000, Unit}},
		{IDsPerPod: 2 * Unit, Pool: Range{2 * Unit, 3 * Unit}},
		{IDsPerPod: Unit, Pool: Range{65535 * Unit, 2 * Unit}},
		{IDsPerPod: Unit, Pool: Range{65535 * Unit, Unit}},
	} {
		if _, _, err := New(disk{}.config(c), nil); err == nil {
			t.Errorf("%+v: got no error", c)
		}
	}
}

// TestTooManyPods checks that the error about the default pool names what to change. It comes from no user's IDs.
func TestTooManyPods(t *testing.T) {
	_, _, err := New(disk{}.config(Config{IDsPerPod: 1024 * Unit, MaxPods: 110}), nil)
	const want = "userNamespaces.idsPerPod 67108864 leaves IDs for 62 pods, but maxPods is 110: lower one of them"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestLastRange checks that no pod gets the largest number of 32 bits, for which the kernel has no mapping.
func TestLastRange(t *testing.T) {
	for _, n := range []uint32{Unit, 3 * Unit} {
		table := newTable(t, disk{}, Config{IDsPerPod: n})
		table.next = table.size - 1
		r, err := table.Of("last")
		if err != nil || r.end() > math.MaxUint32 || r.end()+uint64(n) <= math.MaxUint32 {
			t.Errorf("%d IDs for each pod: the last range is %v, %v; want the last one without ID %d", n, r, err,
				uint32(math.MaxUint32))
		}
	}
}

// TestBadFiles checks that a damaged file neither stops the agent nor lets its pod run with the IDs of another pod or
// of the host. No other pod gets IDs that may be those of its containers, until these have ended.
func TestBadFiles(t *testing.T) {
	other := fileText(`{"hostId":131072,"containerId":0,"length":65536}`)
	for _, text := range []string{
		``, `{`, `{}`, "\x00\x00",
		fileText(`{"hostId":0,"containerId":0,"length":65536}`),
		mixedText(`{"hostId":65536,"containerId":0,"length":65536}`, `{"hostId":131072,"containerId":0,"length":65536}`),
		fileText(`{"hostId":65536,"containerId":1,"length":65536}`),
		fileText(`{"hostId":65536,"containerId":0,"length":1}`),
		fileText(`{"hostId":4294901760,"containerId":0,"length":131072}`),
		fileText(`{"hostId":4294901760,"containerId":0,"length":65536}`),
	} {
		d := disk{"bad": text, "other": other}
		table, bad, err := New(d.config(Config{IDsPerPod: Unit}), []types.UID{"other", "bad"})
		if err != nil || len(bad) != 1 {
			t.Errorf("%s: got %v %v, want one", text, bad, err)
			continue
		}
		if r, err := table.Of("bad"); err == nil {
			t.Errorf("%s: got %v, want an error", text, r)
		}
		if r, err := table.Of("new"); err == nil || !strings.Contains(err.Error(), "pod bad") {
			t.Errorf("%s: another pod got %v, %v, want an error about the pod whose IDs are not known", text, r, err)
		}
		if err := table.Release("bad"); err != nil {
			t.Error(err)
		}
		if _, err := table.Of("new"); err != nil {
			t.Errorf("%s: after the pod has ended: %v", text, err)
		}
	}
}

// TestSameRange checks that of pods whose files name the same IDs the first has them, and that these are taken until
// the last of the pods has ended. They are known, so that other pods get other IDs meanwhile.
func TestSameRange(t *testing.T) {
	text := fileText(`{"hostId":65536,"containerId":0,"length":65536}`)
	d, pods := disk{}, []types.UID{"first", "second", "third"}
	for _, pod := range pods {
		d[pod] = text
	}
	table, bad, err := New(d.config(Config{IDsPerPod: Unit}), pods)
	if err != nil || len(bad) != 2 {
		t.Fatal(bad, err)
	}
	for i, pod := range pods {
		table.next = 0
		if r, err := table.Of(types.UID(fmt.Sprint("new", i))); err != nil || r.First == Unit {
			t.Errorf("while %s is there: got %v, %v, want other IDs", pod, r, err)
		}
		for _, p := range pods[i:] {
			if _, err := table.Of(p); (err == nil) != (p == pod) {
				t.Errorf("%s of %v: got %v, want that the first alone may use the IDs", p, pods[i:], err)
			}
		}
		if err := table.Release(pod); err != nil {
			t.Error(err)
		}
	}
	table.next = 0
	if r, err := table.Of("last"); err != nil || r.First != Unit {
		t.Errorf("after the last pod has ended: got %v, %v, want its IDs", r, err)
	}
}

// TestFileIsReadLater checks that a file that could not be read at the start counts as soon as it can be read, or is
// gone.
func TestFileIsReadLater(t *testing.T) {
	first := fileText(`{"hostId":65536,"containerId":0,"length":65536}`)
	d := disk{"bad": "", "worse": ""}
	table, _, err := New(d.config(Config{IDsPerPod: Unit}), []types.UID{"bad", "worse"})
	if err != nil {
		t.Fatal(err)
	}
	d["bad"] = first
	delete(d, "worse")
	if r, err := table.Of("new"); err != nil || r.First == Unit {
		t.Errorf("new: got %v, %v, want another range than that of bad", r, err)
	}
	if r, err := table.Of("bad"); err != nil || r.First != Unit {
		t.Errorf("bad: got %v, %v, want the range of its file", r, err)
	}
}

func TestParseSubIDs(t *testing.T) {
	for text, want := range map[string]Range{
		"0: kubelet 65536 7208960\n": {65536, 7208960},
		"0: kubelet 65536 7208960":   {65536, 7208960},
		"":                           {},
		"nonsense":                   {},
		"0: kubelet 65536 0\n":       {},
		"0: kubelet -1 5\n":          {},
		"0: kubelet 65536 65536\n1: kubelet 231072 65536\n": {},
	} {
		got, err := parseSubIDs(text)
		if got != want || (err == nil) != (want != Range{}) {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add(fileText(`{"hostId":65536,"containerId":0,"length":65536}`))
	f.Add(`{`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parse([]byte(text))
		if err == nil && (r.First < Unit || r.Length == 0 || r.end() > math.MaxUint32) {
			t.Errorf("%q: got %v, want a range of the host's IDs", text, r)
		}
	})
}
