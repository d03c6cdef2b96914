package podstate

import (
	"testing"
	"time"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// TestLostAnswers checks that what a step takes away is unknown as soon as the step begins, whatever its answer is: it
// may have its effect at any time.
func TestLostAnswers(t *testing.T) {
	m := NewMemory()
	m.Prepared, m.PodSize = true, &Size{}
	m.ClaimsPrepared, m.Volumes["data"] = true, Volume{}
	steps := []Step{UnprepareClaims{}, Unmount{Volume: "data"}, RemoveCgroup{}}
	for _, step := range steps {
		m.Began(step)
	}
	check := func(when string) {
		if m.Prepared || m.PodSize != nil || m.ClaimsPrepared || len(m.Volumes) > 0 {
			t.Errorf("%s: got prepared %v, size %v, claims %v, volumes %v, want none", when, m.Prepared, m.PodSize,
				m.ClaimsPrepared, m.Volumes)
		}
	}
	check("steps in flight")
	for _, step := range steps {
		m.Ended(Result{Step: step, Problem: &Problem{Message: "no answer"}}, time.Time{})
	}
	check("steps without an answer")
}

// TestRemovedContainer checks that a container is forgotten as soon as the runtime says that it has removed it.
func TestRemovedContainer(t *testing.T) {
	m := NewMemory()
	do := func(step Step, problem *Problem) {
		m.Began(step)
		m.Ended(Result{Step: step, Problem: problem}, time.Time{})
	}
	do(StartContainer{ID: "app.0"}, &Problem{Message: "no answer"})
	do(PostStart{ID: "app.0"}, nil)
	do(StopContainer{ID: "app.0"}, nil)
	do(RemoveContainer{ID: "app.0"}, &Problem{Message: "no answer"})
	if !m.Recall().Instance("app.0").Started {
		t.Error("a container whose removal has failed: got not started, want started")
	}
	do(RemoveContainer{ID: "app.0"}, nil)
	if len(m.Instances)+len(m.Failures) > 0 {
		t.Errorf("a removed container: got %v and failures %v, want nothing", m.Instances, m.Failures)
	}
}

// TestUnstartedContainers checks that nothing is left of containers that fail to start and that the runtime removes,
// but the failure, whose count grows until the container has started. A failed creation does not end its delay.
func TestUnstartedContainers(t *testing.T) {
	m := NewMemory()
	try := func(id string, problem *Problem) {
		start := StartContainer{ID: id, Name: "app"}
		m.Began(start)
		m.Ended(Result{Step: start, Problem: problem}, time.Time{})
	}
	for range 3 {
		for _, id := range []string{"app.0", "app.1"} {
			try(id, &Problem{Message: "cannot start"})
			m.See(nil, nil, []Container{{ID: id}}, time.Time{})
			if _, failed := m.Failures[StartContainer{ID: id}.Key()]; !failed || !m.Recall().Instance(id).Started {
				t.Errorf("a container that is there: got failed %v, %+v, want it failed and started", failed, m.Instances[id])
			}
			m.Began(StopContainer{ID: id})
			m.See(nil, nil, nil, time.Time{})
		}
	}
	creation, failed := m.Recall().Failure(CreateContainer{Name: "app"}.Key())
	if want := 32 * time.Second; !failed || creation.Count != 6 || creation.Delay != want {
		t.Errorf("after 6 failed starts: got %d failures and a delay of %s, want 6 and %s", creation.Count, creation.Delay,
			want)
	}
	if len(m.Failures) > 0 || len(m.Instances) > 0 {
		t.Errorf("containers that are gone: got failures %v and %v, want none", m.Failures, m.Instances)
	}
	create := CreateContainer{Name: "app"}
	m.Ended(Result{Step: create, Problem: &Problem{Message: "no answer"}}, time.Time{})
	if creation, _ := m.Recall().Failure(create.Key()); creation.Count != 6 {
		t.Errorf("after a failed creation: got %+v, want the failed starts, which wait longer", creation)
	}
	delete(m.Failures, create.Key())
	try("app.2", nil)
	if len(m.Unstarted) > 0 {
		t.Errorf("after a start: got %v, want no failure", m.Unstarted)
	}
}

// TestMayLackObjects checks that the objects of a pod are watched as long as a step has failed that may succeed with
// other objects.
func TestMayLackObjects(t *testing.T) {
	for step, problem := range map[Step]Problem{
		EnsureImage{Container: "app"}:   {Reason: podutil.ReasonErrImagePull, Lacks: true},
		CreateContainer{Name: "app"}:    {Reason: podutil.ReasonCreateContainerConfig},
		EnsureImage{Container: "other"}: {Reason: podutil.ReasonErrImagePull},
	} {
		m := NewMemory()
		m.Ended(Result{Step: step, Problem: &problem}, time.Time{})
		want := step != EnsureImage{Container: "other"}
		if got := m.MayLackObjects(); got != want {
			t.Errorf("after %+v of %+v: got lacking %v, want %v", problem, step, got, want)
		}
		m.Ended(Result{Step: step}, time.Time{})
		if m.MayLackObjects() {
			t.Errorf("after %+v has succeeded: got lacking, want not", step)
		}
	}
}
