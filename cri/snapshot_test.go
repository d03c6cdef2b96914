package cri_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// look takes a snapshot and checks which calls it cost besides the two lists.
func look(t *testing.T, rt *fake.Runtime, c *cri.Client, prev *cri.Snapshot, sandboxStatuses, containerStatuses int,
) *cri.Snapshot {
	t.Helper()
	rt.ResetCalls()
	s, err := c.Snapshot(t.Context(), "uid-web", prev)
	if err != nil {
		t.Fatal(err)
	}
	checkCost(t, rt, 1, sandboxStatuses, containerStatuses)
	return s
}

// checkCost checks how many lists of each kind and how many statuses were asked for since the last ResetCalls.
func checkCost(t *testing.T, rt *fake.Runtime, lists, sandboxStatuses, containerStatuses int) {
	t.Helper()
	got := rt.Verbs()
	if got["ListPodSandbox"] != lists || got["ListContainers"] != lists ||
		got["PodSandboxStatus"] != sandboxStatuses || got["ContainerStatus"] != containerStatuses {
		t.Errorf("cost %v, want %d of each list, %d sandbox and %d container statuses", got, lists, sandboxStatuses,
			containerStatuses)
	}
}

func find(s *cri.Snapshot, id string) cri.Container {
	return s.Containers[slices.IndexFunc(s.Containers, func(c cri.Container) bool { return c.Id == id })]
}

// TestImagesInUseCost checks that the images of image volumes come from the statuses that a snapshot has read: the
// runtime is asked only for those of containers that no snapshot has, and once.
func TestImagesInUseCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		sandbox := runSandbox(t, c, "web", 0)
		with := containerConfig("web", "app", 0)
		with.Mounts = []*runtimeapi.Mount{{ContainerPath: "/data", Image: &runtimeapi.ImageSpec{Image: "sha256:data"}}}
		app, err := c.CreateContainer(t.Context(), sandbox, with, sandboxConfig("web", 0))
		check(t, err)
		look(t, rt, c, nil, 1, 1)
		ask := func(statuses int, want bool) {
			t.Helper()
			rt.ResetCalls()
			used, err := c.ImagesInUse(t.Context())
			if err != nil || used["sha256:data"] != want {
				t.Errorf("images in use: got %v, %v, want that of the volume: %t", used, err, want)
			}
			if got := rt.Verbs()["ContainerStatus"]; got != statuses {
				t.Errorf("images in use: asked for %d container statuses, want %d", got, statuses)
			}
		}
		ask(0, true)
		createContainer(t, c, sandbox, "web", "side", 0)
		ask(1, true)
		ask(0, true)
		check(t, c.RemoveContainer(t.Context(), app))
		ask(0, false)
	})
}

