package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/watch"
	"github.com/nodelet/nodelet/test/testbed"
)

const (
	namespace = "default"
	// podLimit is how long a pod may take to reach the state in its annotation, and to be deleted. In User-Mode Linux the
	// kubelet needed 99 s for a deletion while eleven other pods ended.
	podLimit = 5 * time.Minute
	// settle is how long a pod is watched after that.
	settle = 3 * time.Second
	// eventsQuiet is for how long no event has come when all are taken to be there.
	eventsQuiet = 15 * time.Second
)

// sighting is everything that was observed about one pod.
type sighting struct {
	Until    string
	Reached  bool
	UID      string
	Statuses []corev1.PodStatus
	// Rested is the last status before the pod was deleted.
	Rested corev1.PodStatus
	Events []corev1.Event
	Calls  []call
}

type sightings map[string]*sighting

func (s sightings) write(file string) error {
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o644)
}

func readSightings(file string) (s sightings, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return s, json.Unmarshal(b, &s)
}

// readCorpus reads the pods whose name matches the pattern; an empty one matches all.
func readCorpus(dir, only string) (pods []*corev1.Pod, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	names := strings.NewReplacer("BUSYBOX", testbed.BusyboxImage, "AGNHOST", testbed.AgnhostImage, "SHARED", sharedDir)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, doc := range strings.Split(names.Replace(string(text)), "\n---\n") {
			pod := &corev1.Pod{}
			if err := yaml.UnmarshalStrict([]byte(doc), pod); err != nil {
				return nil, fmt.Errorf("read %s: %w", file, err)
			}
			if match, _ := path.Match(only, pod.Name); only == "" || match {
				pods = append(pods, pod)
			}
		}
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("no pods in %s match %q", dir, only)
	}
	return pods, nil
}

// run is one agent with the corpus. It is a watch.Sink of the pods.
type run struct {
	tb    *testbed.Testbed
	agent testbed.AgentKind
	api   *client.Client
	proxy *proxy

	mu   sync.Mutex
	seen sightings
	gone map[string]bool
	// moved is closed, and replaced, at each change.
	moved chan struct{}
}

func newRun(tb *testbed.Testbed, agent testbed.AgentKind, socket string) (*run, error) {
	cfg, err := client.LoadConfig(tb.Kubeconfig)
	if err != nil {
		return nil, err
	}
	api, err := client.New(cfg, 1000, 2000, "differential")
	if err != nil {
		return nil, err
	}
	p, err := startProxy(socket, tb.Nodes[0].Runtime.Endpoint)
	if err != nil {
		return nil, err
	}
	return &run{
		tb:    tb,
		agent: agent,
		api:   api,
		proxy: p,
		seen:  sightings{},
		gone:  map[string]bool{},
		moved: make(chan struct{}),
	}, nil
}

func (r *run) close() { r.proxy.close() }

// Set receives a pod that was added or changed.
func (r *run) Set(o metav1.Object) {
	pod := o.(*corev1.Pod)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.seen[pod.Name]
	if s == nil {
		return
	}
	s.UID = string(pod.UID)
	s.Statuses = append(s.Statuses, *pod.Status.DeepCopy())
	if pod.DeletionTimestamp == nil {
		s.Rested = s.Statuses[len(s.Statuses)-1]
	}
	r.move()
}

// Delete receives a deleted pod.
func (r *run) Delete(o metav1.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone[o.GetName()] = true
	r.move()
}

// Replace takes the whole state: at the start there is none.
func (r *run) Replace(objs []metav1.Object) {
	for _, o := range objs {
		r.Set(o)
	}
}

// Trouble ignores an error of the watch, because the watch is retried.
func (r *run) Trouble(error) {}

func (r *run) move() {
	close(r.moved)
	r.moved = make(chan struct{})
}

// wait waits until ok returns true. It reports whether that happened within the limit.
func (r *run) wait(ctx context.Context, limit time.Duration, is func() bool) bool {
	over := time.NewTimer(limit)
	defer over.Stop()
	for {
		r.mu.Lock()
		moved, there := r.moved, is()
		r.mu.Unlock()
		if there {
			return true
		}
		select {
		case <-moved:
		case <-over.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (r *run) all(ctx context.Context, pods []*corev1.Pod, wave int) (sightings, error) {
	node := r.tb.Nodes[0]
	if err := node.StartAgent(ctx, r.agent); err != nil {
		return nil, err
	}
	if err := node.WaitReady(ctx, 2*time.Minute); err != nil {
		return nil, err
	}
	if err := r.things(ctx); err != nil {
		return nil, err
	}
	for _, pod := range pods {
		err := r.api.Core.Post().Namespace(namespace).Resource("pods").Param("dryRun", "All").Body(pod).Do(ctx).Error()
		if err != nil {
			return nil, fmt.Errorf("pod %s of the corpus: %w", pod.Name, err)
		}
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go watch.Target{Client: r.api.Core, Resource: "pods", Namespace: namespace}.Follow(watching, r)
	for some := range slices.Chunk(pods, wave) {
		var names []string
		for _, pod := range some {
			names = append(names, pod.Name)
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", r.agent, strings.Join(names, " "))
		errs := make([]error, len(some))
		var each sync.WaitGroup
		for i, pod := range some {
			each.Go(func() { errs[i] = r.one(ctx, pod) })
		}
		each.Wait()
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
	}
	return r.seen, r.addEvents(ctx)
}

// things creates the objects that the corpus refers to.
func (r *run) things(ctx context.Context) error {
	settings := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "settings"},
		Data:       map[string]string{"color": "red", "size": "7"},
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, StringData: map[string]string{"password": "x"}}
	heavy := &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "heavy"},
		Handler:    "test-handler",
		Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{
			"cpu": resource.MustParse("50m"), "memory": resource.MustParse("16Mi"),
		}},
	}
	return errors.Join(
		r.api.Node.Post().Resource("runtimeclasses").Body(heavy).Do(ctx).Error(),
		r.api.Core.Post().Namespace(namespace).Resource("configmaps").Body(settings).Do(ctx).Error(),
		r.api.Core.Post().Namespace(namespace).Resource("secrets").Body(secret).Do(ctx).Error(),
	)
}

