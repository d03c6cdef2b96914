package execute

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/kube/objects"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/kube/apitest"
	"github.com/nodelet/nodelet/test/ownmounts"
	"github.com/nodelet/nodelet/test/placementtest"
	"github.com/nodelet/nodelet/volumes"
)

func TestMain(m *testing.M) { ownmounts.Main(m) }

// TestReadBeneath checks that a regular file in the volume is read. Nothing else is, and nothing blocks the agent.
func TestReadBeneath(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	at := func(p string) string { return filepath.Join(dir, p) }
	if err := errors.Join(
		os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600),
		os.WriteFile(at("env"), []byte("A=1"), 0o600),
		os.Mkdir(at("dir"), 0o700),
		os.Symlink("../env", at("dir/inside")),
		os.Symlink("/env", at("dir/rooted")),
		os.Symlink(filepath.Join(outside, "secret"), at("absolute")),
		os.Symlink("../"+filepath.Base(outside)+"/secret", at("up")),
		unix.Mkfifo(at("pipe"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, at("pipe"), unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"env": "A=1", "/env": "A=1", "dir/inside": "A=1", "dir/rooted": "A=1"} {
		if got, err := readBeneath(dir, path); string(got) != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"absolute", "up", "../" + filepath.Base(outside) + "/secret", "pipe", "dir", "missing"} {
		if got, err := readBeneath(dir, path); err == nil {
			t.Errorf("%s: got %q, want an error", path, got)
		}
	}
	if n, err := unix.Read(watch, make([]byte, 4096)); err != unix.EAGAIN { // the open of a device would use it
		t.Errorf("got %d bytes about opens of the pipe, %v, want none", n, err)
	}
}

// TestLargeEnvFileIsRefused checks that a file that is too large is an error that says so: its beginning alone could
// lack a variable.
func TestLargeEnvFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "env"), make([]byte, spec.MaxEnvFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	task := &Task{mounts: map[string]volumes.Mounted{"vol": {HostPath: dir}}}
	_, err := envFiles(task, &corev1.Container{Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{
		FileKeyRef: &corev1.FileKeySelector{VolumeName: "vol", Path: "env", Key: "A"}}}}})
	got, ok := errors.AsType[*spec.Reason](err)
	want := "larger than 65536 bytes"
	if !ok || got.Reason != podutil.ReasonCreateContainerConfig || !strings.Contains(got.Message, want) {
		t.Errorf("got error %v, want %s with %q", err, podutil.ReasonCreateContainerConfig, want)
	}
}