// TestSnapshotCost takes a snapshot at each step of a pod: each asks only for what may have changed.
func TestSnapshotCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		runSandbox(t, c, "other", 0)
		s := look(t, rt, c, nil, 0, 0)
		sandbox := runSandbox(t, c, "web", 0)
		s = look(t, rt, c, s, 1, 0)
		if s.Sandboxes[0].Network.Ip == "" {
			t.Error("the address of the pod: got none, want one")
		}
		app := createContainer(t, c, sandbox, "web", "app", 0)
		s = look(t, rt, c, s, 0, 1)
		check(t, c.StartContainer(t.Context(), app))
		s = look(t, rt, c, s, 0, 1)
		startContainer(t, c, sandbox, "web", "side", 0)
		s = look(t, rt, c, s, 0, 1)
		s = look(t, rt, c, s, 0, 0)

		check(t, c.UpdateContainerResources(t.Context(), app, &runtimeapi.LinuxContainerResources{CpuShares: 99}))
		s = look(t, rt, c, s, 0, 2)
		if find(s, app).Resources.Linux.CpuShares != 99 {
			t.Error("the resources of the container: got the old ones, want the new")
		}
		s = look(t, rt, c, s, 0, 0)

		matches := func() bool {
			pods, err := c.Relist(t.Context())
			check(t, err)
			i := slices.IndexFunc(pods, func(p cri.PodSummary) bool { return p.UID == s.UID })
			return s.Matches(pods[i].Fingerprint)
		}
		rt.ExitContainer(app, 137, "Error")
		s = look(t, rt, c, s, 0, 1)
		if matches() {
			t.Error("after the first look at an exit: got a match, want none before the reason has been read again")
		}
		rt.SetReason(app, "OOMKilled")
		s = look(t, rt, c, s, 0, 1)
		if !matches() {
			t.Error("after the second look at an exit: got no match, want one")
		}
		if reason := find(s, app).Reason; reason != "OOMKilled" {
			t.Errorf("the corrected reason was missed: got %s, want OOMKilled", reason)
		}
		s = look(t, rt, c, s, 0, 0)

		rt.KillSandbox(sandbox)
		s = look(t, rt, c, s, 1, 0)
		if s.Sandboxes[0].State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Error("the dead sandbox: got ready, want not ready")
		}
		check(t, c.StopPodSandbox(t.Context(), sandbox))
		s = look(t, rt, c, s, 0, 1)
		s = look(t, rt, c, s, 0, 1)
		s = look(t, rt, c, s, 0, 0)
		check(t, c.RemovePodSandbox(t.Context(), sandbox))
		if s = look(t, rt, c, s, 0, 0); len(s.Sandboxes)+len(s.Containers) != 0 {
			t.Errorf("at the end: got %+v, want nothing", s)
		}
	})
}

// update updates a snapshot and checks which calls it cost. It makes no list.
func update(t *testing.T, rt *fake.Runtime, c *cri.Client, prev *cri.Snapshot, sandboxStatuses, containerStatuses int,
	changed ...cri.Instance) *cri.Snapshot {
	t.Helper()
	rt.ResetCalls()
	s, err := c.Update(t.Context(), prev, changed)
	if err != nil {
		t.Fatal(err)
	}
	checkCost(t, rt, 0, sandboxStatuses, containerStatuses)
	return s
}

// TestUpdateCost updates the snapshot at each step of a pod: an update asks only for what is said to have changed, for
// resources that have, and again for an exit. It shows the same as a new snapshot does.
func TestUpdateCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		box := func(id string) cri.Instance { return cri.Instance{Sandbox: id} }
		ctr := func(id string) cri.Instance { return cri.Instance{Container: id} }
		same := func(s *cri.Snapshot) {
			t.Helper()
			if full := look(t, rt, c, s, 0, 0); !slices.Equal(full.Sandboxes, s.Sandboxes) ||
				!slices.Equal(full.Containers, s.Containers) {
				t.Errorf("got %+v, a new snapshot has %+v", s, full)
			}
		}
		s := look(t, rt, c, nil, 0, 0)
		sandbox := runSandbox(t, c, "web", 0)
		s = update(t, rt, c, s, 1, 0, box(sandbox))
		same(s)
		app := createContainer(t, c, sandbox, "web", "app", 0)
		s = update(t, rt, c, s, 0, 1, cri.Instance{Sandbox: sandbox, Container: app})
		same(s)
		side := startContainer(t, c, sandbox, "web", "side", 0)
		check(t, c.StartContainer(t.Context(), app))
		s = update(t, rt, c, s, 0, 2, ctr(app), cri.Instance{Sandbox: sandbox, Container: side})
		same(s)

		check(t, c.UpdateContainerResources(t.Context(), app, &runtimeapi.LinuxContainerResources{CpuShares: 99}))
		s = update(t, rt, c, s, 0, 2)
		if find(s, app).Resources.Linux.CpuShares != 99 {
			t.Error("the resources of the container: got the old ones, want the new")
		}
		rt.ExitContainer(app, 137, "Error")
		s = update(t, rt, c, s, 0, 1, ctr(app))
		rt.SetReason(app, "OOMKilled")
		s = update(t, rt, c, s, 1, 1, box("long gone"), ctr(app))
		if reason := find(s, app).Reason; reason != "OOMKilled" {
			t.Errorf("the corrected reason was missed: got %s, want OOMKilled", reason)
		}
		s = update(t, rt, c, s, 0, 0, ctr(app))
		same(s)

		check(t, c.StopPodSandbox(t.Context(), sandbox))
		s = update(t, rt, c, s, 1, 1, box(sandbox))
		if state := find(s, side).State; state != runtimeapi.ContainerState_CONTAINER_EXITED {
			t.Errorf("a container of the stopped sandbox: got %v, want exited", state)
		}
		s = update(t, rt, c, s, 0, 1, box(sandbox))
		same(s)
		check(t, c.RemoveContainer(t.Context(), app))
		s = look(t, rt, c, s, 0, 0)
		if s = update(t, rt, c, s, 0, 1, ctr(app)); len(s.Containers) != 1 {
			t.Errorf("after the removal of a container: got %+v, want one", s.Containers)
		}
	})
}