// one creates a pod, waits for its state, and deletes it.
func (r *run) one(ctx context.Context, pod *corev1.Pod) error {
	pod = pod.DeepCopy()
	s := &sighting{Until: pod.Annotations["until"]}
	delete(pod.Annotations, "until")
	pod.Spec.NodeName = r.tb.Nodes[0].Name
	r.mu.Lock()
	r.seen[pod.Name] = s
	r.mu.Unlock()
	if err := r.api.Core.Post().Namespace(namespace).Resource("pods").Body(pod).Do(ctx).Error(); err != nil {
		return fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	what, isEvent := strings.CutPrefix(s.Until, "event ")
	switch {
	case isEvent:
		s.Reached = r.awaitEvent(ctx, pod.Name, what)
	case s.Until == rest:
		s.Reached = r.rests(ctx, s)
	default:
		s.Reached = r.wait(ctx, podLimit,
			func() bool { return len(s.Statuses) > 0 && settled(s.Until, &s.Statuses[len(s.Statuses)-1]) })
	}
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return ctx.Err()
	}
	err := r.api.Core.Delete().
		Namespace(namespace).
		Resource("pods").
		Name(pod.Name).
		Body(&metav1.DeleteOptions{}).
		Do(ctx).
		Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if !r.wait(ctx, podLimit, func() bool { return r.gone[pod.Name] }) {
		return fmt.Errorf("pod %s was not deleted in time", pod.Name)
	}
	select {
	case <-time.After(settle): // the last calls come late
	case <-ctx.Done():
		return ctx.Err()
	}
	s.Calls = r.proxy.of(s.UID)
	return nil
}

// rest is the state of a pod whose status has not changed for restQuiet, while the runtime starts nothing.
const (
	rest      = "rest"
	restQuiet = 15 * time.Second
)

// rests waits until a pod is at rest. It reports whether that happened within the limit.
func (r *run) rests(ctx context.Context, s *sighting) bool {
	for over := time.Now().Add(podLimit); time.Now().Before(over) && ctx.Err() == nil; {
		r.mu.Lock()
		before := len(s.Statuses)
		r.mu.Unlock()
		changed := r.wait(ctx, restQuiet, func() bool { return len(s.Statuses) > before })
		if !changed && before > 1 && r.proxy.starting.Load() == 0 {
			return true
		}
	}
	return false
}

// addEvents gives each pod its events, when no new one has come for a while: an agent may write them late.
func (r *run) addEvents(ctx context.Context) error {
	var all []corev1.Event
	for last, since := "", time.Now(); time.Since(since) < eventsQuiet; {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
		var err error
		if all, err = r.events(ctx, ""); err != nil {
			return err
		}
		var versions strings.Builder
		for i := range all {
			versions.WriteString(all[i].Name + " " + all[i].ResourceVersion + "\n")
		}
		if now := versions.String(); now != last {
			last, since = now, time.Now()
		}
	}
	for _, e := range all {
		if s := r.seen[e.InvolvedObject.Name]; s != nil {
			s.Events = append(s.Events, e)
		}
	}
	return nil
}

// events returns the events that a field selector chooses, all if it is empty.
func (r *run) events(ctx context.Context, selector string) ([]corev1.Event, error) {
	var list corev1.EventList
	err := r.api.Core.Get().Namespace(namespace).Resource("events").Param("fieldSelector", selector).Do(ctx).Into(&list)
	return list.Items, err
}

// awaitEvent polls, because events are not watched.
func (r *run) awaitEvent(ctx context.Context, pod, reason string) bool {
	for range int(podLimit / time.Second) {
		all, err := r.events(ctx, "involvedObject.name="+pod)
		if err != nil {
			return false
		}
		if slices.ContainsFunc(all, func(e corev1.Event) bool { return e.Reason == reason }) {
			return true
		}
		time.Sleep(time.Second)
	}
	return false
}

// settled reports whether a pod is in the state of its annotation: in a phase, with a condition, with a container
// that waits for a reason ("waiting REASON") or runs or waits again after a number of restarts ("restarts N").
func settled(until string, st *corev1.PodStatus) bool {
	if string(st.Phase) == until {
		return true
	}
	for _, c := range st.Conditions {
		if string(c.Type) == until && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	what, arg, _ := strings.Cut(until, " ")
	n, _ := strconv.Atoi(arg)
	for _, c := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses) {
		switch {
		case what == "waiting" && c.State.Waiting != nil && c.State.Waiting.Reason == arg,
			what == "restarts" && int(c.RestartCount) >= n:
			return true
		}
	}
	return false
}