// TestManyEnvFilesAreRefused checks that the environment files of a container have a bound together, whatever their
// names are, and that each counts once.
func TestManyEnvFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	task := &Task{mounts: map[string]volumes.Mounted{"vol": {HostPath: dir}}}
	if err := os.WriteFile(filepath.Join(dir, "0"), make([]byte, spec.MaxEnvFile), 0o600); err != nil {
		t.Fatal(err)
	}
	var c corev1.Container
	for i := range maxEnvFiles/spec.MaxEnvFile + 1 {
		path := strconv.Itoa(i)
		if i > 0 {
			if err := os.Link(filepath.Join(dir, "0"), filepath.Join(dir, path)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := envFiles(task, &c); err != nil {
			t.Errorf("with %d files: %v", i, err)
		}
		for _, key := range []string{"A", "B"} {
			c.Env = append(c.Env, corev1.EnvVar{Name: key + path, ValueFrom: &corev1.EnvVarSource{
				FileKeyRef: &corev1.FileKeySelector{VolumeName: "vol", Path: path, Key: key}}})
		}
	}
	_, err := envFiles(task, &c)
	got, ok := errors.AsType[*spec.Reason](err)
	want := `with "16" of volume "vol" the environment files have more than 1048576 bytes`
	if !ok || got.Reason != podutil.ReasonCreateContainerConfig || got.Message != want {
		t.Errorf("got error %v, want %s with %q", err, podutil.ReasonCreateContainerConfig, want)
	}
}

func named(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

// envTask is a task for the container app, whose environment comes from everywhere, with the objects that there are.
func envTask(t *testing.T, configMaps, secrets []string) (*Task, *inputs, *corev1.Container) {
	local := objects.NewLocal(nil, nil)
	cms, ss := map[types.NamespacedName]*corev1.ConfigMap{}, map[types.NamespacedName]*corev1.Secret{}
	for _, n := range configMaps {
		cms[types.NamespacedName{Namespace: "default", Name: n}] = &corev1.ConfigMap{Data: map[string]string{"key": n}}
	}
	for _, n := range secrets {
		ss[types.NamespacedName{Namespace: "default", Name: n}] = &corev1.Secret{Data: map[string][]byte{"key": []byte(n)}}
	}
	local.Set(cms, ss)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "env"), []byte("FROM_FILE='file'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	app := corev1.Container{Name: "app", Image: "busybox:1",
		EnvFrom: []corev1.EnvFromSource{{
			Prefix:       "ALL_",
			ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("all")},
		}},
		Env: []corev1.EnvVar{
			{
				Name: "ONE",
				ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named("one"),
					Key: "key"}},
			},
			{
				Name: "FILE",
				ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "data", Path: "env",
					Key: "FROM_FILE"}},
			},
			{Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{app}, EnableServiceLinks: new(bool),
		Volumes: []corev1.Volume{{
			Name:         "data",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		}}}}
	x := New(Backends{
		Objects:         func(*corev1.Pod) Objects { return local },
		Devices:         noDevices{},
		Placement:       placementtest.Off(),
		Claims:          noClaims{},
		HandlerFeatures: func(string) *runtimeapi.RuntimeHandlerFeatures { return nil },
		NoImageSubPath:  func() string { return "" },
		Node:            func() *spec.Node { return &spec.Node{PodsDir: "/pods", Cgroups: spec.Cgroups{Flat: true}} },
	})
	task := &Task{
		Pod:     pod,
		Sandbox: &podstate.Sandbox{IPs: []string{"10.0.0.1"}},
		mounts:  map[string]volumes.Mounted{"data": {HostPath: dir}},
	}
	return task, x.containers.inputs, &pod.Spec.Containers[0]
}

// env is the environment that the container would get.
func env(t *testing.T, task *Task, x *inputs) (map[string]string, error) {
	in, err := x.collect(t.Context(), task, podstate.CreateContainer{Name: "app"})
	if err != nil {
		return nil, err
	}
	cfg, err := spec.Container(in)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, e := range cfg.Envs {
		all[e.Key] = string(e.Value)
	}
	return all, nil
}

// TestEnvironment checks that objects, files and facts reach the environment of a container.
func TestEnvironment(t *testing.T) {
	task, x, _ := envTask(t, []string{"all"}, []string{"one"})
	got, err := env(t, task, x)
	want := map[string]string{"ALL_key": "all", "ONE": "one", "FILE": "file", "IP": "10.0.0.1"}
	for key, value := range want {
		if got[key] != value {
			t.Errorf("got %s=%q, want %q", key, got[key], value)
		}
	}
	if err != nil {
		t.Errorf("%v in %v", err, slices.Sorted(maps.Keys(got)))
	}
}

// classes are objects of which the runtime classes can be read, or not, and may be known without that.
type classes struct {
	Objects
	gone  error
	known string
	reads int
}

func (c *classes) RuntimeHandler(_ context.Context, class string) (string, error) {
	c.reads++
	return class + "-handler", c.gone
}

func (c *classes) KnownHandler(string) string { return c.known }