// TestWithout checks that a removed container takes nothing else away, and a removed sandbox its containers. The
// sandbox of a container may not be known.
func TestWithout(t *testing.T) {
	container := func(id, sandbox string) cri.Container {
		return cri.Container{ContainerStatus: &runtimeapi.ContainerStatus{Id: id}, SandboxID: sandbox}
	}
	s := &cri.Snapshot{
		Sandboxes:  []*runtimeapi.PodSandboxStatus{{Id: "box-1"}, {Id: "box-0"}},
		Containers: []cri.Container{container("app", "box-1"), container("side", "box-1"), container("found", "")},
	}
	for removed, want := range map[cri.Instance]string{
		{Container: "app"}:                   "box-1 box-0 side found",
		{Sandbox: "box-1", Container: "app"}: "box-1 box-0 side found",
		{Sandbox: "box-1"}:                   "box-0 found",
	} {
		var got []string
		next := s.Without(removed)
		for _, sandbox := range next.Sandboxes {
			got = append(got, sandbox.Id)
		}
		for _, c := range next.Containers {
			got = append(got, c.Id)
		}
		if strings.Join(got, " ") != want || len(s.Sandboxes)+len(s.Containers) != 5 {
			t.Errorf("without %+v: got %q of %+v, want %s", removed, got, s, want)
		}
	}
}

// TestLongMessageIsCut checks that a snapshot keeps only a part of what the runtime says of a container: the error of a
// start may repeat the whole command.
func TestLongMessageIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		app := createContainer(t, c, runSandbox(t, c, "web", 0), "web", "app", 0)
		rt.Script("app", fake.Script{StartErr: strings.Repeat("x", 1<<20) + ": file name too long"})
		if err := c.StartContainer(t.Context(), app); err == nil {
			t.Error("the start of a container: got no error, want that of its script")
		}
		s, err := c.Snapshot(t.Context(), "uid-web", nil)
		check(t, err)
		message := find(s, app).Message
		if len(message) > podutil.MaxMessage || !strings.HasSuffix(message, ": file name too long") {
			t.Errorf("got %d bytes, want at most %d with their end", len(message), podutil.MaxMessage)
		}
	})
}

// TestSnapshotLateAddress checks that a ready sandbox without an address is asked again, unless it is on the host's
// network.
func TestSnapshotLateAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		sandbox := runSandbox(t, c, "web", 0)
		rt.SetIPs(sandbox)
		s := look(t, rt, c, nil, 1, 0)
		rt.SetIPs(sandbox, "10.0.0.1", "fd00::1")
		s = look(t, rt, c, s, 1, 0)
		if n := s.Sandboxes[0].Network; n.Ip != "10.0.0.1" || n.AdditionalIps[0].Ip != "fd00::1" {
			t.Errorf("got %v", n)
		}
		look(t, rt, c, s, 0, 0)
	})
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		cfg := sandboxConfig("web", 0)
		cfg.Linux = &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}}}
		_, err := c.RunPodSandbox(t.Context(), cfg, "")
		check(t, err)
		look(t, rt, c, look(t, rt, c, nil, 1, 0), 0, 0)
	})
}

// TestSnapshotOrder checks that the highest attempt comes first, whatever the clock said when it was made.
func TestSnapshotOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := serve(t, cri.Options{})
		second := runSandbox(t, c, "web", 1)
		time.Sleep(time.Second)
		first := runSandbox(t, c, "web", 0)
		b := createContainer(t, c, second, "web", "app", 1)
		a := createContainer(t, c, first, "web", "app", 0)
		s, err := c.Snapshot(t.Context(), "uid-web", nil)
		check(t, err)
		if s.Sandboxes[0].Id != second || s.Sandboxes[1].Id != first {
			t.Error("sandboxes: got another order, want the newest first")
		}
		if s.Containers[0].Id != b || s.Containers[1].Id != a {
			t.Error("containers: got another order, want the newest first")
		}
		if s.Containers[0].SandboxID != second || s.Containers[1].SandboxID != first {
			t.Error("containers: got them in another sandbox, want them in their own")
		}
	})
}

// TestSnapshotHalfMade checks that what a crash of the runtime left comes after the ready sandbox of the same
// attempt.
func TestSnapshotHalfMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		ready := runSandbox(t, c, "web", 0)
		half := rt.HalfMade(sandboxConfig("web", 0), false)
		late := rt.HalfMade(sandboxConfig("web", 1), true)
		s, err := c.Snapshot(t.Context(), "uid-web", nil)
		check(t, err)
		if len(s.Sandboxes) != 3 || s.Sandboxes[0].Id != late || s.Sandboxes[1].Id != ready || s.Sandboxes[2].Id != half {
			t.Errorf("got %v, want three", s.Sandboxes)
		}
		if _, err := c.RunPodSandbox(t.Context(), sandboxConfig("web", 1), ""); !nameReserved(err) {
			t.Errorf("name of the sandbox that was made late: got %v, want it reserved", err)
		}
		check(t, c.RemovePodSandbox(t.Context(), half))
		if _, err := c.RunPodSandbox(t.Context(), sandboxConfig("web", 0), ""); !nameReserved(err) {
			t.Errorf("name of the ready sandbox after the removal of the half-made one: got %v, want it reserved", err)
		}
	})
}

// TestSnapshotVanishing checks that what goes between list and status is left out; another failure is the snapshot's.
func TestSnapshotVanishing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		sandbox := runSandbox(t, c, "web", 0)
		app := createContainer(t, c, sandbox, "web", "app", 0)
		createContainer(t, c, sandbox, "web", "side", 0)
		slow := rt.Inject(&fake.Fault{Verb: "ContainerStatus", Object: app, Hang: true})
		got := make(chan *cri.Snapshot)
		go func() {
			s, err := c.Snapshot(t.Context(), "uid-web", nil)
			if err != nil {
				t.Error(err)
			}
			got <- s
		}()
		synctest.Wait()
		check(t, c.RemoveContainer(t.Context(), app))
		rt.Release(slow)
		if s := <-got; len(s.Containers) != 1 || s.Containers[0].Metadata.Name != "side" || len(s.Sandboxes) != 1 {
			t.Errorf("got %+v", s)
		}
		rt.Inject(&fake.Fault{Verb: "PodSandboxStatus", Err: fmt.Errorf("boom"), Times: 1})
		if _, err := c.Snapshot(t.Context(), "uid-web", nil); err == nil {
			t.Error("a failed status: got no error, want one")
		}
		rt.Inject(&fake.Fault{Verb: "ListContainers", Err: fmt.Errorf("boom"), Times: 1})
		if _, err := c.Snapshot(t.Context(), "uid-web", nil); err == nil {
			t.Error("a failed list: got no error, want one")
		}
		if _, err := c.Snapshot(t.Context(), "", nil); err == nil {
			t.Error("a snapshot without UID: got no error, want one")
		}
	})
}