// TestHandlerOfClass checks that the handler of the sandbox says which mounts a container may have, and with a runtime
// that reports none, that of the pod's runtime class. The class is read only if its handler is not known.
func TestHandlerOfClass(t *testing.T) {
	for name, test := range map[string]struct {
		class    string
		gone     error
		reported string
		known    string
		want     bool
		reads    int
	}{
		"no class":                        {want: false},
		"class, handler not reported":     {class: "rro", want: true, reads: 1},
		"class that is known":             {class: "rro", known: "rro-handler", want: true},
		"class that was made again":       {class: "rro", known: "old-handler", reported: "rro-handler", want: true},
		"class that is gone":              {class: "rro", gone: errors.New("gone"), reported: "rro-handler", want: true},
		"class that is gone, no handler":  {class: "rro", gone: errors.New("gone"), want: false, reads: 1},
		"class of a handler without them": {class: "old", reported: "old-handler", want: false},
	} {
		task, x, _ := envTask(t, []string{"all"}, []string{"one"})
		objects := &classes{Objects: x.Objects(task.Pod), gone: test.gone, known: test.known}
		x.Backends.Objects = func(*corev1.Pod) Objects { return objects }
		x.Backends.HandlerFeatures = func(handler string) *runtimeapi.RuntimeHandlerFeatures {
			return &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: handler == "rro-handler"}
		}
		task.Sandbox.Handler = test.reported
		if test.class != "" {
			task.Pod.Spec.RuntimeClassName = &test.class
		}
		in, err := x.collect(t.Context(), task, podstate.CreateContainer{Name: "app"})
		if err != nil || in.RecursiveReadOnly != test.want {
			t.Errorf("%s: got %+v, %v, want recursive read-only mounts: %v", name, in, err, test.want)
		}
		if objects.reads != test.reads {
			t.Errorf("%s: got %d reads of the class, want %d", name, objects.reads, test.reads)
		}
	}
}

// TestEnvironmentIsReadSideBySide checks that an API server that answers late delays a container once, not once for
// each object of its environment.
func TestEnvironmentIsReadSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, c := apitest.New(t)
		server.Intercept(func(*http.Request) *apierrors.StatusError { time.Sleep(2 * time.Second); return nil })
		api := objects.New(objects.Config{Core: c.Core, Node: c.Node, Log: slog.New(slog.DiscardHandler)})
		defer api.Close()
		task, x, app := envTask(t, nil, nil)
		x.Objects = func(*corev1.Pod) Objects { return api }
		for _, name := range []string{"all", "b", "c", "d"} {
			server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}})
			app.EnvFrom = append(app.EnvFrom,
				corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named(name)}})
		}
		server.Put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"}})
		began := time.Now()
		got, err := x.environment(t.Context(), task, app)
		if err != nil || len(got.ConfigMaps) != 4 || len(got.Secrets) != 1 {
			t.Errorf("got %d ConfigMaps, %d Secrets, %v, want 4 and 1", len(got.ConfigMaps), len(got.Secrets), err)
		}
		if got, want := time.Since(began), 2*time.Second; got > want {
			t.Errorf("it took %v, want %v", got, want)
		}
	})
}

// TestEnvironmentObjectIsReadOnce checks that an object is read once for all variables that come from it.
func TestEnvironmentObjectIsReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, c := apitest.New(t)
		api := objects.New(objects.Config{Core: c.Core, Node: c.Node, Log: slog.New(slog.DiscardHandler)})
		defer api.Close()
		task, x, app := envTask(t, nil, nil)
		x.Objects = func(*corev1.Pod) Objects { return api }
		server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "all"}})
		server.Put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "all"}})
		for range 5 {
			app.EnvFrom = append(app.EnvFrom, app.EnvFrom[0], corev1.EnvFromSource{
				SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("all")},
			})
			app.Env = append(app.Env, app.Env[0]) // a Secret that is missing
		}
		got, err := x.environment(t.Context(), task, app)
		if err != nil || len(got.ConfigMaps) != 1 || len(got.Secrets) != 1 {
			t.Errorf("got %d ConfigMaps, %d Secrets, %v, want 1 and 1", len(got.ConfigMaps), len(got.Secrets), err)
		}
		for _, object := range []string{"configmaps default/all", "secrets default/all", "secrets default/one"} {
			if n := server.Count("get " + object); n != 1 {
				t.Errorf("%s was read %d times, want once", object, n)
			}
		}
	})
}

// TestEnvironmentIsMissing checks that what is missing is named, with the kubelet's reason; what is optional may be
// missing.
func TestEnvironmentIsMissing(t *testing.T) {
	optional := true
	for _, c := range []struct {
		name  string
		spoil func(task *Task, c *corev1.Container)
		want  string
	}{
		{"ConfigMap", func(_ *Task, c *corev1.Container) { c.EnvFrom[0].ConfigMapRef.Name = "gone" },
			`configmap "gone" not found`},
		{"Secret", func(_ *Task, c *corev1.Container) { c.Env[0].ValueFrom.SecretKeyRef.Name = "gone" },
			`secret "gone" not found`},
		{"key", func(_ *Task, c *corev1.Container) { c.Env[0].ValueFrom.SecretKeyRef.Key = "gone" },
			`couldn't find key gone in Secret default/one`},
		{"optional Secret", func(_ *Task, c *corev1.Container) {
			c.Env[0].ValueFrom.SecretKeyRef.Name, c.Env[0].ValueFrom.SecretKeyRef.Optional = "gone", &optional
		}, ""},
		{"pipe for a file", func(task *Task, c *corev1.Container) {
			if err := unix.Mkfifo(filepath.Join(task.mounts["data"].HostPath, "pipe"), 0o600); err != nil {
				t.Fatal(err)
			}
			c.Env[1].ValueFrom.FileKeyRef.Path = "pipe"
		}, `cannot read environment file "pipe" of volume "data"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			task, x, app := envTask(t, []string{"all"}, []string{"one"})
			c.spoil(task, app)
			_, err := env(t, task, x)
			reason, ok := errors.AsType[*spec.Reason](err)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (!ok || reason.Reason != podutil.ReasonCreateContainerConfig ||
				!strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// unreadable are objects of which some cannot be read.
type unreadable struct{ Objects }

func (unreadable) Secret(context.Context, string, string) (*corev1.Secret, error) {
	return nil, errors.New("connection refused")
}

func (unreadable) Services(context.Context, string) ([]*corev1.Service, error) {
	return nil, errors.New("connection refused")
}

// TestErrorBeforeCreation checks that each error before the runtime is called has the kubelet's reason, with which the
// container is created as soon as its objects have changed.
func TestErrorBeforeCreation(t *testing.T) {
	for want, spoil := range map[string]func(task *Task, x *inputs, c *corev1.Container){
		`get Secret "one"`: func(task *Task, x *inputs, _ *corev1.Container) {
			objects := x.Objects(task.Pod)
			x.Backends.Objects = func(*corev1.Pod) Objects { return unreadable{objects} }
		},
		"list services": func(task *Task, x *inputs, c *corev1.Container) {
			objects := x.Objects(task.Pod)
			x.Backends.Objects = func(*corev1.Pod) Objects { return unreadable{objects} }
			c.Env, task.Pod.Spec.EnableServiceLinks = nil, nil
		},
		`container "app" is no longer`: func(_ *Task, _ *inputs, c *corev1.Container) { c.Name = "other" },
		"not a socket file": func(task *Task, x *inputs, c *corev1.Container) {
			x.Volumes = changedNode{}
			task.Pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Type: new(corev1.HostPathSocket)},
			}
			c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/x"}}
		},
	} {
		task, x, app := envTask(t, []string{"all"}, []string{"one"})
		spoil(task, x, app)
		creator := &containers{Backends: x.Backends, inputs: x}
		_, err := creator.create(t.Context(), task, podstate.CreateContainer{Name: "app"})
		got := problem(t.Context(), podstate.CreateContainer{}, err)
		if got == nil || got.Reason != podutil.ReasonCreateContainerConfig || !strings.Contains(got.Message, want) {
			t.Errorf("got %+v, want %s with %q", got, podutil.ReasonCreateContainerConfig, want)
		}
	}
}

// TestServicesAreReadOnce checks that the list that was read with the sandbox serves the containers while it is
// young.
func TestServicesAreReadOnce(t *testing.T) {
	task, x, _ := envTask(t, nil, nil)
	known := []*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Name: "known"}}}
	done := make(chan struct{})
	close(done)
	for age, want := range map[time.Duration]int{time.Second: 1, time.Minute: 0} {
		task.services = &serviceRead{began: time.Now().Add(-age), done: done}
		task.services.all.Store(&known)
		if got, err := podServices(t.Context(), task, x.Objects(task.Pod)); len(got) != want || err != nil {
			t.Errorf("a list of %v ago: got %d services, %v, want %d", age, len(got), err, want)
		}
	}
	task.services = &serviceRead{began: time.Now(), done: done}
	if got, err := podServices(t.Context(), task, x.Objects(task.Pod)); len(got) != 0 || err != nil {
		t.Errorf("after a read that failed: got %d services, %v, want 0", len(got), err)
	}
}

// manyServices has the services of a large namespace.
type manyServices struct{ Objects }

func (manyServices) Services(context.Context, string) ([]*corev1.Service, error) {
	return make([]*corev1.Service, 5000), nil
}

// TestServicesAreForgotten checks that a pod does not keep the list for longer than its containers may use it.
func TestServicesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := readServices(t.Context(), manyServices{}, &corev1.Pod{})
		<-r.done
		if all := r.all.Load(); all == nil || len(*all) != 5000 {
			t.Fatal("got no list after the read, want 5000 services")
		}
		time.Sleep(servicesMaxAge)
		synctest.Wait()
		if r.all.Load() != nil {
			t.Errorf("got the list after %v, want it forgotten", servicesMaxAge)
		}
	})
}

// changedNode has paths that are not of the type of their volume.
type changedNode struct{ Volumes }

func (changedNode) Mount(context.Context, volumes.Request, volumes.Objects) (volumes.Mounted, error) {
	return volumes.Mounted{}, errors.New("not a socket file")
}

// TestHostPathIsLookedAtAgain checks that a container does not start again when the path of the node that it mounts is
// no longer what the volume says: the runtime would make a directory there.
func TestHostPathIsLookedAtAgain(t *testing.T) {
	for _, c := range []struct {
		volume  string
		refused bool
	}{{"socket", true}, {"any", false}, {"data", false}} {
		task, x, app := envTask(t, []string{"all"}, []string{"one"})
		x.Volumes = changedNode{}
		socket := corev1.HostPathSocket
		task.Pod.Spec.Volumes = append(task.Pod.Spec.Volumes, corev1.Volume{Name: "socket", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/run/x.sock", Type: &socket},
		}}, corev1.Volume{Name: "any", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/run/x.sock"},
		}})
		app.VolumeMounts = []corev1.VolumeMount{{Name: c.volume, MountPath: "/x"}}
		_, err := x.collect(t.Context(), task, podstate.CreateContainer{Name: "app"})
		if refused := err != nil; refused != c.refused {
			t.Errorf("volume %s: got error %v, want one: %t", c.volume, err, c.refused)
		}
	}
}

// TestBrokenVolumeIsMountedAgain checks that a volume is mounted again before a container starts, if its mount or the
// daemon that serves it has gone, and only then.
func TestBrokenVolumeIsMountedAgain(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	share := corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs.test", Path: "/"}}
	bucket := corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "bucket.csi.example.com"}}
	nothing, unmounted := func(string) {}, func(dir string) {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		volume  corev1.VolumeSource
		mounted bool
		then    func(dir string)
		again   bool
	}{
		"a mount that works":        {bucket, true, nothing, false},
		"a mount that has gone":     {bucket, true, unmounted, true},
		"a share":                   {share, true, nothing, false},
		"a share that has gone":     {share, true, unmounted, true},
		"a share without an answer": {share, true, func(dir string) { ownmounts.FUSE(t, dir) }, false},
		"a driver that mounts none": {bucket, false, nothing, false},
		"a mount without a daemon":  {bucket, false, func(dir string) { ownmounts.FUSE(t, dir).End() }, true},
	} {
		task, x, app := envTask(t, []string{"all"}, []string{"one"})
		x.Volumes = changedNode{}
		task.Pod.Spec.Volumes = append(task.Pod.Spec.Volumes, corev1.Volume{Name: "outer", VolumeSource: c.volume})
		app.VolumeMounts = []corev1.VolumeMount{{Name: "outer", MountPath: "/x"}}
		dir := t.TempDir()
		task.mounts["outer"] = volumes.Mounted{HostPath: dir, MountPoint: c.mounted}
		if c.mounted {
			if err := unix.Mount("outer", dir, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		}
		c.then(dir)
		_, err := x.collect(t.Context(), task, podstate.CreateContainer{Name: "app"})
		if again := err != nil; again != c.again {
			t.Errorf("%s: got error %v, want that of another mount: %t", name, err, c.again)
		}
	}
}