// TestRelist checks that pods are found by sandbox or by container alone, those of other clients are left out, and
// fingerprints change with states.
func TestRelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		sandbox := runSandbox(t, c, "web", 0)
		runSandbox(t, c, "db", 0)
		runSandbox(t, c, "db", 1)
		alien := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "alien"}}
		_, err := c.RunPodSandbox(t.Context(), alien, "")
		check(t, err)
		app := createContainer(t, c, sandbox, "web", "app", 0)
		// A container of a pod whose sandbox is not there: made in another pod's sandbox, which CRI does not mind.
		createContainer(t, c, sandbox, "lost", "app", 0)

		list := func() map[string]cri.PodSummary {
			rt.ResetCalls()
			pods, err := c.Relist(t.Context())
			check(t, err)
			if n := len(rt.Calls()); n != 2 {
				t.Errorf("a relist took %d calls, want 2", n)
			}
			byName := map[string]cri.PodSummary{}
			for _, p := range pods {
				byName[p.Name] = p
			}
			return byName
		}
		marked := sandboxConfig("web", 1)
		marked.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		_, err = c.RunPodSandbox(t.Context(), marked, "")
		check(t, err)

		before := list()
		web, db := before["web"], before["db"]
		if len(before) != 3 || web.UID != "uid-web" || web.Namespace != "default" || !web.Ready ||
			web.Source != "file" || db.Source != "" || before["lost"].UID != "uid-lost" || before["lost"].Ready {
			t.Fatalf("got %+v, want three", before)
		}
		check(t, c.StartContainer(t.Context(), app))
		after := list()
		if after["web"].Fingerprint == before["web"].Fingerprint {
			t.Error("a start: got the same fingerprint, want another")
		}
		if !reflect.DeepEqual(after["db"], before["db"]) || !reflect.DeepEqual(after["lost"], before["lost"]) {
			t.Errorf("other pods: got %+v, want %+v as before", after, before)
		}
		if got, want := after["web"].Instances, 3; len(got) != want {
			t.Errorf("instances of web: got %+v, want %d", got, want)
		}
		s, err := c.Snapshot(t.Context(), "uid-web", nil)
		check(t, err)
		if !s.Matches(after["web"].Fingerprint) || s.Matches(before["web"].Fingerprint) {
			t.Error("got a match with another state, or none with the same state")
		}
		rt.KillSandbox(sandbox)
		if list()["web"].Fingerprint == after["web"].Fingerprint {
			t.Error("a dead sandbox: got the same fingerprint, want another")
		}
	})
}

// BenchmarkSnapshot measures one look at a pod with a sandbox and two containers, in prev's presence and without. The
// figures hold both sides of the pipe, since the fake runs in the same process.
func BenchmarkSnapshot(b *testing.B) {
	for _, known := range []bool{false, true} {
		b.Run(fmt.Sprintf("prev=%t", known), func(b *testing.B) {
			_, c := serve(b, cri.Options{})
			sandbox := runSandbox(b, c, "web", 0)
			for _, name := range []string{"app", "side"} {
				startContainer(b, c, sandbox, "web", name, 0)
			}
			first, err := c.Snapshot(b.Context(), "uid-web", nil)
			if err != nil {
				b.Fatal(err)
			}
			prev := first
			if !known {
				prev = nil
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Snapshot(b.Context(), "uid-web", prev); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRelist measures a node-wide list of 110 pods with two containers each, both sides of the pipe.
func BenchmarkRelist(b *testing.B) {
	_, c := serve(b, cri.Options{})
	for i := range 110 {
		pod := fmt.Sprintf("pod%d", i)
		sandbox := runSandbox(b, c, pod, 0)
		for _, name := range []string{"app", "side"} {
			startContainer(b, c, sandbox, pod, name, 0)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Relist(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
